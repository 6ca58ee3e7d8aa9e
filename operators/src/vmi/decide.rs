//! What to do next about an instance and its launcher Pods: a pure function of what is observed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use vireo_api::names::{COMPUTE, NODE_LABEL, OUTDATED_LABEL, VMI_FINALIZER};
use vireo_api::v1::{Condition, VirtualMachineInstance, VirtualMachineInstanceStatus as Status};

use super::pod_events::Warning;
use super::{Launcher, LauncherPod, StartedBy, Wait, consumer, networks};
use crate::conditions::{set, set_false};

/// The condition of an instance while its Pod is not bound to a node.
const POD_SCHEDULED: &str = super::pod::POD_SCHEDULED;
/// The condition of an instance that says why it is not as its specification says; KubeVirt's.
const SYNCHRONIZED: &str = "Synchronized";
/// The condition of an instance that says whether its DataVolumes are filled, and why they are not; KubeVirt's.
const DATA_VOLUMES_READY: &str = "DataVolumesReady";
const NOT_ALL_READY: &str = "NotAllDVsReady";
/// The condition of an instance while its DataVolumes are being filled, or get the consumer that they wait for; KubeVirt's.
const PROVISIONING: &str = "Provisioning";
/// The condition of an instance that serves.
const READY: &str = "Ready";
/// The reason of an instance that was on a node that is not heard of; KubeVirt's.
const NODE_UNRESPONSIVE: &str = "NodeUnresponsive";

/// The reason of an instance whose Pod cannot be created; KubeVirt's.
const NO_POD: &str = "FailedCreate";

/// How long a Pod may take until it runs without a write that says so: most need less.
pub(super) const PREPARATION: Duration = Duration::from_secs(10);

/// What is observed of an instance.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The instance.
    pub vmi: &'a VirtualMachineInstance,
    /// The launcher Pods that it controls.
    pub pods: &'a [&'a LauncherPod],
    /// The Pods that are the first consumers of its claims.
    pub consumers: &'a [&'a LauncherPod],
    /// Why its Pod is not created, of which nothing else here tells.
    pub failure: Option<&'a str>,
    /// What it waits for before it gets a Pod.
    pub wait: Option<&'a Wait>,
    /// What keeps its Pod from its start on its node, as events tell it.
    pub warning: Option<&'a Warning>,
    /// What launchers have in common.
    pub launcher: &'a Launcher,
    /// Whether the node that it was handed over to is not heard of.
    pub is_node_unresponsive: bool,
    /// The time.
    pub now: Timestamp,
}

/// A write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create the launcher Pod, bound to a node where the instance has one already.
    CreatePod(Option<String>),
    /// Create the Pod that is the first consumer of its claims.
    CreateConsumer,
    /// Delete the one of this UID.
    DeleteConsumer(String),
    /// Hand the instance over to the node agent of a node.
    HandOver(String),
    /// Delete the Pod of this UID.
    DeletePod(String),
    /// Have Multus attach the Pod of this UID to these networks and no others: the value of its annotation.
    AttachNetworks(String, String),
    /// Say by its label whether the launcher of the instance runs another image than this release's.
    MarkOutdated(bool),
    /// Remove the finalizer of the instance: no node agent knows of it.
    Release,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The status that the instance is to have before the steps.
    pub status: Status,
    /// In this order.
    pub steps: Vec<Step>,
    /// Why the Pod is not bound to a node, where that is new.
    pub unschedulable: Option<String>,
    /// Why it has failed with its node, where that is new.
    pub unresponsive: Option<String>,
    /// When to decide again though nothing changes.
    pub again: Option<Duration>,
}

/// Decides about an instance.
pub fn decide(observed: &Observed<'_>) -> Decision {
    let vmi = observed.vmi;
    let mut decision = Decision {
        status: vmi.status.clone(),
        steps: Vec::new(),
        unschedulable: None,
        unresponsive: None,
        again: None,
    };
    let is_deleted = vmi.metadata.deletion_timestamp.is_some();
    let node = node(vmi);
    // Where its Pod is gone, it is still known that there was one. The node agent notes the first one with its first
    // status, which saves a write.
    let is_noted = has_started(vmi) || !vmi.status.active_pods.is_empty();
    if node.is_some() && is_noted && !observed.pods.is_empty() {
        decision.status.active_pods = active_pods(observed.pods);
    }
    if node.is_some() && is_noted && !is_deleted && !is_final(vmi) {
        note_image(observed, &mut decision);
    }
    if node.is_some() && vmi.status.phase == "Running" && !is_deleted {
        attach_networks(observed, &mut decision);
    }
    match node {
        // No node agent reports that it has ended.
        Some(node) if observed.is_node_unresponsive && !observed.pods.iter().any(|pod| pod.may_run()) => {
            fail_with_node(node, observed, &mut decision);
        }
        // The node agent has it, and ends it.
        Some(node) if is_deleted || is_final(vmi) => {
            if is_deleted && !vmi.metadata.labels.contains_key(NODE_LABEL) {
                decision.steps.push(Step::HandOver(node.to_owned()));
            }
        }
        // It ran before there were launcher Pods.
        Some(node)
            if observed.pods.is_empty() && vmi.status.active_pods.is_empty() && ran_before_pods(vmi) =>
        {
            decision.steps.push(Step::CreatePod(Some(node.to_owned())));
            if !vmi.metadata.labels.contains_key(NODE_LABEL) {
                decision.steps.push(Step::HandOver(node.to_owned()));
            }
        }
        // Where a Pod is gone, the node agent ends the guest and reports it.
        Some(_) => {}
        None if is_deleted || is_final(vmi) => end(observed, &mut decision),
        None => start(observed, &mut decision),
    }
    decision
}

/// The node that an instance is handed over to: by the label, or as releases before it noted it.
fn node(vmi: &VirtualMachineInstance) -> Option<&str> {
    let noted = Some(vmi.status.node_name.as_str()).filter(|node| !node.is_empty());
    vmi.metadata.labels.get(NODE_LABEL).map(String::as_str).or(noted)
}

/// Whether the node agent has reported its launcher.
fn has_started(vmi: &VirtualMachineInstance) -> bool {
    ["Scheduled", "Running"].contains(&vmi.status.phase.as_str()) || is_final(vmi)
}

/// Whether an instance without any noted Pod was started by a release that made none, and not handed over just now.
fn ran_before_pods(vmi: &VirtualMachineInstance) -> bool {
    has_started(vmi) || !vmi.metadata.labels.contains_key(NODE_LABEL)
}

/// Whether an instance is to be brought to a node.
pub(super) fn is_starting(vmi: &VirtualMachineInstance) -> bool {
    node(vmi).is_none() && vmi.metadata.deletion_timestamp.is_none() && !is_final(vmi)
}

fn is_final(vmi: &VirtualMachineInstance) -> bool {
    super::is_final(&vmi.status.phase)
}

/// Notes the image of the launcher, and whether that is of another release. The launcher that a node agent starts has no
/// image.
fn note_image(observed: &Observed<'_>, decision: &mut Decision) {
    let Launcher { image, started_by, .. } = observed.launcher;
    let running = observed.pods.iter().filter(|pod| !pod.is_final()).min_by_key(|pod| age(pod));
    let Some(pod) = running.filter(|_| *started_by == StartedBy::Kubelet) else { return };
    pod.image().clone_into(&mut decision.status.launcher_container_image_version);
    let is_outdated = pod.is_outdated(image);
    if is_outdated != observed.vmi.metadata.labels.contains_key(OUTDATED_LABEL) {
        decision.steps.push(Step::MarkOutdated(is_outdated));
    }
}

/// Has the Pod of an instance that runs follow its NICs. What the node agent starts is in no Pod that Multus could attach.
fn attach_networks(observed: &Observed<'_>, decision: &mut Decision) {
    let Launcher { started_by: StartedBy::Kubelet, .. } = observed.launcher else { return };
    let Some(pod) = current(observed.pods).filter(|pod| !pod.is_final()) else { return };
    if let Some(networks) = networks::changed(observed.vmi, pod.networks()) {
        decision.steps.push(Step::AttachNetworks(pod.metadata.uid.clone(), networks));
    }
}

/// The UIDs of the Pods that may run the instance, with their nodes.
fn active_pods(pods: &[&LauncherPod]) -> BTreeMap<String, String> {
    let active = pods.iter().filter(|pod| !pod.is_final());
    active.filter_map(|pod| Some((pod.metadata.uid.clone(), pod.node()?.to_owned()))).collect()
}

/// Ends an instance that no node agent knows of.
fn end(observed: &Observed<'_>, decision: &mut Decision) {
    let living = observed.pods.iter().filter(|pod| !pod.is_deleted());
    decision.steps.extend(living.map(|pod| Step::DeletePod(pod.metadata.uid.clone())));
    let consumers = observed.consumers.iter().filter(|pod| !pod.is_deleted());
    decision.steps.extend(consumers.map(|pod| Step::DeleteConsumer(pod.metadata.uid.clone())));
    if !observed.pods.is_empty() || observed.vmi.metadata.deletion_timestamp.is_none() {
        return;
    }
    if !is_final(observed.vmi) {
        "Failed".clone_into(&mut decision.status.phase);
    }
    release(observed.vmi, decision);
}

/// Lets an instance go that is being deleted.
fn release(vmi: &VirtualMachineInstance, decision: &mut Decision) {
    let is_deleted = vmi.metadata.deletion_timestamp.is_some();
    if is_deleted && vmi.metadata.finalizers.iter().any(|one| one == VMI_FINALIZER) {
        decision.steps.push(Step::Release);
    }
}

/// Ends an instance whose node is not heard of, and whose Pods do not run.
fn fail_with_node(node: &str, observed: &Observed<'_>, decision: &mut Decision) {
    if !is_final(observed.vmi) {
        let why = format!("virt-handler on node {node} is not responsive, and no Pod runs the instance");
        let status = &mut decision.status;
        "Failed".clone_into(&mut status.phase);
        NODE_UNRESPONSIVE.clone_into(&mut status.reason);
        set_false(&mut status.conditions, READY, Some((NODE_UNRESPONSIVE, &why)), observed.now);
        decision.unresponsive = Some(why);
    }
    release(observed.vmi, decision);
}

/// Brings an instance to a node.
fn start(observed: &Observed<'_>, decision: &mut Decision) {
    let current = current(observed.pods);
    let surplus = observed.pods.iter().filter(|pod| !pod.is_deleted());
    let surplus =
        surplus.filter(|pod| current.is_some_and(|current| current.metadata.uid != pod.metadata.uid));
    decision.steps.extend(surplus.map(|pod| Step::DeletePod(pod.metadata.uid.clone())));
    let status = &mut decision.status;
    let Some(pod) = current else {
        let failed = observed.wait.and_then(Wait::failure);
        let filling = observed.wait.and_then(Wait::filling).map(|why| (NOT_ALL_READY, why));
        let failure = observed.failure.map(|why| (NO_POD, why));
        let failed = match observed.wait {
            Some(Wait::Consumer(_)) => failure.or(failed),
            // No Pod is created meanwhile, so that an earlier failure says nothing.
            Some(_) => failed,
            None => failure,
        };
        set_false(&mut status.conditions, SYNCHRONIZED, failed, observed.now);
        set_false(&mut status.conditions, DATA_VOLUMES_READY, filling, observed.now);
        let provisioning = observed.wait.and_then(Wait::provisioning);
        set(&mut status.conditions, PROVISIONING, "True", provisioning, observed.now);
        let is_consumed = consumer::decide(observed, decision);
        report_unbound(consumer::unbound(observed), observed, decision);
        let status = &mut decision.status;
        match observed.wait {
            Some(Wait::Failed(_)) => {
                "Failed".clone_into(&mut status.phase);
                Wait::FAILED.clone_into(&mut status.reason);
            }
            Some(_) => {}
            // A Pod that is being deleted may hold what the next one needs.
            None if observed.pods.is_empty() && !is_consumed => decision.steps.push(Step::CreatePod(None)),
            None => {}
        }
        return;
    };
    if pod.is_final() {
        "Failed".clone_into(&mut status.phase);
        let why = match (pod.status.reason.as_str(), pod.init_failure()) {
            ("", Some(init)) => ("PodFailed", init.message.trim()),
            ("", None) => {
                ("PodFailed", "the launcher Pod ended before the instance was handed over to its node")
            }
            (reason, _) => (reason, pod.status.message.as_str()),
        };
        why.0.clone_into(&mut status.reason);
        set_false(&mut status.conditions, SYNCHRONIZED, Some(why), observed.now);
        return;
    }
    let failure = pod
        .container_failure()
        .map(|failure| (failure.reason.as_str(), failure.message.as_str()))
        .or_else(|| observed.warning.map(|warning| (warning.reason.as_str(), warning.message.as_str())));
    set_false(&mut status.conditions, SYNCHRONIZED, failure, observed.now);
    let unbound = pod.unbound();
    report_unbound(unbound, observed, decision);
    let status = &mut decision.status;
    let is_ready = match observed.launcher.started_by {
        StartedBy::NodeAgent => true,
        StartedBy::Kubelet => pod.runs(COMPUTE),
    };
    // One that goes to its node at once needs no write of its own for that. Others may wait there, for a volume of an object
    // that does not exist, for example.
    let left = (!is_ready).then(|| preparation(pod, observed.now)).flatten();
    if unbound.is_some() || failure.is_some() || left == Some(Duration::ZERO) {
        "Scheduling".clone_into(&mut status.phase);
    }
    decision.again = left.filter(|left| !left.is_zero());
    if let Some(node) = pod.node().filter(|_| is_ready) {
        decision.steps.push(Step::HandOver(node.to_owned()));
    }
}

/// How much of [`PREPARATION`] a Pod has left; none where it is not known how old it is.
fn preparation(pod: &LauncherPod, now: Timestamp) -> Option<Duration> {
    time_since_creation(pod, now).map(|age| PREPARATION.saturating_sub(age))
}

/// How old a Pod is, if that is known.
pub(super) fn time_since_creation(pod: &LauncherPod, now: Timestamp) -> Option<Duration> {
    let created: Timestamp = pod.metadata.creation_timestamp.as_deref()?.parse().ok()?;
    // Clocks differ: one that is created later is new.
    Some(Duration::try_from(now.duration_since(created)).unwrap_or_default())
}

/// The Pod that is to run an instance.
pub(super) fn current<'a>(pods: &[&'a LauncherPod]) -> Option<&'a LauncherPod> {
    pods.iter().copied().filter(|pod| !pod.is_deleted()).min_by_key(|pod| age(pod))
}

/// Has the instance say why its Pod is not bound to a node, while it has one that is not.
fn report_unbound(unbound: Option<&Condition>, observed: &Observed<'_>, decision: &mut Decision) {
    let why = unbound.map(|condition| (condition.reason.as_str(), condition.message.as_str()));
    if set_false(&mut decision.status.conditions, POD_SCHEDULED, why, observed.now) {
        decision.unschedulable = unbound.map(|condition| condition.message.clone());
    }
}

/// The Pod that was created first is the current one.
fn age(pod: &LauncherPod) -> (Option<String>, String) {
    (pod.metadata.creation_timestamp.clone(), pod.metadata.uid.clone())
}

#[cfg(test)]
mod tests;
