use serde_json::{Value, json};

use super::*;

const IMAGE: &str = "launcher:2";
const MINUTE: Duration = Duration::from_secs(60);

fn evict(batch: usize) -> Strategy {
    Strategy { evicts: true, batch, ..Strategy::default() }
}

/// A VMI that runs with the launcher before this one, and its Pod.
fn outdated(name: &str) -> (VirtualMachineInstance, LauncherPod) {
    changed(name, json!({}), json!({}))
}

/// The same with other fields.
fn changed(name: &str, vmi: Value, pod: Value) -> (VirtualMachineInstance, LauncherPod) {
    let mut of = [
        json!({"metadata": {"namespace": "n", "name": name, "labels": {OUTDATED_LABEL: ""}},
            "status": {"phase": "Running"}}),
        json!({"metadata": {"name": name, "uid": name},
            "spec": {"containers": [{"name": "compute", "image": "launcher:1"}]}, "status": {"phase": "Running"}}),
    ];
    of.iter_mut().zip([vmi, pod]).for_each(|(object, patch)| json_patch::merge(object, &patch));
    let [vmi, pod] = of;
    (serde_json::from_value(vmi).unwrap(), LauncherPod::read(pod).unwrap())
}

/// Installations at a time, with what was done before.
struct World {
    workloads: Vec<(VirtualMachineInstance, LauncherPod)>,
    strategy: Strategy,
    is_rolled_out: bool,
    attempts: Attempts,
    now: Timestamp,
}

/// The number of outdated VMIs, the names of those that are evicted, and when to decide again.
type Decided = (usize, Vec<String>, Option<Duration>);

impl World {
    fn of(workloads: Vec<(VirtualMachineInstance, LauncherPod)>, strategy: Strategy) -> Self {
        let (attempts, now) = (Attempts::default(), Timestamp::UNIX_EPOCH);
        Self { workloads, strategy, is_rolled_out: true, attempts, now }
    }

    fn decide(&mut self) -> Decided {
        let workloads: Vec<Workload<'_>> =
            self.workloads.iter().map(|(vmi, pod)| Workload { vmi, pods: vec![pod] }).collect();
        let Self { strategy, is_rolled_out, ref attempts, now, .. } = *self;
        let observed =
            Observed { workloads: &workloads, image: IMAGE, strategy, is_rolled_out, attempts, now };
        let Decision { outdated, evict, attempts, recheck } = decide(&observed);
        let names = evict.iter().map(|(vmi, _)| vmi.metadata.name.clone()).collect();
        self.attempts = attempts;
        (outdated, names, recheck)
    }

    fn after(&mut self, time: Duration) -> Decided {
        self.now = self.now.saturating_add(jiff::SignedDuration::try_from(time).unwrap()).unwrap();
        self.decide()
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn nothing_is_evicted_unless_that_is_asked_for_and_the_components_are_rolled_out() {
    let mut world = World::of(vec![outdated("a"), outdated("b")], Strategy::default());
    assert_eq!(world.decide(), (2, vec![], None));
    world.strategy = evict(10);
    world.is_rolled_out = false;
    assert_eq!(world.decide(), (2, vec![], None));
    world.is_rolled_out = true;
    assert_eq!(world.decide(), (2, names(&["a", "b"]), Some(MINUTE)));
}

#[test]
fn a_batch_follows_another_after_the_interval() {
    let mut world = World::of(["a", "b", "c"].map(outdated).into(), evict(2));
    assert_eq!(world.decide(), (3, names(&["a", "b"]), Some(MINUTE)));
    assert_eq!(world.after(MINUTE / 4), (3, vec![], Some(MINUTE * 3 / 4)));
    // One is being deleted, and the eviction of the other was denied.
    world.workloads[0] =
        changed("a", json!({}), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert_eq!(world.after(MINUTE), (3, names(&["c", "b"]), Some(MINUTE)));
    world.workloads.truncate(2);
    assert_eq!(world.after(MINUTE), (2, names(&["b"]), Some(MINUTE)));
    world.workloads.truncate(1);
    assert_eq!(world.after(MINUTE), (1, vec![], None));
    assert_eq!(world.attempts.of_pods, BTreeMap::new(), "only those that are there are known");
}

#[test]
fn evictions_that_are_denied_keep_no_other_from_its_turn() {
    let mut world = World::of(["a", "b", "c"].map(outdated).into(), evict(1));
    let mut turns = vec![world.decide().1];
    turns.extend((0..3).map(|_| world.after(MINUTE).1));
    assert_eq!(turns.concat(), ["a", "b", "c", "a"]);
}

#[test]
fn a_clock_that_is_set_back_delays_nothing() {
    let mut world = World::of(vec![outdated("a")], evict(1));
    world.after(MINUTE * 60);
    world.now = Timestamp::UNIX_EPOCH;
    assert_eq!(world.decide().1, ["a"]);
}

#[test]
fn only_running_instances_of_other_launchers_are_outdated() {
    let current = json!({"spec": {"containers": [{"name": "compute", "image": IMAGE}]}});
    for (vmi, pod) in [
        (json!({"status": {"phase": "Scheduled"}}), json!({})),
        (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), json!({})),
        (json!({"metadata": {"labels": null}}), json!({})),
        // A user set the label.
        (json!({}), current),
        (json!({}), json!({"status": {"phase": "Failed"}})),
    ] {
        let mut world = World::of(vec![changed("a", vmi.clone(), pod.clone())], evict(1));
        assert_eq!(world.decide(), (0, vec![], None), "{vmi} {pod}");
    }
    // Also one that nothing starts again, as KubeVirt.
    assert_eq!(World::of(vec![outdated("bare")], evict(1)).decide().1, ["bare"]);
}
