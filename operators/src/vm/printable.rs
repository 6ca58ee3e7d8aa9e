use vireo_api::v1::{VirtualMachine, VirtualMachineInstance};

use super::decide::Action;
use super::life::{Life, holds, lacks};
use super::strategy::RunStrategy;

/// The status for people: the first that fits, in KubeVirt's order. `provisioning` is that of a VM without an instance by
/// its DataVolumes.
pub(super) fn printable(
    vm: &VirtualMachine,
    instance: Option<&VirtualMachineInstance>,
    action: &Action,
    provisioning: Option<&'static str>,
    (strategy, failing): (Option<RunStrategy>, bool),
) -> &'static str {
    let life = Life::of(instance);
    if vm.metadata.deletion_timestamp.is_some() {
        return "Terminating";
    }
    if life == Life::Stopping || life == Life::Alive && *action == Action::DeleteVmi {
        return "Stopping";
    }
    // It has failed, so that it is not alive.
    if instance.is_some_and(|instance| lacks(instance, "Synchronized", "FailedDataVolumeImport")) {
        return "DataVolumeError";
    }
    if let Some(instance) = instance.filter(|_| !life.is_over())
        && let Some(status) = of_alive(instance)
    {
        return status;
    }
    if let Some(status) = provisioning.filter(|_| life.is_over()) {
        return status;
    }
    if matches!(action, Action::CreateVmi(_)) || life == Life::Alive {
        return "Starting";
    }
    if failing && strategy.is_some_and(RunStrategy::backs_off) {
        return "CrashLoopBackOff";
    }
    "Stopped"
}

fn of_alive(instance: &VirtualMachineInstance) -> Option<&'static str> {
    let status = &instance.status;
    let migration = status.migration_state.as_ref();
    let migrating =
        migration.is_some_and(|state| state.start_timestamp.is_some() && state.end_timestamp.is_none());
    let lacks = |reason: &str| lacks(instance, "Synchronized", reason);
    match status.phase.as_str() {
        _ if migrating => Some("Migrating"),
        "Running" if holds(instance, "Paused") => Some("Paused"),
        "Running" => Some("Running"),
        _ if lacks("FailedPvcNotFound") => Some("ErrorPvcNotFound"),
        _ if super::life::lacks(instance, "PodScheduled", "Unschedulable") => Some("ErrorUnschedulable"),
        _ if super::life::lacks(instance, "DataVolumesReady", "NotAllDVsReady")
            || lacks("PvcNotPopulated") =>
        {
            Some("Provisioning")
        }
        _ if lacks("PvcNotBound") => Some("WaitingForVolumeBinding"),
        _ if ["ErrImagePull", "ErrImageNeverPull", "InvalidImageName"].into_iter().any(lacks) => {
            Some("ErrImagePull")
        }
        _ if lacks("ImagePullBackOff") => Some("ImagePullBackOff"),
        "" | "Pending" | "Scheduling" | "Scheduled" => Some("Starting"),
        _ => Some("Unknown"),
    }
}
