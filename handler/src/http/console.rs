//! A guest's serial console as a websocket.
//!
//! Every client has its own connection to the launcher and gets the guest's output from then on, as KubeVirt's clients
//! expect. With `?history=true`, a client first gets the history: a text frame `{"historyBytes": N}`, which other
//! clients ignore, and N bytes of plain text, which the launcher has made from the earlier output.

use std::io;
use std::sync::Arc;

use std::time::Duration;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path as Segments, Query, State};
use axum::response::Response;
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tracing::debug;
use vireo_api::v1::{HISTORY_BYTES, VirtualMachineInstance};

use super::error::ApiError;
use super::find;
use super::relay::{PLAIN, relay_stream};
use crate::launcher::socket;
use crate::metrics::Endpoint;
use crate::node::Node;
use crate::reconcile::status::Phase;
use crate::state::VmiDir;

/// How long a launcher may take to send the length of the history.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(10);

/// The query parameters of a console.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConsoleOptions {
    /// Whether to send the earlier output first, as plain text.
    history: bool,
}

/// Attaches a client to a console.
pub(super) async fn attach(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    Query(options): Query<ConsoleOptions>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let vmi = find(&node, namespace, name)?;
    attachable(&vmi)?;
    let upgrade = upgrade
        .map_err(|rejection| ApiError::bad_request(format!("a console is a websocket: {rejection}")))?;
    let uid = vmi.metadata.uid.parse().map_err(|_| ApiError::internal("the VMI has no UID"))?;
    let (mut console, has_history) = connect(&node.state.vmi_dir(uid), options.history)
        .await
        .map_err(|error| ApiError::internal(format!("cannot connect to the guest's console: {error}")))?;
    let connection = node.metrics.connections.open(&vmi, Endpoint::Console);
    Ok(upgrade.protocols([PLAIN]).on_upgrade(async move |mut client| {
        let _connection = connection;
        if !has_history || announce(&mut client, &mut console).await.is_some() {
            relay_stream(client, console.into_split()).await;
        }
    }))
}

/// Connects to a launcher's console. Returns whether it begins with history: a launcher of an earlier release has none.
async fn connect(dir: &VmiDir, history: bool) -> io::Result<(UnixStream, bool)> {
    if history {
        match socket::connect(&dir.console_history_socket()).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            connected => return connected.map(|console| (console, true)),
        }
    }
    Ok((socket::connect(&dir.console_socket()).await?, false))
}

/// Sends the client the length of the history that follows.
async fn announce(client: &mut WebSocket, console: &mut UnixStream) -> Option<()> {
    let length = match timeout(HISTORY_TIMEOUT, console.read_u32()).await {
        Ok(Ok(length)) => length,
        Ok(Err(error)) => {
            debug!(%error, "the console ended before its history");
            return None;
        }
        Err(_) => {
            debug!("the launcher does not send the length of the history");
            return None;
        }
    };
    let announcement = serde_json::json!({ HISTORY_BYTES: length }).to_string();
    client.send(Message::Text(announcement.into())).await.ok()
}

/// Checks that the VMI has a console, with KubeVirt's errors.
fn attachable(vmi: &VirtualMachineInstance) -> Result<(), ApiError> {
    if vmi.spec.domain.devices.autoattach_serial_console == Some(false) {
        return Err(ApiError::bad_request("No serial consoles are present."));
    }
    running(vmi)
}

/// Checks that the guest runs, with KubeVirt's errors.
pub(super) fn running(vmi: &VirtualMachineInstance) -> Result<(), ApiError> {
    match Phase::parse(&vmi.status.phase) {
        Phase::Running => Ok(()),
        Phase::Failed => Err(ApiError::not_now(&vmi.metadata.name, "VMI is in failed status")),
        Phase::Pending | Phase::Scheduling | Phase::Scheduled | Phase::Succeeded => {
            Err(ApiError::bad_request("VMI is not running"))
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
