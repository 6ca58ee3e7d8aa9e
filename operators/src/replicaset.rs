//! `VirtualMachineInstanceReplicaSet`: which instances there are to be.

pub mod controller;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use vireo_api::names::RESERVED_VMI_ANNOTATIONS;
use vireo_api::v1::{
    API_VERSION, Condition, ObjectMeta, OwnerReference, REPLICA_SET_KIND, VMI_KIND, VirtualMachineInstance,
    VirtualMachineInstanceReplicaSet, VirtualMachineInstanceReplicaSetStatus,
};

use crate::conditions::{Holds, has, standing};
use crate::selector;

/// Instances created or deleted at once: as KubeVirt.
const BURST: usize = 250;
/// How long an instance that failed before it ran counts as a replica, to limit the rate of failing creations.
const REST: SignedDuration = SignedDuration::from_secs(10);
const PAUSED: &str = "ReplicaPaused";
const FAILURE: &str = "ReplicaFailure";

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The set.
    pub set: &'a VirtualMachineInstanceReplicaSet,
    /// Those that it controls and those without controller, of its namespace. Their specs are not looked at.
    pub instances: &'a [&'a VirtualMachineInstance],
    /// Why the last instance could not be created.
    pub failure: Option<&'a str>,
    /// What time it is.
    pub now: Timestamp,
}

/// One thing to do. Instances are named by their UID.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create an instance.
    Create(Box<VirtualMachineInstance>),
    /// Delete one.
    Delete(String),
    /// Make the set its owner.
    Adopt(String, OwnerReference),
    /// Have the set own it no longer.
    Release(String),
}

/// What to write and what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The set's status.
    pub status: VirtualMachineInstanceReplicaSetStatus,
    /// What to do, in any order.
    pub steps: Vec<Step>,
    /// When to look again even if nothing changes.
    pub requeue_at: Option<Timestamp>,
    /// That it was paused (`true`) or resumed, if it was.
    pub paused: Option<bool>,
}

/// Decides about one set.
pub fn decide(observed: Observed<'_>) -> Decision {
    let Observed { set, instances, now, .. } = observed;
    let mine = Mine::of(set, instances, now);
    let mut steps = Vec::new();
    // A set that goes leaves its instances to the collector.
    if set.metadata.deletion_timestamp.is_none() {
        let adopted = mine.orphans.iter().map(|one| Step::Adopt(one.metadata.uid.clone(), owner(set)));
        steps.extend(adopted);
        steps.extend(mine.released.iter().map(|one| Step::Release(one.metadata.uid.clone())));
        if !set.spec.paused {
            scale(set, &mine, &mut steps);
        }
    }
    let was = set.status.conditions.iter().any(|one| one.r#type == PAUSED);
    let paused = (was != set.spec.paused).then_some(set.spec.paused);
    let ready = mine.active.iter().filter(|one| is_ready(one)).count();
    let status = VirtualMachineInstanceReplicaSetStatus {
        replicas: i64::try_from(mine.active.len()).ok(),
        ready_replicas: i64::try_from(ready).ok(),
        conditions: conditions(observed),
        label_selector: set.spec.selector.as_ref().map(selector::text).unwrap_or_default(),
        ..set.status.clone()
    };
    Decision { status, steps, requeue_at: mine.rested, paused }
}

/// The instances of a set.
struct Mine<'a> {
    /// Those that run or are on their way to.
    active: Vec<&'a VirtualMachineInstance>,
    /// Those that have ended and may go.
    finished: Vec<&'a VirtualMachineInstance>,
    /// Those that failed just now.
    resting: usize,
    /// When the first of these has rested.
    rested: Option<Timestamp>,
    /// Those that match and have no owner; among the others too.
    orphans: Vec<&'a VirtualMachineInstance>,
    /// Those that no longer match.
    released: Vec<&'a VirtualMachineInstance>,
}

/// Whether the selector of a set matches these labels.
fn selects(set: &VirtualMachineInstanceReplicaSet, labels: &BTreeMap<String, String>) -> bool {
    set.spec.selector.as_ref().is_some_and(|selector| selector::matches(selector, labels))
}

impl<'a> Mine<'a> {
    fn of(
        set: &VirtualMachineInstanceReplicaSet,
        instances: &[&'a VirtualMachineInstance],
        now: Timestamp,
    ) -> Self {
        let mut mine = Self {
            active: Vec::new(),
            finished: Vec::new(),
            resting: 0,
            rested: None,
            orphans: Vec::new(),
            released: Vec::new(),
        };
        let alive = instances.iter().copied().filter(|one| one.metadata.deletion_timestamp.is_none());
        for one in alive {
            let controller =
                one.metadata.owner_references.iter().find(|owner| owner.controller == Some(true));
            let matches = selects(set, &one.metadata.labels);
            match (controller, matches) {
                (Some(owner), true) if owner.uid == set.metadata.uid => mine.sort(one, now),
                (Some(owner), false) if owner.uid == set.metadata.uid => mine.released.push(one),
                (None, true) => {
                    mine.orphans.push(one);
                    mine.sort(one, now);
                }
                _ => {}
            }
        }
        mine
    }

    fn sort(&mut self, one: &'a VirtualMachineInstance, now: Timestamp) {
        match one.status.phase.as_str() {
            "Succeeded" | "Failed" => match rests_until(one).filter(|until| *until > now) {
                Some(until) => {
                    self.resting += 1;
                    self.rested = Some(self.rested.map_or(until, |first| first.min(until)));
                }
                None => self.finished.push(one),
            },
            _ => self.active.push(one),
        }
    }
}

/// Until when an instance that never ran counts as a replica.
fn rests_until(one: &VirtualMachineInstance) -> Option<Timestamp> {
    let reached = &one.status.phase_transition_timestamps;
    if reached.iter().any(|entry| entry.phase == "Running") {
        return None;
    }
    let ended = reached.iter().find(|entry| entry.phase == "Failed")?;
    let ended: Timestamp = ended.phase_transition_timestamp.as_deref()?.parse().ok()?;
    ended.checked_add(REST).ok()
}

fn scale(set: &VirtualMachineInstanceReplicaSet, mine: &Mine<'_>, steps: &mut Vec<Step>) {
    steps.extend(mine.finished.iter().take(BURST).map(|one| Step::Delete(one.metadata.uid.clone())));
    let wanted = usize::try_from(set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    let there = mine.active.len();
    let missing = wanted.saturating_sub(there + mine.resting).min(BURST);
    if let Some(instance) = instance(set).filter(|_| missing > 0) {
        steps.extend(std::iter::repeat_with(|| Step::Create(Box::new(instance.clone()))).take(missing));
    }
    // Those that are not ready go first.
    let mut excess = mine.active.clone();
    excess.sort_by_key(|one| is_ready(one));
    let too_many = there.saturating_sub(wanted).min(BURST);
    steps.extend(excess.into_iter().take(too_many).map(|one| Step::Delete(one.metadata.uid.clone())));
}

fn instance(set: &VirtualMachineInstanceReplicaSet) -> Option<VirtualMachineInstance> {
    let template = set.spec.template.as_ref()?;
    let base = match template.metadata.generate_name.as_str() {
        "" => set.metadata.name.clone(),
        given => given.to_owned(),
    };
    let mut annotations = template.metadata.annotations.clone();
    annotations.retain(|name, _| !RESERVED_VMI_ANNOTATIONS.contains(&name.as_str()));
    let metadata = ObjectMeta {
        generate_name: base,
        namespace: set.metadata.namespace.clone(),
        labels: template.metadata.labels.clone(),
        annotations,
        owner_references: vec![owner(set)],
        ..ObjectMeta::default()
    };
    Some(VirtualMachineInstance {
        api_version: API_VERSION.to_owned(),
        kind: VMI_KIND.to_owned(),
        metadata,
        spec: template.spec.clone(),
        ..VirtualMachineInstance::default()
    })
}

fn owner(set: &VirtualMachineInstanceReplicaSet) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.to_owned(),
        kind: REPLICA_SET_KIND.to_owned(),
        name: set.metadata.name.clone(),
        uid: set.metadata.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..OwnerReference::default()
    }
}

fn is_ready(one: &VirtualMachineInstance) -> bool {
    has(&one.status.conditions, "Ready", "True")
}

fn conditions(observed: Observed<'_>) -> Vec<Condition> {
    let paused = observed.set.spec.paused.then_some(Holds {
        kind: PAUSED,
        reason: "Paused",
        message: "Controller got paused",
    });
    let failed = observed.failure.map(|message| Holds { kind: FAILURE, reason: "FailedCreate", message });
    let holding: Vec<Holds<'_>> = [paused, failed].into_iter().flatten().collect();
    standing(&observed.set.status.conditions, observed.now, &holding)
}

#[cfg(test)]
mod tests;
