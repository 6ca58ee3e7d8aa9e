//! VMs that fail before they run are started less and less often.

use jiff::{SignedDuration, Timestamp};
use vireo_api::v1::{StartFailure, VirtualMachineInstance};

use super::life::{Life, has_run};
use super::strategy::RunStrategy;

/// After the first failure; it grows with the square of their number.
const FIRST: f64 = 10.0;
const LONGEST: f64 = 300.0;

/// The failures so far, with that of `instance`, if it is one, counted once. `jitter` is from 0 to 1 and spreads
/// VMs that failed together.
pub(super) fn count(
    before: Option<&StartFailure>,
    instance: Option<&VirtualMachineInstance>,
    strategy: RunStrategy,
    (now, jitter): (Timestamp, f64),
) -> Option<StartFailure> {
    if !strategy.backs_off() {
        return None;
    }
    let Some(instance) = instance else { return before.cloned() };
    let over = Life::of(Some(instance)).is_over();
    if has_run(instance) && !over {
        return None;
    }
    let uid = Some(instance.metadata.uid.as_str());
    let counted = before.is_some_and(|before| before.last_failed_vmi_uid.as_deref() == uid);
    if !over || has_run(instance) || counted {
        return before.cloned();
    }
    let count = before.map_or(0, |before| before.consecutive_fail_count).saturating_add(1);
    Some(StartFailure {
        consecutive_fail_count: count,
        last_failed_vmi_uid: uid.map(str::to_owned),
        retry_after_timestamp: Some((now + delay(count, jitter)).to_string()),
        ..StartFailure::default()
    })
}

fn delay(count: i64, jitter: f64) -> SignedDuration {
    // More would be the longest all the same.
    let count = f64::from(u8::try_from(count).unwrap_or(u8::MAX));
    let base = FIRST * count * count;
    let spread = base / 2.0 * jitter.clamp(0.0, 1.0);
    SignedDuration::from_secs_f64((base + spread).min(LONGEST))
}

/// When the next start may be, if not now.
pub(super) fn waits_until(failure: Option<&StartFailure>, now: Timestamp) -> Option<Timestamp> {
    let time: Timestamp = failure?.retry_after_timestamp.as_deref()?.parse().ok()?;
    (time > now).then_some(time)
}
