//! Which VMs of a pool are replaced because they do not start.

use jiff::{SignedDuration, Timestamp};
use vireo_api::v1::{VirtualMachine, VirtualMachinePool};

use super::{Member, Step, is_leaving, is_ready};

/// Failed starts after which a VM is replaced.
const DEFAULT_THRESHOLD: i64 = 3;
/// How long a VM may fail to run.
const DEFAULT_FAILING: SignedDuration = SignedDuration::from_secs(300);
/// `printableStatus` of a VM that cannot run.
const FAILING: [&str; 6] = [
    "CrashLoopBackOff",
    "ErrorUnschedulable",
    "ErrorPvcNotFound",
    "DataVolumeError",
    "ErrImagePull",
    "ImagePullBackOff",
];

/// What to do, and when to look again.
pub(super) struct Healing {
    pub(super) steps: Vec<Step>,
    pub(super) requeue_at: Option<Timestamp>,
}

pub(super) fn decide(pool: &VirtualMachinePool, mine: &[Member<'_>], now: Timestamp) -> Healing {
    let mut healing = Healing { steps: Vec::new(), requeue_at: None };
    let Some(wanted) = &pool.spec.autohealing else { return healing };
    let threshold = wanted.start_up_failure_threshold.unwrap_or(DEFAULT_THRESHOLD);
    let patience = wanted.min_failing_to_start_duration.as_deref().and_then(|text| text.parse().ok());
    let patience: SignedDuration = patience.unwrap_or(DEFAULT_FAILING);
    for member in mine.iter().filter(|one| !is_leaving(one) && !is_ready(one)) {
        let failed = member.vm.status.start_failure.as_ref();
        let until = failing_since(member.vm).and_then(|since| since.checked_add(patience).ok());
        let tried = failed.is_some_and(|failed| failed.consecutive_fail_count >= threshold);
        if tried || until.is_some_and(|until| until <= now) {
            healing.steps.push(Step::Delete(member.vm.metadata.uid.clone()));
        } else {
            healing.requeue_at = [healing.requeue_at, until].into_iter().flatten().min();
        }
    }
    healing
}

fn failing_since(vm: &VirtualMachine) -> Option<Timestamp> {
    if !FAILING.contains(&vm.status.printable_status.as_str()) {
        return None;
    }
    let not_ready = |one: &&vireo_api::v1::Condition| one.r#type == "Ready" && one.status == "False";
    let condition = vm.status.conditions.iter().find(not_ready)?;
    condition.last_transition_time.as_deref()?.parse().ok()
}
