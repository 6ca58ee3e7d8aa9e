//! A guest is paused, goes on, or is reset.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path as Segments, State};
use axum::http::Uri;
use serde::Deserialize;
use vireo_api::v1::VirtualMachineInstance;
use vireo_proto::launcher::{Steering, fault::Code};

use super::fault::Fault;
use super::{find, nowhere};
use crate::launcher::link::{self, LinkError};
use crate::node::Node;
use crate::reconcile::status::Phase;

/// KubeVirt's `PauseOptions` and its like.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    dry_run: Vec<String>,
}

/// `pause`, `unpause`, `reset` and `softreboot`; answers once it is done.
pub(super) async fn steer(
    State(node): State<Arc<Node>>,
    Segments((namespace, name, what)): Segments<(String, String, String)>,
    uri: Uri,
    body: Bytes,
) -> Result<(), Fault> {
    let Some(steering) = named(&what) else { return Err(nowhere(uri).await) };
    let options: Option<Options> = match body.trim_ascii() {
        [] => None,
        body => serde_json::from_slice(body)
            .map_err(|error| Fault::bad_request(format!("the options cannot be read: {error}")))?,
    };
    let dry_run = options.unwrap_or_default().dry_run;
    if let Some(odd) = dry_run.iter().find(|word| *word != "All") {
        return Err(Fault::bad_request(format!("dryRun: {odd:?} is not All")));
    }
    let vmi = find(&node, namespace, name)?;
    fits(&vmi, steering)?;
    if !dry_run.is_empty() {
        return fits_pause(&vmi, steering);
    }
    let uid = vmi.metadata.uid.parse().map_err(|_| Fault::internal("the VMI has no UID"))?;
    // Whether it is paused is better known to the launcher than to a status that follows it.
    link::steer(&node.state.machine(uid).launcher_socket(), steering).await.map_err(|error| match &error {
        LinkError::Refused(fault) if fault.code() == Code::Conflict => {
            Fault::not_now(&vmi.metadata.name, &fault.detail)
        }
        error => Fault::internal(link::chain(error)),
    })
}

fn named(what: &str) -> Option<Steering> {
    match what {
        "pause" => Some(Steering::Pause),
        "unpause" => Some(Steering::Unpause),
        "reset" => Some(Steering::Reset),
        "softreboot" => Some(Steering::SoftReboot),
        _ => None,
    }
}

/// Whether this may be done to a VMI at all, with KubeVirt's answers where not.
fn fits(vmi: &VirtualMachineInstance, steering: Steering) -> Result<(), Fault> {
    let name = &vmi.metadata.name;
    let phase = Phase::parse(&vmi.status.phase);
    match steering {
        Steering::Reset if phase != Phase::Running => Err(Fault::not_now(
            name,
            &format!("Failed to reset non-running VMI with phase {}", phase.as_str()),
        )),
        Steering::Pause if phase != Phase::Running => Err(Fault::not_now(name, "VM is not running")),
        Steering::Unpause | Steering::SoftReboot if phase != Phase::Running => {
            Err(Fault::not_now(name, "VMI is not running"))
        }
        Steering::Pause if has_liveness_probe(vmi) => {
            Err(Fault::forbidden("Pausing VMIs with LivenessProbe is currently not supported"))
        }
        // There is no guest agent to ask either.
        Steering::SoftReboot if !has_acpi(vmi) => {
            Err(Fault::not_now(name, "VMI neither have the agent connected nor the ACPI feature enabled"))
        }
        _ => Ok(()),
    }
}

/// The same about being paused, as far as the status knows.
fn fits_pause(vmi: &VirtualMachineInstance, steering: Steering) -> Result<(), Fault> {
    let paused = vmi.status.conditions.iter().any(|one| one.r#type == "Paused" && one.status == "True");
    let why = match (steering, paused) {
        (Steering::Pause, true) => "VMI is already paused",
        (Steering::Unpause, false) => "VMI is not paused",
        (Steering::SoftReboot, true) => "VMI is paused",
        _ => return Ok(()),
    };
    Err(Fault::not_now(&vmi.metadata.name, why))
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
        use Steering::{Pause, Reset, SoftReboot, Unpause};
        let told = |vmi: &VirtualMachineInstance, steering| {
            let told = fits(vmi, steering).and_then(|()| fits_pause(vmi, steering));
            told.err().map(|fault| (fault.code.as_u16(), fault.message))
        };
        for (phase, paused, steering, expected) in [
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
            let told = told(&vmi(phase, paused), steering);
            match expected {
                None => assert_eq!(told, None, "{phase} {steering:?}"),
                Some(text) => assert!(told.is_some_and(|(code, told)| code == 409 && told.ends_with(text))),
            }
        }
        let mut probed = vmi("Running", false);
        probed.spec.liveness_probe = Some(Default::default());
        assert_eq!(told(&probed, Pause).map(|(code, _)| code), Some(403));
        let mut bare = vmi("Running", false);
        bare.spec.domain.features.get_or_insert_default().acpi.get_or_insert_default().enabled = Some(false);
        assert!(told(&bare, SoftReboot).is_some_and(|(_, told)| told.contains("ACPI")));
    }
}
