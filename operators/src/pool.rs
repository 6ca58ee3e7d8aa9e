//! VirtualMachinePools: how many VMs a pool has, and when they get a new template.

mod actuator;
pub mod controller;
mod heal;
mod member;
mod order;
mod update;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use vireo_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachinePool, VirtualMachinePoolStatus,
    VirtualMachineTemplateSpec,
};

use member::number;
pub use member::{Made, Revision};
pub use order::SORT_POLICIES;

use crate::conditions::{Holds, has, standing};
use crate::selector;

/// Of a VM and of its instance: the revision of the pool that it was made from.
pub const REVISION_LABEL: &str = "kubevirt.io/vm-pool-revision-name";
/// VMs created or deleted at once: as KubeVirt.
const BURST: usize = 250;
const PAUSED: &str = "ReplicaPaused";
const FAILURE: &str = "ReplicaFailure";

/// A VM that the pool controls.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// It. Its spec is not looked at.
    pub vm: &'a VirtualMachine,
    /// Its instance, if it has one. Its spec is not looked at.
    pub instance: Option<&'a VirtualMachineInstance>,
}

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The pool.
    pub pool: &'a VirtualMachinePool,
    /// The VMs that it controls, by name; those that are being deleted among them.
    pub members: &'a [Member<'a>],
    /// The templates of its revisions, by the names of these.
    pub revisions: &'a BTreeMap<String, VirtualMachineTemplateSpec>,
    /// Why the last VM could not be created.
    pub failure: Option<&'a str>,
    /// What time it is.
    pub now: Timestamp,
}

/// One thing to do. VMs and VMIs are named by their UID.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Keep a revision, before anything is made from it.
    Keep(Revision),
    /// Create a VM.
    Create(Box<VirtualMachine>),
    /// Give a VM what it would have if it were created now.
    Update(String, Box<Made>),
    /// Delete one.
    Delete(String),
    /// Have the pool own it no longer.
    Release(String),
    /// Delete an instance, so that its VM makes it anew.
    Restart(String),
    /// Label a VMI with this revision.
    Relabel(String, String),
    /// Delete a revision that nothing was made from.
    Prune(String),
}

/// What to write and what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The pool's status.
    pub status: VirtualMachinePoolStatus,
    /// What to do, in this order.
    pub steps: Vec<Step>,
    /// When to look again even if nothing changes.
    pub requeue_at: Option<Timestamp>,
    /// That it was paused (`true`) or resumed, if it was.
    pub paused: Option<bool>,
}

/// Decides about one pool. `is_taken` is whether a VM of a name exists, whether or not the pool controls it.
pub fn decide(observed: Observed<'_>, is_taken: impl Fn(&str) -> bool) -> Decision {
    let Observed { pool, now, .. } = observed;
    let (mine, released): (Vec<Member<'_>>, Vec<_>) =
        observed.members.iter().copied().partition(|member| matches(pool, member));
    let mut requeue_at = None;
    let mut steps = Vec::new();
    // A pool that goes leaves its VMs to the collector.
    if pool.metadata.deletion_timestamp.is_none() {
        steps.extend(released.iter().map(|one| Step::Release(one.vm.metadata.uid.clone())));
        if !pool.spec.paused {
            let healing = heal::decide(pool, &mine, now);
            requeue_at = healing.requeue_at;
            steps.extend(healing.steps);
            scale(pool, &mine, is_taken, &mut steps);
            if steps.is_empty() {
                steps.extend(update::decide(pool, &mine, observed.revisions));
            }
            if steps.is_empty() {
                steps.extend(unused(&mine, observed.revisions).map(Step::Prune));
            }
        }
    }
    let was = pool.status.conditions.iter().any(|one| one.r#type == PAUSED);
    let paused = (was != pool.spec.paused).then_some(pool.spec.paused);
    let ready = mine.iter().filter(|one| is_ready(one)).count();
    let status = VirtualMachinePoolStatus {
        replicas: i64::try_from(mine.len()).ok(),
        ready_replicas: i64::try_from(ready).ok(),
        conditions: conditions(observed),
        label_selector: pool.spec.selector.as_ref().map(selector::text).unwrap_or_default(),
        ..pool.status.clone()
    };
    Decision { status, steps, requeue_at, paused }
}

fn matches(pool: &VirtualMachinePool, member: &Member<'_>) -> bool {
    let labels = &member.vm.metadata.labels;
    pool.spec.selector.as_ref().is_some_and(|selector| selector::matches(selector, labels))
}

fn is_leaving(member: &Member<'_>) -> bool {
    member.vm.metadata.deletion_timestamp.is_some()
}

fn is_ready(member: &Member<'_>) -> bool {
    has(&member.vm.status.conditions, "Ready", "True")
}

/// How many VMs are wanted.
fn wanted(pool: &VirtualMachinePool) -> usize {
    usize::try_from(pool.spec.replicas.unwrap_or(1)).unwrap_or(0)
}

/// A VM on its way out counts until it is gone, so that the next may have its name.
fn scale(
    pool: &VirtualMachinePool,
    mine: &[Member<'_>],
    is_taken: impl Fn(&str) -> bool,
    steps: &mut Vec<Step>,
) {
    let missing = wanted(pool).saturating_sub(mine.len()).min(BURST);
    if missing > 0 {
        let revision = Revision::of(pool);
        let free = (0_u64..).filter(|number| !is_taken(&member::name(pool, *number))).take(missing);
        let made = free.filter_map(|number| member::create(pool, number, &revision.name));
        let made: Vec<Step> = made.map(|vm| Step::Create(Box::new(vm))).collect();
        steps.push(Step::Keep(revision));
        steps.extend(made);
    }
    let (leaving, staying): (Vec<Member<'_>>, Vec<_>) = mine.iter().copied().partition(is_leaving);
    let excess = mine.len().saturating_sub(wanted(pool)).saturating_sub(leaving.len()).min(BURST);
    let strategy = pool.spec.scale_in_strategy.as_ref();
    let by_hand = strategy.is_some_and(|one| one.unmanaged.is_some() || one.opportunistic.is_some());
    if excess > 0 && !by_hand {
        let policy = strategy.and_then(|one| one.proactive.as_ref()?.selection_policy.as_ref());
        let chosen = order::by(policy, &staying).into_iter().take(excess);
        steps.extend(chosen.map(|one| Step::Delete(one.vm.metadata.uid.clone())));
    }
}

/// Revisions that no VM and no instance was made from.
fn unused<'a>(
    mine: &'a [Member<'_>],
    revisions: &'a BTreeMap<String, VirtualMachineTemplateSpec>,
) -> impl Iterator<Item = String> + 'a {
    let labels = mine.iter().flat_map(|one| {
        [Some(&one.vm.metadata.labels), one.instance.map(|instance| &instance.metadata.labels)]
    });
    let used: BTreeSet<&String> = labels.flatten().filter_map(|labels| labels.get(REVISION_LABEL)).collect();
    revisions.keys().filter(move |name| !used.contains(name)).cloned()
}

fn conditions(observed: Observed<'_>) -> Vec<vireo_api::v1::Condition> {
    let failure = observed.failure.map(|why| format!("error during scale out: {why}"));
    let paused = observed.pool.spec.paused.then_some(Holds {
        kind: PAUSED,
        reason: "SuccessfulPaused",
        message: "Pool controller is paused",
    });
    let failed = failure.as_deref().map(|message| Holds { kind: FAILURE, reason: "FailedScaleOut", message });
    let holding: Vec<Holds<'_>> = [paused, failed].into_iter().flatten().collect();
    standing(&observed.pool.status.conditions, observed.now, &holding)
}

#[cfg(test)]
mod tests;
