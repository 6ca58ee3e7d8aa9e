//! Instances whose launchers are outdated, that is, were made for another image than this release's. Their Pods are evicted
//! where `workloadUpdateStrategy` of the KubeVirt object says so: which of them and when is a pure function of what is
//! observed.

pub mod controller;
mod strategy;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use vireo_api::names::OUTDATED_LABEL;
use vireo_api::v1::VirtualMachineInstance;

use crate::vmi::LauncherPod;
pub use strategy::{LIVE_MIGRATE, Strategy};

/// An instance and the launcher Pods that it controls.
#[derive(Debug, Clone)]
pub struct Workload<'a> {
    /// The instance.
    pub vmi: &'a VirtualMachineInstance,
    /// Its Pods.
    pub pods: Vec<&'a LauncherPod>,
}

impl<'a> Workload<'a> {
    /// Its launcher Pod, if that is outdated.
    fn outdated_pod(&self, image: &str) -> Option<&'a LauncherPod> {
        let running = self.pods.iter().filter(|pod| !pod.is_final());
        let pod = running.min_by_key(|pod| (&pod.metadata.creation_timestamp, &pod.metadata.uid))?;
        (is_marked(self.vmi) && pod.is_outdated(image)).then_some(*pod)
    }
}

/// Whether an instance runs and is marked as outdated.
fn is_marked(vmi: &VirtualMachineInstance) -> bool {
    vmi.status.phase == "Running"
        && vmi.metadata.deletion_timestamp.is_none()
        && vmi.metadata.labels.contains_key(OUTDATED_LABEL)
}

/// What was evicted, or tried to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attempts {
    /// When the last batch was.
    last: Option<Timestamp>,
    /// When each Pod was in a batch the last time, by its UID.
    of_pods: BTreeMap<String, Timestamp>,
}

/// What is observed.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// All instances that may be outdated.
    pub workloads: &'a [Workload<'a>],
    /// The launcher image of this release.
    pub image: &'a str,
    /// What is to be done with outdated instances.
    pub strategy: Strategy,
    /// Whether all components are of this release: until then, nothing is evicted.
    pub is_rolled_out: bool,
    /// What was done before.
    pub attempts: &'a Attempts,
    /// The time.
    pub now: Timestamp,
}

/// What is to be done.
#[derive(Debug, Clone, Default)]
pub struct Decision<'a> {
    /// How many instances are outdated.
    pub outdated: usize,
    /// The instances of this batch, and their Pods, which are to be evicted.
    pub evict: Vec<(&'a VirtualMachineInstance, &'a LauncherPod)>,
    /// After this batch.
    pub attempts: Attempts,
    /// When to decide again without a change.
    pub recheck: Option<Duration>,
}

/// Decides which Pods are evicted now.
pub fn decide<'a>(observed: &Observed<'a>) -> Decision<'a> {
    let Observed { workloads, strategy, attempts, now, .. } = *observed;
    let outdated = workloads.iter().filter_map(|one| Some((one.vmi, one.outdated_pod(observed.image)?)));
    let outdated: Vec<_> = outdated.collect();
    let mut decision =
        Decision { outdated: outdated.len(), attempts: attempts.clone(), ..Decision::default() };
    // Those that are being deleted end already.
    let mut candidates: Vec<_> = outdated.into_iter().filter(|(_, pod)| !pod.is_deleted()).collect();
    let of_pods = &mut decision.attempts.of_pods;
    of_pods.retain(|uid, _| candidates.iter().any(|(_, pod)| pod.metadata.uid == *uid));
    if !strategy.evicts || !observed.is_rolled_out || candidates.is_empty() {
        return decision;
    }
    let since = attempts.last.and_then(|last| Duration::try_from(now.duration_since(last)).ok());
    if let Some(left) =
        since.and_then(|since| strategy.interval.checked_sub(since)).filter(|left| !left.is_zero())
    {
        decision.recheck = Some(left);
        return decision;
    }
    // Those whose eviction is denied must not keep the others from their turn.
    candidates.sort_by_key(|(vmi, pod)| {
        (of_pods.get(&pod.metadata.uid).copied(), &vmi.metadata.namespace, &vmi.metadata.name)
    });
    candidates.truncate(strategy.batch);
    of_pods.extend(candidates.iter().map(|(_, pod)| (pod.metadata.uid.clone(), now)));
    decision.attempts.last = Some(now);
    decision.recheck = Some(strategy.interval);
    decision.evict = candidates;
    decision
}

#[cfg(test)]
mod tests;
