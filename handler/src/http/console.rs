//! A guest's serial console as a websocket.
//!
//! Every client has its own connection to the launcher, which gives each the history first.

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path as Segments, State};
use axum::response::Response;
use tokio::net::UnixStream;
use vireo_api::v1::VirtualMachineInstance;

use super::carry::{PLAIN, carry_stream};
use super::fault::Fault;
use super::find;
use crate::node::Node;
use crate::reconcile::status::Phase;

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
    Ok(upgrade.protocols([PLAIN]).on_upgrade(move |client| carry_stream(client, console.into_split())))
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
