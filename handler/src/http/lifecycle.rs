//! The lifecycle subresources: pause, unpause, reset and soft reboot.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path as Segments, State};
use axum::http::Uri;
use serde::Deserialize;
use vireo_api::v1::VirtualMachineInstance;
use vireo_proto::launcher::{LifecycleCommand, fault::Code};

use super::error::ApiError;
use super::{find, path_not_found};
use crate::launcher::link::{self, LinkError};
use crate::node::Node;
use crate::reconcile::status::{ConditionType, Phase};

/// KubeVirt's `PauseOptions` and its like.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    dry_run: Vec<String>,
}

/// `pause`, `unpause`, `reset` and `softreboot`; responds when the command is done.
pub(super) async fn lifecycle(
    State(node): State<Arc<Node>>,
    Segments((namespace, name, what)): Segments<(String, String, String)>,
    uri: Uri,
    body: Bytes,
) -> Result<(), ApiError> {
    let Some(command) = parse(&what) else { return Err(path_not_found(uri).await) };
    let options: Option<Options> = match body.trim_ascii() {
        [] => None,
        body => serde_json::from_slice(body)
            .map_err(|error| ApiError::bad_request(format!("the options cannot be read: {error}")))?,
    };
    let dry_run = options.unwrap_or_default().dry_run;
    if let Some(odd) = dry_run.iter().find(|word| *word != "All") {
        return Err(ApiError::bad_request(format!("dryRun: {odd:?} is not All")));
    }
    let vmi = find(&node, namespace, name)?;
    check(&vmi, command)?;
    if !dry_run.is_empty() {
        return check_paused(&vmi, command);
    }
    let uid = vmi.metadata.uid.parse().map_err(|_| ApiError::internal("the VMI has no UID"))?;
    // The launcher knows whether the guest is paused; the status may be older.
    link::lifecycle(&node.state.vmi_dir(uid).launcher_socket(), command).await.map_err(|error| match &error {
        LinkError::Fault(fault) if fault.code() == Code::Conflict => {
            ApiError::not_now(&vmi.metadata.name, &fault.detail)
        }
        error => ApiError::internal(link::chain(error)),
    })
}

fn parse(what: &str) -> Option<LifecycleCommand> {
    match what {
        "pause" => Some(LifecycleCommand::Pause),
        "unpause" => Some(LifecycleCommand::Unpause),
        "reset" => Some(LifecycleCommand::Reset),
        "softreboot" => Some(LifecycleCommand::SoftReboot),
        _ => None,
    }
}

/// Checks that a VMI supports the command, with KubeVirt's errors.
fn check(vmi: &VirtualMachineInstance, command: LifecycleCommand) -> Result<(), ApiError> {
    let name = &vmi.metadata.name;
    let phase = Phase::parse(&vmi.status.phase);
    match command {
        LifecycleCommand::Reset if phase != Phase::Running => Err(ApiError::not_now(
            name,
            &format!("Failed to reset non-running VMI with phase {}", phase.as_str()),
        )),
        LifecycleCommand::Pause if phase != Phase::Running => {
            Err(ApiError::not_now(name, "VM is not running"))
        }
        LifecycleCommand::Unpause | LifecycleCommand::SoftReboot if phase != Phase::Running => {
            Err(ApiError::not_now(name, "VMI is not running"))
        }
        LifecycleCommand::Pause if has_liveness_probe(vmi) => {
            Err(ApiError::forbidden("Pausing VMIs with LivenessProbe is currently not supported"))
        }
        // Soft reboot through the guest agent is not implemented.
        LifecycleCommand::SoftReboot if !has_acpi(vmi) => {
            Err(ApiError::not_now(name, "VMI neither have the agent connected nor the ACPI feature enabled"))
        }
        _ => Ok(()),
    }
}

/// Checks the paused state in the status, with KubeVirt's errors.
fn check_paused(vmi: &VirtualMachineInstance, command: LifecycleCommand) -> Result<(), ApiError> {
    let why = match (command, is_paused(vmi)) {
        (LifecycleCommand::Pause, true) => "VMI is already paused",
        (LifecycleCommand::Unpause, false) => "VMI is not paused",
        (LifecycleCommand::SoftReboot, true) => "VMI is paused",
        _ => return Ok(()),
    };
    Err(ApiError::not_now(&vmi.metadata.name, why))
}

/// Whether the status says that a VMI is paused.
pub(super) fn is_paused(vmi: &VirtualMachineInstance) -> bool {
    ConditionType::Paused.holds(&vmi.status)
}

fn has_liveness_probe(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.liveness_probe.as_ref().is_some_and(|probe| probe.guest_agent_ping.is_none())
}

fn has_acpi(vmi: &VirtualMachineInstance) -> bool {
    let acpi = vmi.spec.domain.features.as_ref().and_then(|features| features.acpi.as_ref());
    acpi.is_none_or(|acpi| acpi.enabled != Some(false))
}

#[cfg(test)]
mod tests {
    use vireo_api::v1::Condition;

    use super::*;

    fn vmi(phase: &str, paused: bool) -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance::default();
        vmi.status.phase = phase.to_owned();
        if paused {
            let paused = Condition { r#type: "Paused".into(), status: "True".into(), ..Condition::default() };
            vmi.status.conditions.push(paused);
        }
        vmi
    }

    #[test]
    fn the_answers_are_kubevirts() {
        use LifecycleCommand::{Pause, Reset, SoftReboot, Unpause};
        let actual = |vmi: &VirtualMachineInstance, command| {
            let actual = check(vmi, command).and_then(|()| check_paused(vmi, command));
            actual.err().map(|fault| (fault.code.as_u16(), fault.message))
        };
        for (phase, paused, command, expected) in [
            ("Running", false, Pause, None),
            ("Running", true, Pause, Some("VMI is already paused")),
            ("Scheduled", false, Pause, Some("VM is not running")),
            ("Running", true, Unpause, None),
            ("Running", false, Unpause, Some("VMI is not paused")),
            ("Running", true, Reset, None),
            ("Failed", false, Reset, Some("non-running VMI with phase Failed")),
            ("Running", false, SoftReboot, None),
            ("Running", true, SoftReboot, Some("VMI is paused")),
        ] {
            let actual = actual(&vmi(phase, paused), command);
            match expected {
                None => assert_eq!(actual, None, "{phase} {command:?}"),
                Some(text) => {
                    assert!(actual.is_some_and(|(code, actual)| code == 409 && actual.ends_with(text)))
                }
            }
        }
        let mut probed = vmi("Running", false);
        probed.spec.liveness_probe = Some(Default::default());
        assert_eq!(actual(&probed, Pause).map(|(code, _)| code), Some(403));
        let mut bare = vmi("Running", false);
        bare.spec.domain.features.get_or_insert_default().acpi.get_or_insert_default().enabled = Some(false);
        assert!(actual(&bare, SoftReboot).is_some_and(|(_, actual)| actual.contains("ACPI")));
    }
}
