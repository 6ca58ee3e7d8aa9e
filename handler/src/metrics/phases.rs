//! How long VMIs take from phase to phase, by this process's own clock: finer than the seconds of their status.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use vireo_api::v1::VirtualMachineInstance;

use crate::manifests::Key;

/// KubeVirt's, and finer ones before them.
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

/// Who is in which phase since when.
pub(super) struct Phases {
    lives: Mutex<BTreeMap<Key, Life>>,
    between: Times<Between>,
    from_creation: Times<Reached>,
    from_deletion: Times<Reached>,
}

/// One VMI's.
#[derive(Debug, Clone, PartialEq)]
struct Life {
    uid: String,
    phase: String,
    /// When it entered the phase. Absent: before we looked.
    since: Option<Instant>,
    born: Option<Instant>,
    dying: Option<Instant>,
}

/// A change that was seen.
#[derive(Debug, PartialEq)]
struct Change {
    phase: String,
    last: String,
    since: Option<Instant>,
    born: Option<Instant>,
    dying: Option<Instant>,
}

impl std::fmt::Debug for Phases {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Phases").field("lives", &self.lives).finish_non_exhaustive()
    }
}

impl Default for Phases {
    fn default() -> Self {
        let times: fn() -> Histogram = || Histogram::new(BUCKETS);
        Self {
            lives: Mutex::default(),
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

    /// Takes note of the phase that a VMI is in, or that it is no more.
    pub(super) fn see(&self, key: &Key, vmi: Option<&VirtualMachineInstance>, now: Instant) {
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(vmi) = vmi else {
            lives.remove(key);
            return;
        };
        let (life, change) = next(lives.get(key), vmi, now);
        lives.insert(key.clone(), life);
        drop(lives);
        if let Some(change) = change {
            self.observe(change, now);
        }
    }

    fn observe(&self, change: Change, now: Instant) {
        let Change { phase, last, since, born, dying } = change;
        let reached = Reached { phase: phase.clone() };
        let took = |from: Instant| now.duration_since(from).as_secs_f64();
        if let Some(since) = since {
            self.between.get_or_create(&Between { phase, last_phase: last }).observe(took(since));
        }
        if let Some(born) = born {
            self.from_creation.get_or_create(&reached).observe(took(born));
        }
        if let Some(dying) = dying {
            self.from_deletion.get_or_create(&reached).observe(took(dying));
        }
    }
}

/// The life of a VMI after a look at it, and what changed since the last one.
fn next(before: Option<&Life>, vmi: &VirtualMachineInstance, now: Instant) -> (Life, Option<Change>) {
    let phase = vmi.status.phase.as_str();
    let is_dying = vmi.metadata.deletion_timestamp.is_some();
    let before = before.filter(|life| life.uid == vmi.metadata.uid);
    let Some(before) = before else {
        // One that is further on was made before we looked.
        let born = matches!(phase, "" | "Pending" | "Scheduling").then_some(now);
        let dying = is_dying.then_some(now).and(born);
        let life = Life { uid: vmi.metadata.uid.clone(), phase: phase.to_owned(), since: born, born, dying };
        return (life, None);
    };
    let mut life = before.clone();
    if is_dying && life.dying.is_none() {
        life.dying = Some(now);
    }
    if life.phase == phase {
        return (life, None);
    }
    let last = std::mem::replace(&mut life.phase, phase.to_owned());
    let since = life.since.replace(now);
    let change = Change { phase: phase.to_owned(), last, since, born: life.born, dying: life.dying };
    (life, Some(change))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn vmi(uid: &str, phase: &str, is_dying: bool) -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance::default();
        vmi.metadata.uid = uid.to_owned();
        vmi.status.phase = phase.to_owned();
        vmi.metadata.deletion_timestamp = is_dying.then(|| "2026-01-01T00:00:00Z".to_owned());
        vmi
    }

    #[test]
    fn times_are_told_from_what_was_seen() {
        let begin = Instant::now();
        let at = |tenths: u64| begin + Duration::from_millis(tenths * 100);
        let change = |last: &str, phase: &str, [since, born, dying]: [Option<u64>; 3]| {
            let (since, born, dying) = (since.map(at), born.map(at), dying.map(at));
            Some(Change { phase: phase.to_owned(), last: last.to_owned(), since, born, dying })
        };
        let mut life = None;
        for (now, uid, phase, is_dying, expected) in [
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
            let (after, seen) = next(life.as_ref(), &vmi(uid, phase, is_dying), at(now));
            assert_eq!(seen, expected, "{now} {uid} {phase}");
            life = Some(after);
        }
    }
}
