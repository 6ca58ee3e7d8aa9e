//! The duration of phase transitions, by this process's monotonic clock: the status has only full seconds.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use vireo_api::v1::VirtualMachineInstance;

use crate::manifests::Key;

/// KubeVirt's buckets, and finer ones before them.
const BUCKETS: [f64; 21] = [
    0.05, 0.1, 0.25, 0.5, 1., 2., 5., 10., 20., 30., 40., 50., 60., 90., 120., 180., 300., 600., 1200.,
    1800., 3600.,
];

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Between {
    phase: String,
    last_phase: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reached {
    phase: String,
}

type Times<L> = Family<L, Histogram, fn() -> Histogram>;

/// The phases of all VMIs and the histograms of their transitions.
pub(super) struct Phases {
    lifetimes: Mutex<BTreeMap<Key, Lifetime>>,
    between: Times<Between>,
    from_creation: Times<Reached>,
    from_deletion: Times<Reached>,
}

/// The phase of one VMI and the times of its events.
#[derive(Debug, Clone, PartialEq)]
struct Lifetime {
    uid: String,
    phase: String,
    /// When it entered the phase; `None` when that was before the first observation.
    since: Option<Instant>,
    created: Option<Instant>,
    deleted: Option<Instant>,
}

/// A phase transition.
#[derive(Debug, PartialEq)]
struct Change {
    phase: String,
    last: String,
    since: Option<Instant>,
    created: Option<Instant>,
    deleted: Option<Instant>,
}

impl std::fmt::Debug for Phases {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Phases").field("lifetimes", &self.lifetimes).finish_non_exhaustive()
    }
}

impl Default for Phases {
    fn default() -> Self {
        let times: fn() -> Histogram = || Histogram::new(BUCKETS);
        Self {
            lifetimes: Mutex::default(),
            between: Family::new_with_constructor(times),
            from_creation: Family::new_with_constructor(times),
            from_deletion: Family::new_with_constructor(times),
        }
    }
}

impl Phases {
    pub(super) fn register(&self, registry: &mut Registry) {
        for (name, help, times) in [
            (
                "kubevirt_vmi_phase_transition_time_from_creation_seconds",
                "From the creation of a VMI to a phase",
                &self.from_creation,
            ),
            (
                "kubevirt_vmi_phase_transition_time_from_deletion_seconds",
                "From the deletion of a VMI to a phase",
                &self.from_deletion,
            ),
        ] {
            registry.register(name, help, times.clone());
        }
        let name = "kubevirt_vmi_phase_transition_time_seconds";
        registry.register(name, "From one phase of a VMI to the next", self.between.clone());
    }

    /// Records the phase of a VMI, or its removal.
    pub(super) fn observe_vmi(&self, key: &Key, vmi: Option<&VirtualMachineInstance>, now: Instant) {
        let mut lifetimes = self.lifetimes.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(vmi) = vmi else {
            lifetimes.remove(key);
            return;
        };
        let (lifetime, change) = next(lifetimes.get(key), vmi, now);
        lifetimes.insert(key.clone(), lifetime);
        drop(lifetimes);
        if let Some(change) = change {
            self.observe(change, now);
        }
    }

    fn observe(&self, change: Change, now: Instant) {
        let Change { phase, last, since, created, deleted } = change;
        let reached = Reached { phase: phase.clone() };
        let took = |from: Instant| now.duration_since(from).as_secs_f64();
        if let Some(since) = since {
            self.between.get_or_create(&Between { phase, last_phase: last }).observe(took(since));
        }
        if let Some(created) = created {
            self.from_creation.get_or_create(&reached).observe(took(created));
        }
        if let Some(deleted) = deleted {
            self.from_deletion.get_or_create(&reached).observe(took(deleted));
        }
    }
}

/// The lifetime of a VMI after a look at it, and what changed since the last one.
fn next(before: Option<&Lifetime>, vmi: &VirtualMachineInstance, now: Instant) -> (Lifetime, Option<Change>) {
    let phase = vmi.status.phase.as_str();
    let is_deleted = vmi.metadata.deletion_timestamp.is_some();
    let before = before.filter(|lifetime| lifetime.uid == vmi.metadata.uid);
    let Some(before) = before else {
        // A VMI in a later phase was created before the first observation.
        let created = matches!(phase, "" | "Pending" | "Scheduling").then_some(now);
        let deleted = is_deleted.then_some(now).and(created);
        let lifetime = Lifetime {
            uid: vmi.metadata.uid.clone(),
            phase: phase.to_owned(),
            since: created,
            created,
            deleted,
        };
        return (lifetime, None);
    };
    let mut lifetime = before.clone();
    if is_deleted && lifetime.deleted.is_none() {
        lifetime.deleted = Some(now);
    }
    if lifetime.phase == phase {
        return (lifetime, None);
    }
    let last = std::mem::replace(&mut lifetime.phase, phase.to_owned());
    let since = lifetime.since.replace(now);
    let change =
        Change { phase: phase.to_owned(), last, since, created: lifetime.created, deleted: lifetime.deleted };
    (lifetime, Some(change))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn vmi(uid: &str, phase: &str, is_deleted: bool) -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance::default();
        vmi.metadata.uid = uid.to_owned();
        vmi.status.phase = phase.to_owned();
        vmi.metadata.deletion_timestamp = is_deleted.then(|| "2026-01-01T00:00:00Z".to_owned());
        vmi
    }

    #[test]
    fn times_come_from_observed_transitions() {
        let begin = Instant::now();
        let at = |tenths: u64| begin + Duration::from_millis(tenths * 100);
        let change = |last: &str, phase: &str, [since, created, deleted]: [Option<u64>; 3]| {
            let (since, created, deleted) = (since.map(at), created.map(at), deleted.map(at));
            Some(Change { phase: phase.to_owned(), last: last.to_owned(), since, created, deleted })
        };
        let mut lifetime = None;
        for (now, uid, phase, is_deleted, expected) in [
            (0, "a", "Pending", false, None),
            (1, "a", "Pending", false, None),
            (3, "a", "Running", false, change("Pending", "Running", [Some(0), Some(0), None])),
            (5, "a", "Running", true, None),
            (6, "a", "Succeeded", true, change("Running", "Succeeded", [Some(3), Some(0), Some(5)])),
            // Another one of the name, which ran before we looked.
            (7, "b", "Running", false, None),
            (9, "b", "Failed", false, change("Running", "Failed", [None, None, None])),
            (10, "b", "Running", false, change("Failed", "Running", [Some(9), None, None])),
        ] {
            let (after, seen) = next(lifetime.as_ref(), &vmi(uid, phase, is_deleted), at(now));
            assert_eq!(seen, expected, "{now} {uid} {phase}");
            lifetime = Some(after);
        }
    }
}
