//! The VMI's status as KubeVirt reports it: a pure function of the previous status and the current facts.

mod agent;
mod condition;
mod ending;
mod interfaces;
mod pause;
mod volume;

pub use condition::ConditionType;
pub(super) use ending::{End, Lost, end, end_before_start, out_of_memory, record_end, unhealthy_end};
pub(crate) use ending::{GRACE_EXPIRED, KILLED};
pub(crate) use interfaces::primary;
pub use pause::{PAUSED_IO_ERROR, io_errors};
pub(super) use volume::note_pulls;

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::hotplug::LINK_FAILED;
use super::memory_dump::DUMP_FAILED;
use super::nics::NIC_FAILED;
pub(crate) use super::nics::NO_POD_INTERFACE;
use super::volumes;
use crate::network::bridge::Bridged;
use crate::node::Attachments;
use crate::storage::{NO_CLAIM, NO_IMAGE, NOT_BOUND};
use vireo_api::spec::{NATIVE, Vm, single_host_notices};
use vireo_api::v1::{
    Condition, CpuTopology, MemoryStatus, PhaseTransitionTimestamp, Quantity, VirtualMachineInstanceSpec,
    VirtualMachineInstanceStatus as Status,
};
use vireo_proto::launcher::{State, hypervisor, state};

/// The prefix of the Ready condition's message when a readinessProbe fails.
const READINESS_FAILED: &str = "Readiness probe failed: ";

const NOT_READY: &str = "ContainersNotReady";
const TERMINATING: &str = "PodTerminating";
const LIVENESS_FAILED: &str = "LivenessProbeFailed";

/// The status of a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeStatus {
    /// Whether the guest is healthy; unknown until a threshold is reached.
    pub healthy: Option<bool>,
    /// Why the last probe failed; empty while the guest is healthy.
    pub cause: String,
}

/// KubeVirt's phases that a node sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Accepted.
    Pending,
    /// Its network and disks are being prepared.
    Scheduling,
    /// Its launcher runs.
    Scheduled,
    /// Its guest runs.
    Running,
    /// Its guest ended well.
    Succeeded,
    /// Its guest ended badly or never began.
    Failed,
}

impl Phase {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Scheduling => "Scheduling",
            Self::Scheduled => "Scheduled",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Parses the API's spelling; an unknown phase counts as Pending.
    pub fn parse(text: &str) -> Self {
        let all = [Self::Scheduling, Self::Scheduled, Self::Running, Self::Succeeded, Self::Failed];
        all.into_iter().find(|phase| phase.as_str() == text).unwrap_or(Self::Pending)
    }

    /// Whether the VMI never leaves this phase.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The reason of a VMI whose launcher Pod is not on the node yet.
pub(super) const NO_POD: &str = "LauncherPodNotFound";
/// The reason of a VMI whose launcher Pod has not the virtual function of a network.
pub(super) const NO_FUNCTION: &str = "VirtualFunctionNotFound";

/// Why the last action failed; it is retried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncError {
    /// The reason in CamelCase, for programs.
    pub reason: &'static str,
    /// The whole chain of causes.
    pub message: String,
}

impl SyncError {
    /// Whether it is about hotplugged volumes.
    pub(super) fn is_about_volumes(&self) -> bool {
        [volumes::HOTPLUG_FAILED, DUMP_FAILED].contains(&self.reason) || self.is_about_claims()
    }

    /// Whether it is about NICs that change while the guest runs.
    pub(super) fn is_about_nics(&self) -> bool {
        [LINK_FAILED, NIC_FAILED, NO_POD_INTERFACE].contains(&self.reason)
    }

    /// Whether its launcher Pod can resolve it.
    pub(super) fn is_about_pods(&self) -> bool {
        [NO_POD, NO_FUNCTION, NO_POD_INTERFACE].contains(&self.reason)
    }

    /// Whether a new claim, its disk or its image can resolve it.
    pub(super) fn is_about_claims(&self) -> bool {
        [NO_CLAIM, NO_IMAGE, NOT_BOUND].contains(&self.reason)
    }
}

/// The input of a status.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The phase.
    pub phase: Phase,
    /// The spec, as far as it can be read.
    pub vm: Option<&'a Vm>,
    /// The spec as the API has it, on a single host, where more of it has no effect.
    pub on_single_host: Option<&'a VirtualMachineInstanceSpec>,
    /// The launcher's last state, while it runs.
    pub state: Option<&'a State>,
    /// The status of the readinessProbe, if there is one and the guest runs.
    pub readiness: Option<&'a ProbeStatus>,
    /// What became of the keys and passwords that the guest agent sets, where that is known.
    pub credentials: Option<&'a Result<(), String>>,
    /// The attachment Pods of its claims that run, where the kubelet mounts claims.
    pub(super) attachments: Option<&'a Attachments>,
    /// The VMI's addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// The interfaces of its Pod that its guest has taken over.
    pub bridged: &'a Bridged,
    /// The interfaces of its Pod that Multus has reported.
    pub multus: &'a BTreeSet<String>,
    /// The last error.
    pub sync_error: Option<&'a SyncError>,
    /// The manifest differs from what runs.
    pub manifest_changed: bool,
    /// This node.
    pub node: &'a str,
    /// RFC 3339.
    pub now: &'a str,
}

/// The next status.
pub fn next(before: &Status, facts: &Facts<'_>) -> Status {
    let mut status = before.clone();
    facts.node.clone_into(&mut status.node_name);
    enter(&mut status, facts.phase, facts.now);
    if let Some(vm) = facts.vm {
        describe(&mut status, vm, facts);
    }
    if let Some(cid) = facts.state.map(|state| state.vsock_cid).filter(|cid| *cid != 0) {
        status.vsock_cid = Some(cid);
    }
    agent::apply(&mut status, facts.state.and_then(|state| state.agent.as_ref()));
    interfaces::note_multus(&mut status.interfaces, facts.multus);
    conditions(&mut status, facts);
    status
}

/// Sets the phase and records when it was first entered.
pub(super) fn enter(status: &mut Status, phase: Phase, now: &str) {
    phase.as_str().clone_into(&mut status.phase);
    let noted = &mut status.phase_transition_timestamps;
    if noted.iter().all(|entry| entry.phase != phase.as_str()) {
        noted.push(PhaseTransitionTimestamp {
            phase: phase.as_str().to_owned(),
            phase_transition_timestamp: Some(now.to_owned()),
            ..PhaseTransitionTimestamp::default()
        });
    }
}

fn describe(status: &mut Status, vm: &Vm, facts: &Facts<'_>) {
    if facts.phase == Phase::Running {
        let memory = Some(Quantity(vm.memory().guest().to_string()));
        status.memory = Some(MemoryStatus {
            guest_at_boot: memory.clone(),
            guest_current: memory.clone(),
            guest_requested: memory,
            ..MemoryStatus::default()
        });
        status.current_cpu_topology = Some(CpuTopology {
            sockets: Some(vm.cpu().sockets()),
            cores: Some(vm.cpu().cores()),
            threads: Some(vm.cpu().threads()),
            ..CpuTopology::default()
        });
    }
    status.volume_status = volume::statuses(&status.volume_status, vm, facts);
    status.interfaces = interfaces::statuses(vm, facts);
}

fn conditions(status: &mut Status, facts: &Facts<'_>) {
    let paused = facts.state.filter(|state| state.phase() == state::Phase::Paused);
    let ready = ready(status, facts, paused.is_some());
    let mut set = |kind: ConditionType, value: Option<(bool, &str, String)>| {
        kind.put(&mut status.conditions, value, facts.now);
    };
    set(ConditionType::Ready, Some(ready));
    set(ConditionType::Paused, paused.map(pause::condition));
    let agent = facts.state.and_then(|state| state.agent.as_ref());
    set(ConditionType::AgentConnected, agent.map(|_| (true, "", String::new())));
    // KubeVirt's clients read the reason.
    let lacking = agent.and_then(agent::lacks);
    set(
        ConditionType::AgentVersionNotSupported,
        lacking.map(|commands| (true, "This guest agent lacks commands", commands)),
    );
    if let Some(credentials) = facts.credentials {
        let failed = credentials.as_ref().err().cloned().unwrap_or_default();
        set(ConditionType::AccessCredentialsSynchronized, Some((credentials.is_ok(), "", failed)));
    }
    set(
        ConditionType::LiveMigratable,
        Some((false, "NotImplemented", "live migration is not available yet".to_owned())),
    );
    // Keep the reason of a VMI that has failed.
    if !(facts.phase == Phase::Failed && facts.sync_error.is_none()) {
        let failed =
            facts.sync_error.map(|sync_error| (false, sync_error.reason, sync_error.message.clone()));
        set(ConditionType::Synchronized, failed.or_else(|| without_effect(facts.vm?, facts.on_single_host)));
    }
    set(ConditionType::ManifestChanged, facts.manifest_changed.then(|| {
        let message = "the manifest differs from what runs; a VMI cannot change while it exists: delete its manifest, \
                       wait until it is gone, and create it again";
        (true, "SpecIsImmutable", message.to_owned())
    }));
    set(ConditionType::NoBootableDevice, facts.state.is_some_and(|state| state.no_boot_device).then(|| {
        let message = "the firmware found nothing to start: no disk that it tries has a boot loader for it; a disk \
                       with a boot loader for EFI needs spec.domain.firmware.bootloader.efi, and where a device has \
                       a bootOrder, only such devices are tried";
        (true, "NoBootableDevice", message.to_owned())
    }));
    if let Some(chosen) = facts.state.and_then(|state| state.hypervisor.as_ref()) {
        let name = match chosen.kind() {
            hypervisor::Kind::Unspecified => "unknown",
            hypervisor::Kind::Native => NATIVE,
            hypervisor::Kind::Qemu => "qemu",
        };
        set(ConditionType::Hypervisor, Some((true, name, chosen.reason.clone())));
    }
}

/// What of its spec has no effect, if anything.
fn without_effect(
    vm: &Vm,
    on_single_host: Option<&VirtualMachineInstanceSpec>,
) -> Option<(bool, &'static str, String)> {
    let on_single_host = on_single_host.map(single_host_notices).unwrap_or_default();
    let notices: Vec<String> = vm.notices().iter().chain(&on_single_host).map(ToString::to_string).collect();
    (!notices.is_empty()).then(|| (true, "FieldsWithoutEffect", notices.join("; ")))
}

/// Whether the guest is ready, and else why not.
fn ready(before: &Status, facts: &Facts<'_>, paused: bool) -> (bool, &'static str, String) {
    if facts.phase != Phase::Running {
        return (false, "GuestNotRunning", "Guest VM is not reported as running".to_owned());
    }
    if paused {
        return pause::not_ready();
    }
    if let Some(condition) = ConditionType::PodTerminating.find(before) {
        return (false, TERMINATING, condition.message.clone());
    }
    if let Some(why) = unhealthy(before) {
        return (false, NOT_READY, why.to_owned());
    }
    let is_probed = facts.vm.is_some_and(|vm| vm.readiness_probe().is_some());
    let known = ConditionType::Ready.find(before);
    let was_ready = known.is_some_and(|known| known.status == "True");
    let last_message = known.filter(|known| known.reason == NOT_READY).map(|known| known.message.clone());
    match facts.readiness {
        _ if !is_probed => (true, "", String::new()),
        Some(ProbeStatus { healthy: Some(true), .. }) => (true, "", String::new()),
        // Until a threshold is reached, the previous status applies, also that of an earlier handler.
        None | Some(ProbeStatus { healthy: None, .. }) if was_ready => (true, "", String::new()),
        Some(ProbeStatus { cause, .. }) if !cause.is_empty() => {
            (false, NOT_READY, format!("{READINESS_FAILED}{cause}"))
        }
        None | Some(_) => {
            let not_yet = || "the readinessProbe has not succeeded yet".to_owned();
            (false, NOT_READY, last_message.unwrap_or_else(not_yet))
        }
    }
}

/// How the readinessProbe failed, if that is why the guest is not ready.
pub fn readiness_failure(status: &Status) -> Option<&str> {
    let ready = ConditionType::Ready.find(status).filter(|ready| ready.status == "False")?;
    Some(ready.message.as_str()).filter(|message| message.starts_with(READINESS_FAILED))
}

/// Why the VMI is not as its spec requests, if it is not.
pub(crate) fn failure(status: &Status) -> Option<&Condition> {
    ConditionType::Synchronized.find(status).filter(|condition| condition.status == "False")
}

/// Why the livenessProbe failed, if it did.
pub(super) fn unhealthy(status: &Status) -> Option<&str> {
    ConditionType::Unhealthy.find(status).map(|condition| condition.message.as_str())
}

/// Since when the guest is to be shut down because its livenessProbe failed, RFC 3339.
pub(super) fn unhealthy_since(status: &Status) -> Option<&str> {
    ConditionType::Unhealthy.find(status)?.last_transition_time.as_deref()
}

/// Sets the condition that the guest is to be shut down because its livenessProbe failed.
pub(super) fn mark_unhealthy(status: &mut Status, cause: &str, now: &str) {
    let message = format!("Liveness probe failed: {cause}");
    ConditionType::Unhealthy.put(&mut status.conditions, Some((true, LIVENESS_FAILED, message)), now);
}

/// Sets or removes the condition that limits of the launcher are not in force.
pub(super) fn note_limits(status: &mut Status, problem: Option<&str>, now: &str) {
    let value = problem.map(|problem| (true, "CgroupsNotAvailable", problem.to_owned()));
    ConditionType::LimitsNotInForce.put(&mut status.conditions, value, now);
}

/// Since when the guest is to be shut down because its launcher Pod is being deleted, RFC 3339.
pub(super) fn stopped_since(status: &Status) -> Option<&str> {
    ConditionType::PodTerminating.find(status)?.last_transition_time.as_deref()
}

/// Sets the condition that the guest is to be shut down because its launcher Pod is being deleted.
pub(super) fn stop(status: &mut Status, now: &str) {
    let message = "virt-launcher pod is terminating".to_owned();
    ConditionType::PodTerminating.put(&mut status.conditions, Some((true, TERMINATING, message)), now);
}

#[cfg(test)]
mod tests;
