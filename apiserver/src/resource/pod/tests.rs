use super::*;

fn pod() -> Value {
    json!({"metadata": {"name": "x", "namespace": "n"}, "spec": {
        "containers": [{"name": "compute", "image": "registry/launcher:v1", "volumeMounts": [{"name": "run", "mountPath": "/run"}]}],
        "volumes": [{"name": "run"}],
    }})
}

fn created(change: Value) -> (Value, Vec<Cause>) {
    let mut pod = pod();
    json_patch::merge(&mut pod, &change);
    let causes = (PODS.admit)(&mut pod, None);
    (pod, causes)
}

fn fields(causes: &[Cause]) -> Vec<(&str, &str)> {
    causes.iter().map(|cause| (cause.field.as_str(), cause.message.split(':').next().unwrap())).collect()
}

#[test]
fn a_new_pod_is_pending_and_has_defaults() {
    let (pod, causes) = created(json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}}));
    assert_eq!(causes, []);
    assert_eq!(pod["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    for (field, expected) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
    ] {
        assert_eq!(pod["spec"][field], expected);
    }
    assert_eq!(pod["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
    assert_eq!(pod["spec"]["volumes"][0]["emptyDir"], json!({}));
    let (gated, _) = created(json!({"spec": {"schedulingGates": [{"name": "a/b"}]}}));
    assert_eq!(gated["status"]["conditions"][0]["reason"], "SchedulingGated");
}

#[test]
fn what_is_wrong_with_a_new_pod_is_said_by_field() {
    let container = |change: Value| {
        let mut container = json!({"name": "compute", "image": "x"});
        json_patch::merge(&mut container, &change);
        json!({"spec": {"containers": [container]}})
    };
    let one = json!({"name": "a", "image": "x"});
    for (change, expected) in [
        (json!({"spec": {"containers": []}}), vec![("spec.containers", "Required value")]),
        (container(json!({"name": "A"})), vec![("spec.containers[0].name", "Invalid value")]),
        (container(json!({"name": ""})), vec![("spec.containers[0].name", "Required value")]),
        (container(json!({"image": ""})), vec![("spec.containers[0].image", "Required value")]),
        (
            json!({"spec": {"containers": [one], "initContainers": [one]}}),
            vec![("spec.initContainers[0].name", "Duplicate value")],
        ),
        (
            container(json!({"volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}]})),
            vec![("spec.containers[0].volumeDevices[0].name", "Not found")],
        ),
        (
            container(json!({"ports": [{"containerPort": 70000}]})),
            vec![("spec.containers[0].ports[0].containerPort", "Invalid value")],
        ),
        (json!({"spec": {"restartPolicy": "Sometimes"}}), vec![("spec.restartPolicy", "Unsupported value")]),
        (json!({"spec": {"dnsPolicy": "Mine"}}), vec![("spec.dnsPolicy", "Unsupported value")]),
        (
            json!({"spec": {"activeDeadlineSeconds": 0}}),
            vec![("spec.activeDeadlineSeconds", "Invalid value")],
        ),
        (json!({"spec": {"hostname": "a.b"}}), vec![("spec.hostname", "Invalid value")]),
        (
            json!({"spec": {"nodeName": "n", "schedulingGates": [{"name": "a/b"}]}}),
            vec![("spec.nodeName", "Forbidden")],
        ),
    ] {
        assert_eq!(fields(&created(change.clone()).1), expected, "{change}");
    }
}

#[test]
fn only_some_fields_of_a_pod_are_updated() {
    let toleration = |seconds: i64| json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let base = json!({"spec": {"tolerations": [toleration(5)], "activeDeadlineSeconds": 60}});
    let old = created(base).0;
    let image = |image: &str| {
        let mut containers = old["spec"]["containers"].clone();
        containers[0]["image"] = json!(image);
        json!({"spec": {"containers": containers}})
    };
    for (change, expected) in [
        (json!({"metadata": {"labels": {"a": "b"}}}), vec![]),
        (image("other"), vec![]),
        (image(""), vec![("spec.containers[0].image", "Required value")]),
        (json!({"spec": {"containers": []}}), vec![("spec.containers", "Forbidden")]),
        (json!({"spec": {"activeDeadlineSeconds": 30}}), vec![]),
        (
            json!({"spec": {"activeDeadlineSeconds": 90}}),
            vec![("spec.activeDeadlineSeconds", "Invalid value")],
        ),
        (
            json!({"spec": {"activeDeadlineSeconds": null}}),
            vec![("spec.activeDeadlineSeconds", "Invalid value")],
        ),
        (json!({"spec": {"tolerations": [{"key": "b"}, toleration(9)]}}), vec![]),
        (json!({"spec": {"tolerations": [{"key": "b"}]}}), vec![("spec.tolerations", "Forbidden")]),
        (
            json!({"spec": {"schedulingGates": [{"name": "a/b"}]}}),
            vec![("spec.schedulingGates[0].name", "Forbidden")],
        ),
        (json!({"spec": {"terminationGracePeriodSeconds": 1}}), vec![("spec", "Forbidden")]),
        (json!({"spec": {"nodeName": "n"}}), vec![("spec", "Forbidden")]),
        (json!({"spec": {"restartPolicy": null}}), vec![]),
        (json!({"spec": {"restartPolicy": "Never"}}), vec![("spec", "Forbidden")]),
    ] {
        let mut new = old.clone();
        json_patch::merge(&mut new, &change);
        assert_eq!(fields(&(PODS.admit)(&mut new, Some(&old))), expected, "{change}");
    }
    let mut endless = old.clone();
    endless["spec"]["terminationGracePeriodSeconds"] = json!(-5);
    let mut new = endless.clone();
    new["spec"]["terminationGracePeriodSeconds"] = json!(1);
    assert_eq!((PODS.admit)(&mut new, Some(&endless)), []);
}

#[test]
fn a_pod_is_bound_once() {
    let mut pod = created(json!({"metadata": {"labels": {"a": "b"}}})).0;
    let binding =
        json!({"metadata": {"labels": {"c": "d"}, "annotations": {"e": "f"}}, "target": {"name": "n"}});
    bind(&mut pod, &binding).unwrap();
    assert_eq!(pod["spec"]["nodeName"], "n");
    assert_eq!(pod["metadata"]["labels"], json!({"a": "b", "c": "d"}));
    assert_eq!(pod["metadata"]["annotations"], json!({"e": "f"}));
    let condition = &pod["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("PodScheduled"), &json!("True")));
    assert_eq!(bind(&mut pod, &binding), Err("pod x is already assigned to node \"n\"".to_owned()));
    let mut deleting = created(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})).0;
    assert!(bind(&mut deleting, &binding).unwrap_err().contains("is being deleted"));
    let mut gated = created(json!({"spec": {"schedulingGates": [{"name": "a/b"}]}})).0;
    assert!(bind(&mut gated, &binding).unwrap_err().contains("schedulingGates"));
}

/// The cells of a pod without its age.
fn cells(change: Value) -> Vec<String> {
    let mut pod = json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
    json_patch::merge(&mut pod, &change);
    let columns = PODS.columns.iter().filter(|column| column.name != "Age");
    columns.map(|column| column.cell(&pod).as_str().unwrap().to_owned()).collect()
}

#[test]
fn columns_are_those_of_kubernetes() {
    let names: Vec<&str> = PODS.columns.iter().map(|column| &*column.name).collect();
    let wide = ["IP", "Node", "Nominated Node", "Readiness Gates"];
    assert_eq!(names, [&["Ready", "Status", "Restarts", "Age"][..], &wide].concat());
    let running = json!({"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}});
    let waiting = json!({"name": "b", "restartCount": 2, "state": {"waiting": {"reason": "ErrImagePull"}}});
    let ended = |reason: &str, code: i64| json!({"name": "b", "state": {"terminated": {"reason": reason, "exitCode": code}}});
    let with = |statuses: Value| json!({"status": {"phase": "Running", "containerStatuses": statuses}});
    let init = |state: Value| {
        json!({"spec": {"initContainers": [{"name": "i"}]},
            "status": {"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": state}]}})
    };
    for (change, expected) in [
        (json!({"status": {"phase": "Pending"}}), ["0/2", "Pending", "0"]),
        (json!({"status": {"phase": "Failed", "reason": "Evicted"}}), ["0/2", "Evicted", "0"]),
        (with(json!([running, running])), ["2/2", "Running", "0"]),
        (with(json!([running, waiting])), ["1/2", "ErrImagePull", "2"]),
        (with(json!([ended("Error", 1)])), ["0/2", "Error", "0"]),
        (with(json!([ended("", 3)])), ["0/2", "ExitCode:3", "0"]),
        (with(json!([ended("Completed", 0)])), ["0/2", "Completed", "0"]),
        (with(json!([ended("Completed", 0), running])), ["1/2", "NotReady", "0"]),
        (init(json!({"running": {}})), ["0/2", "Init:0/1", "0"]),
        (init(json!({"waiting": {"reason": "ErrImagePull"}})), ["0/2", "Init:ErrImagePull", "0"]),
        (init(json!({"terminated": {"exitCode": 1, "reason": "Error"}})), ["0/2", "Init:Error", "0"]),
        (init(json!({"terminated": {"exitCode": 0}})), ["0/2", "Pending", "0"]),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Running"}}),
            ["0/2", "Terminating", "0"],
        ),
        (
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": "Succeeded"}}),
            ["0/2", "Succeeded", "0"],
        ),
    ] {
        assert_eq!(cells(change.clone())[..3], expected, "{change}");
    }
    assert_eq!(cells(json!({}))[3..], ["<none>"; 4]);
    let placed = json!({"spec": {"nodeName": "n", "readinessGates": [{"conditionType": "g"}]},
        "status": {"podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "g", "status": "True"}]}});
    assert_eq!(cells(placed)[3..], ["10.0.0.1", "n", "<none>", "1/1"]);
    let since = meta::after_now(-90);
    let restarted = json!({"restartCount": 1, "lastState": {"terminated": {"finishedAt": since}}});
    assert!(cells(with(json!([restarted])))[2].starts_with("1 (9"));
}
