//! A guest's screen: as a websocket that carries RFB unread, and as a picture.

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path as Segments, Query, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use tokio::net::UnixStream;
use uuid::Uuid;
use vireo_api::v1::VirtualMachineInstance;

use super::carry::{PLAIN, carry_stream};
use super::console::running;
use super::fault::Fault;
use super::find;
use crate::launcher::link;
use crate::node::Node;

/// What may be said of a screenshot.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wishes {
    #[serde(default)]
    move_cursor: bool,
}

/// Attaches a viewer. There may be several: `preserveSession` has nothing to preserve.
pub(super) async fn attach(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Fault> {
    let uid = shown(&*find(&node, namespace, name)?)?;
    let upgrade =
        upgrade.map_err(|rejection| Fault::bad_request(format!("a screen is a websocket: {rejection}")))?;
    let screen = UnixStream::connect(node.state.machine(uid).vnc_socket())
        .await
        .map_err(|error| Fault::internal(format!("cannot connect to the guest's screen: {error}")))?;
    Ok(upgrade.protocols([PLAIN]).on_upgrade(move |client| carry_stream(client, screen.into_split())))
}

/// What is on the screen now.
pub(super) async fn screenshot(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    Query(wishes): Query<Wishes>,
) -> Result<Response, Fault> {
    let uid = shown(&*find(&node, namespace, name)?)?;
    let socket = node.state.machine(uid).launcher_socket();
    let picture = link::screenshot(&socket, wishes.move_cursor).await;
    let picture = picture.map_err(|error| Fault::internal(link::chain(&error)))?;
    Ok(([(header::CONTENT_TYPE, "image/png")], picture).into_response())
}

/// Whose screen it is, with KubeVirt's answers where there is none.
fn shown(vmi: &VirtualMachineInstance) -> Result<Uuid, Fault> {
    if vmi.spec.domain.devices.autoattach_graphics_device == Some(false) {
        return Err(Fault::bad_request("No graphics devices are present."));
    }
    running(vmi)?;
    vmi.metadata.uid.parse().map_err(|_| Fault::internal("the VMI has no UID"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_are_kubevirts() {
        let vmi = |phase: &str, graphics: Option<bool>| {
            let mut vmi = VirtualMachineInstance::default();
            vmi.metadata.uid = "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1".to_owned();
            vmi.status.phase = phase.to_owned();
            vmi.spec.domain.devices.autoattach_graphics_device = graphics;
            shown(&vmi).map(drop).map_err(|fault| (fault.code.as_u16(), fault.message))
        };
        assert_eq!(vmi("Running", None), Ok(()));
        let none = Err((400, "No graphics devices are present.".to_owned()));
        assert_eq!(vmi("Running", Some(false)), none);
        assert_eq!(vmi("Scheduled", None), Err((400, "VMI is not running".to_owned())));
    }
}
