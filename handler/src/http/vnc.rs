//! A guest's display: as a websocket that relays RFB, and as a screenshot.

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path as Segments, Query, State};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use uuid::Uuid;
use vireo_api::v1::VirtualMachineInstance;

use super::console::running;
use super::error::ApiError;
use super::find;
use super::relay::{PLAIN, relay_stream};
use crate::launcher::{link, socket};
use crate::metrics::Endpoint;
use crate::node::Node;

/// The query parameters of a screenshot.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ScreenshotOptions {
    #[serde(default)]
    move_cursor: bool,
}

/// Attaches a viewer. There may be several: `preserveSession` has nothing to preserve.
pub(super) async fn attach(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let vmi = find(&node, namespace, name)?;
    let uid = display_uid(&vmi)?;
    let upgrade = upgrade.map_err(|rejection| {
        ApiError::bad_request(format!("a VNC connection is a websocket: {rejection}"))
    })?;
    let display = socket::connect(&node.state.vmi_dir(uid).vnc_socket())
        .await
        .map_err(|error| ApiError::internal(format!("cannot connect to the guest's display: {error}")))?;
    let connection = node.metrics.connections.open(&vmi, Endpoint::Vnc);
    Ok(upgrade.protocols([PLAIN]).on_upgrade(async move |client| {
        let _connection = connection;
        relay_stream(client, display.into_split()).await;
    }))
}

/// Takes a screenshot.
pub(super) async fn screenshot(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    Query(options): Query<ScreenshotOptions>,
) -> Result<Response, ApiError> {
    let uid = display_uid(&*find(&node, namespace, name)?)?;
    let socket = node.state.vmi_dir(uid).launcher_socket();
    let screenshot = link::screenshot(&socket, options.move_cursor).await;
    let screenshot = screenshot.map_err(|error| ApiError::internal(link::chain(&error)))?;
    Ok(([(header::CONTENT_TYPE, "image/png")], screenshot).into_response())
}

/// The UID of a VMI with a display, with KubeVirt's errors.
fn display_uid(vmi: &VirtualMachineInstance) -> Result<Uuid, ApiError> {
    if vmi.spec.domain.devices.autoattach_graphics_device == Some(false) {
        return Err(ApiError::bad_request("No graphics devices are present."));
    }
    running(vmi)?;
    vmi.metadata.uid.parse().map_err(|_| ApiError::internal("the VMI has no UID"))
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
            display_uid(&vmi).map(drop).map_err(|fault| (fault.code.as_u16(), fault.message))
        };
        assert_eq!(vmi("Running", None), Ok(()));
        let none = Err((400, "No graphics devices are present.".to_owned()));
        assert_eq!(vmi("Running", Some(false)), none);
        assert_eq!(vmi("Scheduled", None), Err((400, "VMI is not running".to_owned())));
    }
}
