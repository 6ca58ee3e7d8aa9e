//! A guest's serial console as a websocket.
//!
//! Binary frames are the console's bytes, in both directions; text frames mean nothing. Every client has its own
//! connection to the launcher, which gives each the history first.

use std::sync::Arc;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Path as Segments, State};
use axum::response::Response;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tracing::debug;
use vireo_api::v1::VirtualMachineInstance;

use super::fault::Fault;
use super::find;
use crate::node::Node;
use crate::reconcile::status::Phase;

/// The sub-protocol that says "opaque bytes in binary frames".
pub(super) const PLAIN: &str = "plain.kubevirt.io";
/// As KubeVirt's.
const BUFFER: usize = 10240;

/// Attaches a client to a console.
pub(super) async fn attach(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Fault> {
    let vmi = find(&node, namespace, name)?;
    attachable(&vmi)?;
    let upgrade =
        upgrade.map_err(|rejection| Fault::bad_request(format!("a console is a websocket: {rejection}")))?;
    let uid = vmi.metadata.uid.parse().map_err(|_| Fault::internal("the VMI has no UID"))?;
    let socket = node.state.machine(uid).console_socket();
    let console = UnixStream::connect(&socket)
        .await
        .map_err(|error| Fault::internal(format!("cannot connect to the guest's console: {error}")))?;
    Ok(upgrade.protocols([PLAIN]).on_upgrade(move |client| splice(client, console)))
}

/// Whether there is a console to attach to, with KubeVirt's answers where not.
fn attachable(vmi: &VirtualMachineInstance) -> Result<(), Fault> {
    if vmi.spec.domain.devices.autoattach_serial_console == Some(false) {
        return Err(Fault::bad_request("No serial consoles are present."));
    }
    running(vmi)
}

/// Whether the guest runs, with KubeVirt's answers where not.
pub(super) fn running(vmi: &VirtualMachineInstance) -> Result<(), Fault> {
    match Phase::parse(&vmi.status.phase) {
        Phase::Running => Ok(()),
        Phase::Failed => Err(Fault::not_now(&vmi.metadata.name, "VMI is in failed status")),
        Phase::Pending | Phase::Scheduling | Phase::Scheduled | Phase::Succeeded => {
            Err(Fault::bad_request("VMI is not running"))
        }
    }
}

/// Carries bytes both ways until either side ends.
pub(super) async fn splice(client: WebSocket, console: UnixStream) {
    let (to_client, from_client) = client.split();
    let (from_console, to_console) = console.into_split();
    tokio::select! {
        () = down(from_console, to_client) => debug!("the console ended"),
        () = up(from_client, to_console) => debug!("the client left"),
    }
}

async fn down(mut console: OwnedReadHalf, mut client: SplitSink<WebSocket, Message>) {
    let mut buffer = vec![0; BUFFER];
    let ending = loop {
        match console.read(&mut buffer).await {
            Ok(0) => break "the console was closed",
            Ok(length) => {
                let bytes = buffer.get(..length).unwrap_or_default().to_vec();
                if client.send(Message::Binary(bytes.into())).await.is_err() {
                    return;
                }
            }
            Err(_) => break "the console failed",
        }
    };
    let close = CloseFrame { code: close_code::NORMAL, reason: ending.into() };
    // The client may be gone as well.
    let _ = client.send(Message::Close(Some(close))).await;
}

async fn up(mut client: SplitStream<WebSocket>, mut console: OwnedWriteHalf) {
    while let Some(Ok(message)) = client.next().await {
        match message {
            Message::Binary(bytes) => {
                if console.write_all(&bytes).await.is_err() {
                    // Its end is told by the other direction, after the last of its output.
                    std::future::pending::<()>().await;
                }
            }
            Message::Close(_) => return,
            Message::Text(_) | Message::Ping(_) | Message::Pong(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_are_kubevirts() {
        let vmi = |phase: &str, serial: Option<bool>| {
            let mut vmi = VirtualMachineInstance::default();
            vmi.status.phase = phase.to_owned();
            vmi.spec.domain.devices.autoattach_serial_console = serial;
            attachable(&vmi).map_err(|fault| (fault.code.as_u16(), fault.message))
        };
        assert_eq!(vmi("Running", None), Ok(()));
        assert_eq!(vmi("Running", Some(true)), Ok(()));
        assert_eq!(vmi("Running", Some(false)), Err((400, "No serial consoles are present.".to_owned())));
        for phase in ["", "Pending", "Scheduling", "Scheduled", "Succeeded"] {
            assert_eq!(vmi(phase, None), Err((400, "VMI is not running".to_owned())), "{phase}");
        }
        assert_eq!(vmi("Failed", None).unwrap_err().0, 409);
    }
}
