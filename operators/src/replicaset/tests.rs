use std::collections::BTreeMap;

use vireo_api::v1::{LabelSelector, PhaseTransitionTimestamp, VirtualMachineInstanceTemplateSpec};

use super::*;

const NOW: &str = "2026-11-21T12:00:00Z";

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), "web".to_owned())])
}

fn set(replicas: i64) -> VirtualMachineInstanceReplicaSet {
    let mut set = VirtualMachineInstanceReplicaSet::default();
    set.metadata.name = "web".to_owned();
    set.metadata.uid = "set".to_owned();
    set.spec.replicas = Some(replicas);
    set.spec.selector = Some(LabelSelector { match_labels: labels(), ..LabelSelector::default() });
    let template = set.spec.template.get_or_insert_default();
    *template = VirtualMachineInstanceTemplateSpec::default();
    template.metadata.labels = labels();
    set
}

/// An instance of the set, in a phase; ready if it runs.
fn instance(uid: &str, phase: &str) -> VirtualMachineInstance {
    let mut one = VirtualMachineInstance::default();
    one.metadata.uid = uid.to_owned();
    one.metadata.labels = labels();
    one.metadata.owner_references = vec![owner(&set(0))];
    one.status.phase = phase.to_owned();
    if phase == "Running" {
        let ready = Condition { r#type: "Ready".into(), status: "True".into(), ..Condition::default() };
        one.status.conditions = vec![ready];
    }
    one
}

fn observed(set: &VirtualMachineInstanceReplicaSet, instances: &[VirtualMachineInstance]) -> Decision {
    let instances: Vec<_> = instances.iter().collect();
    decide(Observed { set, instances: &instances, failure: None, now: NOW.parse().unwrap() })
}

/// What is done, in a word each: `+` for a creation.
fn reported(decision: &Decision) -> Vec<String> {
    let word = |step: &Step| match step {
        Step::Create(_) => "+".to_owned(),
        Step::Delete(uid) => format!("-{uid}"),
        Step::Adopt(uid, _) => format!("adopt {uid}"),
        Step::Release(uid) => format!("release {uid}"),
    };
    decision.steps.iter().map(word).collect()
}

#[test]
fn there_are_as_many_as_are_wanted() {
    for (replicas, there, expected) in [
        (2, vec![], vec!["+", "+"]),
        (1, vec![("a", "Running")], vec![]),
        (0, vec![("a", "Running"), ("b", "Scheduling")], vec!["-b", "-a"]),
        (1, vec![("a", "Running"), ("b", "Scheduling")], vec!["-b"]),
        (2, vec![("a", "Running"), ("b", "Succeeded")], vec!["-b", "+"]),
        (1, vec![("a", "Failed")], vec!["-a", "+"]),
    ] {
        let instances: Vec<_> = there.iter().map(|(uid, phase)| instance(uid, phase)).collect();
        assert_eq!(reported(&observed(&set(replicas), &instances)), expected, "{replicas} of {there:?}");
    }
    assert_eq!(observed(&set(1000), &[]).steps.len(), 250, "a burst at a time");
}

#[test]
fn the_status_counts_what_has_not_ended() {
    let there = [instance("a", "Running"), instance("b", "Pending"), instance("c", "Failed")];
    let status = observed(&set(2), &there).status;
    assert_eq!((status.replicas, status.ready_replicas), (Some(2), Some(1)));
    assert_eq!(status.label_selector, "app=web");
}

#[test]
fn instances_come_and_go_by_their_labels() {
    let mut orphan = instance("orphan", "Running");
    orphan.metadata.owner_references.clear();
    let mut unmatched = instance("unmatched", "Running");
    unmatched.metadata.labels.clear();
    let mut other = instance("other", "Running");
    other.metadata.owner_references[0].uid = "another set".to_owned();
    let mut leaving = instance("leaving", "Running");
    leaving.metadata.deletion_timestamp = Some(NOW.to_owned());
    let decision = observed(&set(1), &[orphan, unmatched, other, leaving]);
    assert_eq!(reported(&decision), ["adopt orphan", "release unmatched"]);
    assert_eq!(decision.status.replicas, Some(1), "the orphan counts at once");
}

#[test]
fn a_paused_set_creates_and_deletes_nothing() {
    let mut paused = set(3);
    paused.spec.paused = true;
    let decision = observed(&paused, &[instance("a", "Failed")]);
    assert_eq!((reported(&decision).len(), decision.paused), (0, Some(true)));
    paused.status = decision.status;
    assert_eq!(paused.status.conditions[0].r#type, "ReplicaPaused");
    assert_eq!(observed(&paused, &[]).paused, None, "it is reported once");
    paused.spec.paused = false;
    let decision = observed(&paused, &[]);
    assert_eq!((decision.paused, decision.status.conditions.len()), (Some(false), 0));
    let mut leaving = set(3);
    leaving.metadata.deletion_timestamp = Some(NOW.to_owned());
    assert!(observed(&leaving, &[]).steps.is_empty());
}

#[test]
fn what_cannot_run_is_not_tried_all_the_time() {
    let mut failed = instance("a", "Failed");
    let at = |phase: &str, time: &str| PhaseTransitionTimestamp {
        phase: phase.to_owned(),
        phase_transition_timestamp: Some(time.to_owned()),
        ..PhaseTransitionTimestamp::default()
    };
    failed.status.phase_transition_timestamps = vec![at("Failed", "2026-11-21T11:59:55Z")];
    let decision = observed(&set(2), std::slice::from_ref(&failed));
    assert_eq!(reported(&decision), ["+"], "it counts as a replica for a while");
    assert_eq!(decision.requeue_at, Some("2026-11-21T12:00:05Z".parse().unwrap()));
    failed.status.phase_transition_timestamps = vec![at("Failed", "2026-11-21T11:59:50Z")];
    assert_eq!(reported(&observed(&set(2), std::slice::from_ref(&failed))), ["-a", "+", "+"]);
    failed.status.phase_transition_timestamps =
        vec![at("Running", "2026-11-21T11:59:50Z"), at("Failed", "2026-11-21T11:59:59Z")];
    assert_eq!(reported(&observed(&set(1), &[failed])), ["-a", "+"], "one that ran is replaced at once");
}

#[test]
fn an_instance_is_the_template_with_an_owner() {
    let mut set = set(1);
    set.metadata.namespace = "prod".to_owned();
    set.spec.template.as_mut().unwrap().spec.hostname = "web".to_owned();
    let Some(Step::Create(one)) = observed(&set, &[]).steps.pop() else { panic!("nothing is created") };
    assert_eq!((one.metadata.generate_name.as_str(), one.metadata.namespace.as_str()), ("web", "prod"));
    assert_eq!((one.spec.hostname.as_str(), &one.metadata.labels), ("web", &labels()));
    assert_eq!((one.metadata.owner_references[0].uid.as_str(), one.metadata.name.as_str()), ("set", ""));
    let failed =
        decide(Observed { set: &set, instances: &[], failure: Some("no"), now: NOW.parse().unwrap() });
    let condition = &failed.status.conditions[0];
    assert_eq!((condition.r#type.as_str(), condition.reason.as_str()), ("ReplicaFailure", "FailedCreate"));
}
