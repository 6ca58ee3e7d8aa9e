use serde_json::{Value, json};

use super::*;

fn vmi(metadata: Value, status: Value) -> VirtualMachineInstance {
    serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
}

fn pod(uid: &str, node: &str, status: Value) -> LauncherPod {
    let metadata = json!({"name": uid, "uid": uid, "creationTimestamp": uid});
    LauncherPod::read(json!({"metadata": metadata, "spec": {"nodeName": node}, "status": status})).unwrap()
}

fn deleted(mut pod: LauncherPod) -> LauncherPod {
    pod.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    pod
}

/// The launcher of this release.
fn launcher(started_by: StartedBy) -> Launcher {
    Launcher::new("launcher:2", started_by)
}

fn decided(vmi: &VirtualMachineInstance, pods: &[LauncherPod], started_by: StartedBy) -> Decision {
    let pods: Vec<&LauncherPod> = pods.iter().collect();
    decide(&Observed {
        vmi,
        pods: &pods,
        consumers: &[],
        failure: None,
        wait: None,
        warning: None,
        launcher: &launcher(started_by),
        is_node_unresponsive: false,
        now: Timestamp::UNIX_EPOCH,
    })
}

/// What is decided when the node is not heard of.
fn without_node(vmi: &VirtualMachineInstance, pods: &[LauncherPod]) -> Decision {
    let pods: Vec<&LauncherPod> = pods.iter().collect();
    decide(&Observed {
        vmi,
        pods: &pods,
        consumers: &[],
        failure: None,
        wait: None,
        warning: None,
        launcher: &launcher(StartedBy::Kubelet),
        is_node_unresponsive: true,
        now: Timestamp::UNIX_EPOCH,
    })
}

fn steps(vmi: &VirtualMachineInstance, pods: &[LauncherPod]) -> Vec<Step> {
    decided(vmi, pods, StartedBy::NodeAgent).steps
}

#[test]
fn the_pod_of_an_instance_that_runs_is_on_the_networks_of_its_nics() {
    let nic = |name: &str, state: &str| json!({"name": name, "state": state});
    let instance = |nics: &[(&str, &str)], shown: &[&str]| -> VirtualMachineInstance {
        let network = |(name, _): &(&str, &str)| json!({"name": name, "multus": {"networkName": "lan"}});
        let interfaces: Vec<Value> = shown.iter().map(|name| json!({ "name": name })).collect();
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "labels": {NODE_LABEL: "node"}},
            "spec": {"networks": nics.iter().map(network).collect::<Vec<_>>(), "domain": {"devices": {
                "interfaces": nics.iter().map(|(name, state)| nic(name, state)).collect::<Vec<_>>()}}},
            "status": {"phase": "Running", "activePods": {"1": "node"}, "interfaces": interfaces},
        }))
        .unwrap()
    };
    let attached = |annotation: Option<&str>| {
        let mut pod = pod("1", "node", json!({"phase": "Running"}));
        let name = "k8s.v1.cni.cncf.io/networks".to_owned();
        pod.metadata.annotations.extend(annotation.map(|text| (name, text.to_owned())));
        pod
    };
    let networks = |vmi: &VirtualMachineInstance, annotation: Option<&str>| {
        let steps = decided(vmi, &[attached(annotation)], StartedBy::Kubelet).steps;
        let value = steps.into_iter().find_map(|step| match step {
            Step::AttachNetworks(_, value) => Some(value),
            _ => None,
        });
        value.map(|value| serde_json::from_str::<Value>(&value).unwrap())
    };
    let blue = json!({"name": "lan", "namespace": "n", "interface": "pod16477688c0e"});
    let with_blue = json!([blue]).to_string();
    assert_eq!(networks(&instance(&[("blue", "")], &[]), None), Some(json!([blue])));
    assert_eq!(networks(&instance(&[("blue", "")], &["blue"]), Some(&with_blue)), None);
    let absent = &[("blue", "absent")][..];
    assert_eq!(networks(&instance(absent, &["blue"]), Some(&with_blue)), None, "the guest has it");
    assert_eq!(networks(&instance(absent, &[]), Some(&with_blue)), Some(json!([])));
    assert_eq!(networks(&instance(&[], &[]), Some("lan@net1")), None, "another client wrote it");
    let mut scheduled = instance(&[("blue", "")], &[]);
    scheduled.status.phase = "Scheduled".to_owned();
    assert_eq!(networks(&scheduled, None), None);
    let steps = decided(&instance(&[("blue", "")], &[]), &[attached(None)], StartedBy::NodeAgent).steps;
    assert!(!steps.iter().any(|step| matches!(step, Step::AttachNetworks(..))), "{steps:?}");
}

fn delete(uid: &str) -> Step {
    Step::DeletePod(uid.to_owned())
}

#[test]
fn an_instance_gets_one_pod_and_goes_to_the_node_of_that() {
    let new = vmi(json!({"name": "x"}), json!({"phase": "Pending"}));
    assert_eq!(steps(&new, &[]), [Step::CreatePod(None)]);
    assert_eq!(steps(&new, &[pod("1", "", json!({}))]), []);
    let bound = pod("1", "node1", json!({}));
    assert_eq!(steps(&new, std::slice::from_ref(&bound)), [Step::HandOver("node1".to_owned())]);
    let later = pod("2", "", json!({}));
    assert_eq!(steps(&new, &[bound.clone(), later]), [delete("2"), Step::HandOver("node1".to_owned())]);
    assert_eq!(steps(&new, &[deleted(bound)]), [], "the next one is created when it is gone");
}

#[test]
fn a_kubelet_starts_the_launcher_before_the_hand_over() {
    let new = vmi(json!({"name": "x"}), json!({"phase": "Pending"}));
    let container = |state: Value| json!({"containerStatuses": [{"name": "compute", "state": state}]});
    for (state, handed_over) in [
        (json!({}), 0),
        (json!({"waiting": {"reason": "ContainerCreating"}}), 0),
        (json!({"running": {}}), 1),
    ] {
        let pods = [pod("1", "node1", container(state.clone()))];
        assert_eq!(decided(&new, &pods, StartedBy::Kubelet).steps.len(), handed_over, "{state}");
    }
}

#[test]
fn an_instance_whose_pod_does_not_run_for_long_is_scheduling() {
    let new = vmi(json!({"name": "x"}), json!({}));
    let container = json!({"name": "compute", "state": {"waiting": {"reason": "ContainerCreating"}}});
    let mut pod = pod("1", "node1", json!({"containerStatuses": [container]}));
    let after = |pod: &LauncherPod, seconds: i64, started_by: StartedBy| {
        let launcher = launcher(started_by);
        let now = Timestamp::from_second(seconds).unwrap();
        let observed = Observed {
            vmi: &new,
            pods: &[pod],
            consumers: &[],
            failure: None,
            wait: None,
            warning: None,
            launcher: &launcher,
            is_node_unresponsive: false,
            now,
        };
        let decision = decide(&observed);
        (decision.status.phase, decision.again.map(|again| again.as_secs()))
    };
    assert_eq!(after(&pod, 100, StartedBy::Kubelet), (String::new(), None), "its age is not known");
    pod.metadata.creation_timestamp = Some("1970-01-01T00:01:40Z".to_owned());
    for (seconds, phase, again) in
        [(90, "", Some(10)), (100, "", Some(10)), (107, "", Some(3)), (110, "Scheduling", None)]
    {
        assert_eq!(after(&pod, seconds, StartedBy::Kubelet), (phase.to_owned(), again), "{seconds}");
    }
    assert_eq!(after(&pod, 200, StartedBy::NodeAgent), (String::new(), None), "it is handed over");
}

#[test]
fn why_a_pod_is_not_bound_is_said_once() {
    let condition = |message: &str| json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]});
    let mut waits = vmi(json!({"name": "x"}), json!({"phase": "Pending"}));
    let pods = [pod("1", "", condition("no room"))];
    let decision = decided(&waits, &pods, StartedBy::NodeAgent);
    assert_eq!(
        (decision.status.phase.as_str(), &decision.unschedulable),
        ("Scheduling", &Some("no room".to_owned()))
    );
    waits.status = decision.status.clone();
    let again = decided(&waits, &pods, StartedBy::NodeAgent);
    assert_eq!((&again.status, again.unschedulable), (&decision.status, None));
    let bound = decided(&waits, &[pod("1", "node1", json!({}))], StartedBy::NodeAgent);
    assert_eq!(bound.status.conditions, [], "{:?}", bound.steps);
}

#[test]
fn failed_image_pulls_and_pod_creations_are_reported() {
    let waits = vmi(json!({"name": "x"}), json!({"phase": "Pending"}));
    let container =
        json!({"name": "volumedisk", "state": {"waiting": {"reason": "ErrImagePull", "message": "m"}}});
    let pods = [pod("1", "node1", json!({"initContainerStatuses": [container]}))];
    let Decision { status, steps, .. } = decided(&waits, &pods, StartedBy::Kubelet);
    let said = |status: &Status| {
        let said = status.conditions.iter().find(|one| one.r#type == SYNCHRONIZED);
        said.map(|said| (said.status.clone(), said.reason.clone(), said.message.clone()))
    };
    let owned =
        |reason: &str, message: &str| Some(("False".to_owned(), reason.to_owned(), message.to_owned()));
    assert_eq!((said(&status), steps.len()), (owned("ErrImagePull", "m"), 0));
    let launcher = launcher(StartedBy::Kubelet);
    let observed = Observed {
        vmi: &waits,
        pods: &[],
        consumers: &[],
        failure: Some("exceeded quota"),
        wait: None,
        warning: None,
        launcher: &launcher,
        is_node_unresponsive: false,
        now: Timestamp::UNIX_EPOCH,
    };
    let Decision { status, steps, .. } = decide(&observed);
    assert_eq!(
        (said(&status), steps),
        (owned("FailedCreate", "exceeded quota"), vec![Step::CreatePod(None)])
    );
}

#[test]
fn a_pod_that_ends_before_the_hand_over_fails_its_instance() {
    let waits = vmi(json!({"name": "x"}), json!({"phase": "Scheduling"}));
    let evicted = pod("1", "node1", json!({"phase": "Failed", "reason": "Evicted", "message": "no disk"}));
    let Decision { status, steps, .. } = decided(&waits, &[evicted], StartedBy::NodeAgent);
    assert_eq!((status.phase.as_str(), status.reason.as_str(), steps), ("Failed", "Evicted", vec![]));
}

#[test]
fn what_is_deleted_before_its_hand_over_is_released_when_its_pod_is_gone() {
    let metadata =
        json!({"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [VMI_FINALIZER]});
    let leaving = vmi(metadata, json!({"phase": "Pending"}));
    let waiting = pod("1", "", json!({}));
    assert_eq!(steps(&leaving, std::slice::from_ref(&waiting)), [delete("1")]);
    assert_eq!(steps(&leaving, &[deleted(waiting)]), []);
    let Decision { status, steps, .. } = decided(&leaving, &[], StartedBy::NodeAgent);
    assert_eq!((status.phase.as_str(), steps), ("Failed", vec![Step::Release]));
}

#[test]
fn what_is_handed_over_is_the_node_agents() {
    let labels = json!({NODE_LABEL: "node1"});
    let active = json!({"1": "node1"});
    let runs = vmi(json!({"name": "x", "labels": labels}), json!({"phase": "Running", "activePods": active}));
    let Decision { status, steps: all, .. } =
        decided(&runs, &[pod("1", "node1", json!({}))], StartedBy::NodeAgent);
    assert_eq!((status, all), (runs.status.clone(), vec![]));
    let Decision { status, steps: all, .. } = decided(&runs, &[], StartedBy::NodeAgent);
    assert_eq!((status, all), (runs.status.clone(), vec![]), "the node agent ends it");
    let metadata = json!({"name": "x", "labels": labels, "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": [VMI_FINALIZER]});
    assert_eq!(steps(&vmi(metadata, json!({"phase": "Running"})), &[]), []);
}

#[test]
fn the_node_agent_notes_the_first_pod_of_what_starts() {
    let labels = json!({NODE_LABEL: "node1"});
    let mut starts = vmi(json!({"name": "x", "labels": labels}), json!({"phase": "Pending"}));
    let bound = pod("1", "node1", json!({}));
    let Decision { status, steps: all, .. } =
        decided(&starts, std::slice::from_ref(&bound), StartedBy::NodeAgent);
    assert_eq!((status, all), (starts.status.clone(), vec![]), "it writes the status anyway");
    assert_eq!(steps(&starts, &[]), [], "a Pod that is gone is not created again");
    "Running".clone_into(&mut starts.status.phase);
    let noted = decided(&starts, std::slice::from_ref(&bound), StartedBy::NodeAgent).status.active_pods;
    assert_eq!(noted, BTreeMap::from([("1".to_owned(), "node1".to_owned())]), "it did not note it");
    starts.status.active_pods = noted;
    let ended = pod("1", "node1", json!({"phase": "Failed"}));
    assert_eq!(decided(&starts, &[ended], StartedBy::NodeAgent).status.active_pods, BTreeMap::new());
}

#[test]
fn what_ran_before_there_were_pods_gets_one_on_its_node() {
    let create = Step::CreatePod(Some("node1".to_owned()));
    let labelled = vmi(json!({"name": "x", "labels": {NODE_LABEL: "node1"}}), json!({"phase": "Running"}));
    assert_eq!(steps(&labelled, &[]), std::slice::from_ref(&create));
    let noted = vmi(json!({"name": "x"}), json!({"phase": "Running", "nodeName": "node1"}));
    assert_eq!(steps(&noted, &[]), [create, Step::HandOver("node1".to_owned())]);
    let leaving = json!({"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"});
    let leaving = vmi(leaving, json!({"phase": "Running", "nodeName": "node1"}));
    assert_eq!(steps(&leaving, &[]), [Step::HandOver("node1".to_owned())]);
}

#[test]
fn an_instance_fails_with_its_node_when_no_pod_may_run_it() {
    let labels = json!({NODE_LABEL: "node1"});
    let runs = vmi(
        json!({"name": "x", "labels": labels, "finalizers": [VMI_FINALIZER]}),
        json!({"phase": "Running", "nodeName": "node1", "activePods": {"1": "node1"}}),
    );
    let container = |state: Value| json!({"phase": "Running", "containerStatuses": [{"name": "compute", "state": state}]});
    for (status, may_run) in [
        (json!({"phase": "Running"}), true),
        (container(json!({"running": {}})), true),
        (container(json!({"terminated": {"exitCode": 137}})), false),
        (json!({"phase": "Failed"}), false),
    ] {
        let decision = without_node(&runs, &[deleted(pod("1", "node1", status.clone()))]);
        assert_eq!(decision.status.phase == "Running", may_run, "{status}");
    }
    let failed = without_node(&runs, &[]);
    assert_eq!((failed.status.phase.as_str(), failed.status.reason.as_str()), ("Failed", "NodeUnresponsive"));
    let why = failed.unresponsive.unwrap();
    assert_eq!(why, "virt-handler on node node1 is not responsive, and no Pod runs the instance");
    assert_eq!(failed.steps, [], "it is kept until it is deleted");
    assert_eq!(
        decided(&runs, &[], StartedBy::Kubelet).status.phase,
        "Running",
        "its node agent says how it ended"
    );

    let mut last = runs.clone();
    last.status = failed.status;
    assert_eq!(without_node(&last, &[]).unresponsive, None, "it is said once");
    last.metadata.deletion_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
    assert_eq!(without_node(&last, &[]).steps, [Step::Release]);
    let dies = [pod("1", "node1", json!({"phase": "Running"}))];
    assert_eq!(without_node(&last, &dies).steps, [], "it may run");
}

#[test]
fn an_instance_of_another_launcher_image_is_marked_while_it_runs() {
    let runs = |labels: Value, phase: &str| {
        let mut metadata = json!({"name": "x", "labels": labels});
        metadata["labels"][NODE_LABEL] = json!("node1");
        vmi(metadata, json!({"phase": phase, "nodeName": "node1"}))
    };
    let of = |image: &str, made_for: Option<&str>| {
        let annotations = made_for.map(|image| json!({ "vireo.io/launcher-image": image }));
        LauncherPod::read(json!({
            "metadata": {"name": "1", "uid": "1", "annotations": annotations.unwrap_or_else(|| json!({}))},
            "spec": {"nodeName": "node1", "containers": [
                {"name": "sidecar", "image": "other:1"}, {"name": "compute", "image": image}]},
        }))
        .unwrap()
    };
    let marked = || json!({OUTDATED_LABEL: ""});
    let new = || json!({});
    for (name, labels, phase, pod, steps) in [
        ("of before", new(), "Running", of("launcher:1", None), vec![Step::MarkOutdated(true)]),
        ("marked", marked(), "Running", of("launcher:1", None), vec![]),
        ("rolled back", marked(), "Running", of("launcher:2", None), vec![Step::MarkOutdated(false)]),
        ("of this release", new(), "Running", of("launcher:2", Some("launcher:2")), vec![]),
        ("of a mirror", new(), "Running", of("mirror/launcher:2", Some("launcher:2")), vec![]),
        (
            "of before, of a mirror",
            new(),
            "Running",
            of("mirror/launcher:1", Some("launcher:1")),
            vec![Step::MarkOutdated(true)],
        ),
        ("starts", new(), "Scheduled", of("launcher:1", None), vec![Step::MarkOutdated(true)]),
        ("has ended", marked(), "Succeeded", of("launcher:1", None), vec![]),
        ("without an image", new(), "Running", of("", None), vec![]),
    ] {
        let image = pod.image().to_owned();
        let vmi = runs(labels, phase);
        let decision = decided(&vmi, std::slice::from_ref(&pod), StartedBy::Kubelet);
        assert_eq!(decision.steps, steps, "{name}");
        let expected = if phase == "Succeeded" { "" } else { image.as_str() };
        assert_eq!(decision.status.launcher_container_image_version, expected, "{name}");
        let here = decided(&vmi, &[pod], StartedBy::NodeAgent);
        assert_eq!(
            (here.steps, here.status.launcher_container_image_version.as_str()),
            (vec![], ""),
            "{name}"
        );
    }
}

#[test]
fn why_a_pod_waits_on_its_node_is_reported_as_the_kubelet_says_it() {
    let new = vmi(json!({"name": "x"}), json!({"phase": "Pending"}));
    let launcher = launcher(StartedBy::Kubelet);
    let waiting = |reason: &str| {
        let waiting = json!({"reason": reason, "message": format!("m of {reason}")});
        json!({"containerStatuses": [{"name": "compute", "state": {"waiting": waiting}}]})
    };
    let mount =
        Warning { reason: "FailedMount".to_owned(), message: "configmap \"missing\" not found".to_owned() };
    for (status, warning, expected) in [
        (waiting("ContainerCreating"), None, None),
        (
            waiting("ContainerCreating"),
            Some(&mount),
            Some(("FailedMount", "configmap \"missing\" not found")),
        ),
        (
            waiting("CreateContainerConfigError"),
            Some(&mount),
            Some(("CreateContainerConfigError", "m of CreateContainerConfigError")),
        ),
        (waiting("CreateContainerError"), None, Some(("CreateContainerError", "m of CreateContainerError"))),
        (waiting("RunContainerError"), None, Some(("RunContainerError", "m of RunContainerError"))),
    ] {
        let pod = pod("1", "node1", status.clone());
        let observed = |vmi| {
            decide(&Observed {
                vmi,
                pods: &[&pod],
                consumers: &[],
                failure: None,
                wait: None,
                warning,
                launcher: &launcher,
                is_node_unresponsive: false,
                now: Timestamp::UNIX_EPOCH,
            })
        };
        let decision = observed(&new);
        let said = decision.status.conditions.iter().find(|one| one.r#type == SYNCHRONIZED);
        let said = said.map(|said| (said.reason.as_str(), said.message.as_str()));
        assert_eq!((said, decision.steps.len()), (expected, 0), "{status}");
        let phase = if expected.is_some() { "Scheduling" } else { "Pending" };
        assert_eq!(decision.status.phase, phase, "{status}");
        let mut later = new.clone();
        later.status = decision.status.clone();
        assert_eq!(observed(&later).status, decision.status, "it is written once: {status}");
    }
}
