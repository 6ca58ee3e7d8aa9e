use vireo_api::v1::{
    Condition, IntOrString, LabelSelector, StartFailure, VirtualMachineInstanceTemplateSpec,
    VirtualMachinePoolAutohealingStrategy, VirtualMachinePoolNameGeneration,
    VirtualMachinePoolProactiveScaleInStrategy, VirtualMachinePoolScaleInStrategy,
    VirtualMachinePoolSelectionPolicy, VirtualMachinePoolUpdateStrategy, Volume,
};

use super::update::max_unavailable;
use super::*;

const NOW: &str = "2026-11-21T12:00:00Z";

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), "web".to_owned())])
}

/// A pool whose template has this many cores.
fn pool(replicas: i64, cores: u32) -> VirtualMachinePool {
    let mut pool = VirtualMachinePool::default();
    pool.metadata.name = "web".to_owned();
    pool.metadata.uid = "pool".to_owned();
    pool.metadata.generation = Some(i64::from(cores));
    pool.spec.replicas = Some(replicas);
    pool.spec.selector = Some(LabelSelector { match_labels: labels(), ..LabelSelector::default() });
    let template = pool.spec.virtual_machine_template.get_or_insert_default();
    template.metadata.labels = labels();
    let inner = template.spec.template.insert(VirtualMachineInstanceTemplateSpec::default());
    inner.spec.domain.cpu = Some(Box::new(vireo_api::v1::Cpu { cores: Some(cores), ..Default::default() }));
    pool
}

fn revisions(cores: &[u32]) -> BTreeMap<String, VirtualMachineTemplateSpec> {
    let one = |cores: &u32| (format!("web-{cores}"), pool(1, *cores).spec.virtual_machine_template.unwrap());
    cores.iter().map(one).collect()
}

/// A VM and its instance, made from the revisions of these numbers of cores; ready if they say so.
struct One {
    vm: VirtualMachine,
    instance: Option<VirtualMachineInstance>,
}

fn one(number: u32, cores: u32, instance: Option<(u32, bool)>) -> One {
    let mut vm = VirtualMachine::default();
    vm.metadata.name = format!("web-{number}");
    vm.metadata.uid = format!("m{number}");
    vm.metadata.labels = labels();
    vm.metadata.labels.insert(REVISION_LABEL.to_owned(), format!("web-{cores}"));
    vm.metadata.owner_references =
        serde_json::from_value(serde_json::json!([Revision::owner(&pool(1, 1))])).unwrap();
    let ready_condition = |ready: bool| Condition {
        r#type: "Ready".into(),
        status: if ready { "True" } else { "False" }.into(),
        last_transition_time: Some("2026-11-21T11:50:00Z".to_owned()),
        ..Condition::default()
    };
    vm.status.conditions = vec![ready_condition(instance.is_some_and(|(_, ready)| ready))];
    vm.status.printable_status = if instance.is_some() { "Running" } else { "Stopped" }.to_owned();
    let instance = instance.map(|(cores, ready)| {
        let mut instance = VirtualMachineInstance::default();
        instance.metadata.uid = format!("i{number}");
        instance.metadata.labels.insert(REVISION_LABEL.to_owned(), format!("web-{cores}"));
        instance.status.phase = "Running".to_owned();
        instance.status.conditions = vec![ready_condition(ready)];
        instance
    });
    One { vm, instance }
}

fn observed(pool: &VirtualMachinePool, all: &[One], known: &[u32]) -> Decision {
    let members: Vec<Member<'_>> =
        all.iter().map(|one| Member { vm: &one.vm, instance: one.instance.as_ref() }).collect();
    let revisions = revisions(known);
    let observed =
        Observed { pool, members: &members, revisions: &revisions, failure: None, now: NOW.parse().unwrap() };
    decide(observed, |name| all.iter().any(|one| one.vm.metadata.name == name))
}

/// What is done, in a word each.
fn steps_of(decision: &Decision) -> Vec<String> {
    let word = |step: &Step| match step {
        Step::Keep(revision) => format!("keep {}", revision.name),
        Step::Create(vm) => format!("+{}", vm.metadata.name),
        Step::Update(uid, made) => format!("update {uid} to {}", made.labels[REVISION_LABEL]),
        Step::Delete(uid) => format!("-{uid}"),
        Step::Release(uid) => format!("release {uid}"),
        Step::Restart(uid) => format!("restart {uid}"),
        Step::Relabel(uid, name) => format!("relabel {uid} {name}"),
        Step::Prune(name) => format!("prune {name}"),
    };
    decision.steps.iter().map(word).collect()
}

fn leaving(mut one: One) -> One {
    one.vm.metadata.deletion_timestamp = Some(NOW.to_owned());
    one
}

#[test]
fn vms_have_the_lowest_free_names_and_go_by_the_policy() {
    let fresh = |number| one(number, 1, Some((1, true)));
    for (replicas, there, expected) in [
        (2, vec![], vec!["keep web-1", "+web-0", "+web-1"]),
        (3, vec![fresh(1)], vec!["keep web-1", "+web-0", "+web-2"]),
        (1, vec![fresh(0)], vec![]),
        (1, vec![fresh(1), fresh(0), fresh(2)], vec!["-m0", "-m1"]),
        // One that goes counts until its name is free.
        (2, vec![leaving(fresh(0)), fresh(1)], vec![]),
        (1, vec![leaving(fresh(0)), fresh(1)], vec![]),
        (0, vec![leaving(fresh(0)), fresh(1)], vec!["-m1"]),
    ] {
        assert_eq!(steps_of(&observed(&pool(replicas, 1), &there, &[1])), expected, "{replicas}");
    }
    let there = [fresh(0), fresh(1), fresh(10)];
    let policy = |sort: &str| VirtualMachinePoolScaleInStrategy {
        proactive: Some(VirtualMachinePoolProactiveScaleInStrategy {
            selection_policy: Some(VirtualMachinePoolSelectionPolicy {
                sort_policy: Some(sort.to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut small = pool(2, 1);
    for (sort, expected) in [("DescendingOrder", "-m10"), ("AscendingOrder", "-m0")] {
        small.spec.scale_in_strategy = Some(policy(sort));
        assert_eq!(steps_of(&observed(&small, &there, &[1])), [expected]);
    }
    small.spec.scale_in_strategy = Some(VirtualMachinePoolScaleInStrategy {
        unmanaged: Some(serde_json::json!({})),
        ..Default::default()
    });
    assert!(steps_of(&observed(&small, &there, &[1])).is_empty());
}

#[test]
fn a_new_template_updates_vms_and_then_unavailable_instances() {
    let old = |number| one(number, 1, Some((1, true)));
    let half = |number, ready| one(number, 2, Some((1, ready)));
    let done = |number| one(number, 2, Some((2, true)));
    let mut two = pool(3, 2);
    two.spec.max_unavailable = Some(IntOrString::Int(1));
    let update = ["keep web-2", "update m0 to web-2", "update m1 to web-2", "update m2 to web-2"];
    assert_eq!(steps_of(&observed(&two, &[old(0), old(1), old(2)], &[1])), update);
    let cases: [(Vec<One>, Vec<&str>); 5] = [
        (vec![half(0, true), half(1, true), half(2, true)], vec!["restart i0"]),
        (vec![half(0, true), done(1), half(2, false)], vec!["restart i2"]),
        // A halted VM is away on purpose.
        (vec![half(0, true), done(1), one(2, 2, None)], vec!["restart i0"]),
        (vec![half(0, true), done(1), one(2, 2, Some((2, false)))], vec![]),
        (vec![done(0), done(1), done(2)], vec!["prune web-1"]),
    ];
    for (there, expected) in cases {
        assert_eq!(steps_of(&observed(&two, &there, &[1, 2])), expected);
    }
    two.spec.update_strategy = Some(VirtualMachinePoolUpdateStrategy {
        opportunistic: Some(serde_json::json!({})),
        ..Default::default()
    });
    assert_eq!(steps_of(&observed(&two, &[old(0), old(1), old(2)], &[1])), update);
    assert!(steps_of(&observed(&two, &[half(0, true), half(1, true), half(2, true)], &[1, 2])).is_empty());
    two.spec.update_strategy = Some(VirtualMachinePoolUpdateStrategy {
        unmanaged: Some(serde_json::json!({})),
        ..Default::default()
    });
    assert!(steps_of(&observed(&two, &[old(0), old(1), old(2)], &[1])).is_empty());
}

#[test]
fn an_instance_that_would_be_the_same_only_gets_the_name() {
    let mut known = revisions(&[1, 2]);
    known.get_mut("web-2").unwrap().spec = known["web-1"].spec.clone();
    let mut second = pool(1, 1);
    second.metadata.generation = Some(2);
    let there = one(0, 2, Some((1, true)));
    let members = [Member { vm: &there.vm, instance: there.instance.as_ref() }];
    let observed = Observed {
        pool: &second,
        members: &members,
        revisions: &known,
        failure: None,
        now: NOW.parse().unwrap(),
    };
    assert_eq!(steps_of(&decide(observed, |_| true)), ["relabel i0 web-2"]);
}

#[test]
fn a_percentage_is_rounded_down_to_one_at_least() {
    for (given, replicas, expected) in [
        (None, 5, 5),
        (None, 0, 1),
        (Some(IntOrString::Int(2)), 5, 2),
        (Some(IntOrString::String("50%".to_owned())), 5, 2),
        (Some(IntOrString::String("1%".to_owned())), 5, 1),
    ] {
        assert_eq!(max_unavailable(given.as_ref(), replicas), expected, "{given:?} of {replicas}");
    }
}

#[test]
fn numbers_go_to_what_the_template_names() {
    let mut named = pool(1, 1);
    named.spec.name_generation = Some(VirtualMachinePoolNameGeneration {
        append_index_to_config_map_refs: Some(true),
        append_index_to_secret_refs: Some(false),
        ..Default::default()
    });
    let volumes = serde_json::json!([{"name": "a", "configMap": {"name": "map"}}, {"name": "b", "secret": {"secretName": "key"}}]);
    let volumes: Vec<Volume> = serde_json::from_value(volumes).unwrap();
    named.spec.virtual_machine_template.as_mut().unwrap().spec.template.as_mut().unwrap().spec.volumes =
        volumes;
    let decision = observed(&named, &[], &[]);
    let Some(Step::Create(vm)) = decision.steps.get(1) else { panic!("{decision:?}") };
    let template = vm.spec.template.as_ref().unwrap();
    let names: Vec<&str> = template
        .spec
        .volumes
        .iter()
        .map(|volume| match (&volume.config_map, &volume.secret) {
            (Some(map), _) => map.name.as_str(),
            (_, Some(secret)) => secret.secret_name.as_str(),
            _ => "",
        })
        .collect();
    assert_eq!(names, ["map-0", "key"]);
    assert_eq!(template.metadata.labels[REVISION_LABEL], "web-1");
    assert_eq!(vm.metadata.owner_references[0].kind, "VirtualMachinePool");
    assert_eq!(
        (number("web", "web-12"), number("web", "web-012"), number("web", "web-a")),
        (Some(12), None, None)
    );
}

#[test]
fn each_vm_has_data_volumes_of_its_own() {
    let mut pool = pool(1, 1);
    let spec = &mut pool.spec.virtual_machine_template.as_mut().unwrap().spec;
    let templates = serde_json::json!([{"metadata": {"name": "root"}}, {"metadata": {"name": "data"}}]);
    spec.data_volume_templates = serde_json::from_value(templates).unwrap();
    let volumes = serde_json::json!([{"name": "a", "dataVolume": {"name": "root"}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "c", "dataVolume": {"name": "shared"}}]);
    spec.template.as_mut().unwrap().spec.volumes = serde_json::from_value(volumes).unwrap();
    let decision = observed(&pool, &[], &[]);
    let Some(Step::Create(vm)) = decision.steps.get(1) else { panic!("{decision:?}") };
    let templates = &vm.spec.data_volume_templates;
    let templates: Vec<&str> = templates.iter().map(|template| template.metadata.name.as_str()).collect();
    assert_eq!(templates, ["root-0", "data-0"]);
    let volumes = vm.spec.template.as_ref().unwrap().spec.volumes.iter();
    let claims: Vec<&str> = volumes.filter_map(|volume| Some(volume.claim()?.name)).collect();
    assert_eq!(claims, ["root-0", "data-0", "shared"]);
}

#[test]
fn what_does_not_start_is_replaced() {
    let mut healing = pool(1, 1);
    let mut broken = one(0, 1, None);
    broken.vm.status.printable_status = "CrashLoopBackOff".to_owned();
    broken.vm.status.start_failure =
        Some(StartFailure { consecutive_fail_count: 2, ..StartFailure::default() });
    assert!(steps_of(&observed(&healing, std::slice::from_ref(&broken), &[1])).is_empty());
    healing.spec.autohealing = Some(VirtualMachinePoolAutohealingStrategy {
        start_up_failure_threshold: Some(2),
        min_failing_to_start_duration: Some("30m".to_owned()),
        ..Default::default()
    });
    assert_eq!(steps_of(&observed(&healing, std::slice::from_ref(&broken), &[1])), ["-m0"]);
    broken.vm.status.start_failure = None;
    let waiting = observed(&healing, std::slice::from_ref(&broken), &[1]);
    assert_eq!(
        (steps_of(&waiting).len(), waiting.requeue_at),
        (0, Some("2026-11-21T12:20:00Z".parse().unwrap()))
    );
    // Ten minutes are more than the five that are meant by default.
    healing.spec.autohealing = Some(VirtualMachinePoolAutohealingStrategy::default());
    assert_eq!(steps_of(&observed(&healing, &[broken], &[1])), ["-m0"]);
}

#[test]
fn a_pause_stops_everything_but_the_account() {
    let mut paused = pool(3, 1);
    paused.spec.paused = true;
    let mut unmatched = one(1, 1, None);
    unmatched.vm.metadata.labels.clear();
    let decision = observed(&paused, &[one(0, 1, Some((1, true))), unmatched], &[1]);
    assert_eq!((steps_of(&decision), decision.paused), (vec!["release m1".to_owned()], Some(true)));
    let status = &decision.status;
    assert_eq!((status.replicas, status.ready_replicas, status.conditions.len()), (Some(1), Some(1), 1));
    assert_eq!(
        (status.label_selector.as_str(), status.conditions[0].r#type.as_str()),
        ("app=web", "ReplicaPaused")
    );
    paused.metadata.deletion_timestamp = Some(NOW.to_owned());
    assert!(steps_of(&observed(&paused, &[one(0, 1, None)], &[])).is_empty());
}
