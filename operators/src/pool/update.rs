//! How a new template gets to the VMs of a pool, and to their instances.

use std::collections::BTreeMap;

use vireo_api::v1::{
    IntOrString, Matcher, VirtualMachineInstance, VirtualMachinePool, VirtualMachineSpec,
    VirtualMachineTemplateSpec,
};

use super::member::made;
use super::{Member, REVISION_LABEL, Revision, Step, is_leaving, number, order};
use crate::conditions::has;

type Revisions = BTreeMap<String, VirtualMachineTemplateSpec>;

/// How a VMI is brought to the state of its VM.
enum Need {
    Nothing,
    /// It is up to date, but its label is not.
    Label(String),
    Restart,
}

/// How many VMs may be out of service at once: at least one. An invalid value counts as the default.
pub(super) fn max_unavailable(given: Option<&IntOrString>, replicas: i64) -> i64 {
    let most = match given {
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<i64>().ok());
            percent.map(|percent| replicas.saturating_mul(percent) / 100)
        }
        None => None,
    };
    most.unwrap_or(replicas).max(1)
}

pub(super) fn decide(pool: &VirtualMachinePool, mine: &[Member<'_>], revisions: &Revisions) -> Vec<Step> {
    let strategy = pool.spec.update_strategy.clone().unwrap_or_default();
    if strategy.unmanaged.is_some() {
        return Vec::new();
    }
    let staying = mine.iter().filter(|one| !is_leaving(one)).copied();
    let (outdated, current): (Vec<Member<'_>>, Vec<_>) =
        staying.partition(|one| is_outdated(pool, one, revisions));
    let mut steps = Vec::new();
    let revision = Revision::of(pool);
    for member in outdated {
        let metadata = &member.vm.metadata;
        // One with another name was given to the pool by hand: it keeps what it is.
        let Some(number) = number(&pool.metadata.name, &metadata.name) else { continue };
        let Some(made) = made(pool, number, &revision.name) else { continue };
        if steps.is_empty() {
            steps.push(Step::Keep(revision.clone()));
        }
        steps.push(Step::Update(metadata.uid.clone(), Box::new(made)));
    }
    if strategy.opportunistic.is_none() {
        let policy = strategy.proactive.as_ref().and_then(|one| one.selection_policy.as_ref());
        restart(pool, &order::by(policy, &current), revisions, &mut steps);
    }
    steps
}

fn is_outdated(pool: &VirtualMachinePool, member: &Member<'_>, revisions: &Revisions) -> bool {
    let revision = member.vm.metadata.labels.get(REVISION_LABEL).and_then(|name| revisions.get(name));
    revision != pool.spec.virtual_machine_template.as_ref()
}

/// Unready ones first; the others as far as enough remain.
fn restart(pool: &VirtualMachinePool, current: &[Member<'_>], revisions: &Revisions, steps: &mut Vec<Step>) {
    let (ready, others): (Vec<&Member<'_>>, Vec<_>) = current.iter().partition(|one| serves(one));
    let out_of_service = others.iter().filter(|one| one.vm.status.printable_status != "Stopped").count();
    let most = max_unavailable(pool.spec.max_unavailable.as_ref(), pool.spec.replicas.unwrap_or(1));
    let mut budget = most.saturating_sub(i64::try_from(out_of_service).unwrap_or(i64::MAX));
    for (member, is_ready) in others.iter().map(|one| (one, false)).chain(ready.iter().map(|one| (one, true)))
    {
        let Some(instance) = member.instance.filter(|one| one.metadata.deletion_timestamp.is_none()) else {
            continue;
        };
        let uid = instance.metadata.uid.clone();
        match need(member, instance, revisions) {
            Need::Nothing => {}
            Need::Label(name) => steps.push(Step::Relabel(uid, name)),
            Need::Restart if !is_ready => steps.push(Step::Restart(uid)),
            Need::Restart if budget > 0 => {
                budget -= 1;
                steps.push(Step::Restart(uid));
            }
            Need::Restart => {}
        }
    }
}

fn serves(member: &Member<'_>) -> bool {
    let alive = |one: &VirtualMachineInstance| {
        one.metadata.deletion_timestamp.is_none()
            && one.status.phase == "Running"
            && has(&one.status.conditions, "Ready", "True")
    };
    member.instance.is_some_and(alive)
}

fn need(member: &Member<'_>, instance: &VirtualMachineInstance, revisions: &Revisions) -> Need {
    let Some(wanted) = member.vm.metadata.labels.get(REVISION_LABEL) else { return Need::Nothing };
    let has = instance.metadata.labels.get(REVISION_LABEL);
    if has == Some(wanted) {
        return Need::Nothing;
    }
    match (revisions.get(wanted), has.and_then(|has| revisions.get(has))) {
        (None, _) => Need::Nothing,
        (Some(wants), Some(had)) if runs_the_same(&wants.spec, &had.spec) => Need::Label(wanted.clone()),
        (Some(_), _) => Need::Restart,
    }
}

fn runs_the_same(one: &VirtualMachineSpec, other: &VirtualMachineSpec) -> bool {
    let choice =
        |matcher: &Option<Matcher>| matcher.clone().map(|one| (one.name, one.kind, one.revision_name));
    one.template == other.template
        && choice(&one.instancetype) == choice(&other.instancetype)
        && choice(&one.preference) == choice(&other.preference)
}
