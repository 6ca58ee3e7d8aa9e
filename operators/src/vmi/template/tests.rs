use serde_json::{Value, json};

use super::super::StartedBy;
use super::*;

fn inputs(node: Option<&str>, images: ImageDelivery) -> PodInputs<'_> {
    static NO_CLAIMS: Claims = Claims::new();
    PodInputs { node, claims: &NO_CLAIMS, images, limits_cpu: false }
}

#[test]
fn a_cpu_limit_is_that_of_the_launcher_alone() {
    let vmi = json!({"metadata": {"name": "web"},
        "spec": {"domain": {"cpu": {"cores": 2}, "devices": {"logSerialConsole": true}}}});
    let vmi = serde_json::from_value(vmi).unwrap();
    let launcher = Launcher { image: "launcher:1".to_owned(), started_by: StartedBy::Kubelet, native: false };
    let limits = |limits_cpu| {
        let inputs = PodInputs { limits_cpu, ..inputs(None, ImageDelivery::Containers) };
        let pod = launcher_pod(&vmi, &launcher, &ClusterConfig::default(), inputs).unwrap();
        let containers = pod.spec.unwrap().containers;
        let limit = |container: Container| Some(container.resources?.limits?.remove("cpu")?.0);
        containers.into_iter().map(|one| (one.name.clone(), limit(one))).collect::<Vec<_>>()
    };
    let (free, limited) = (limits(false), limits(true));
    assert_eq!(free[0], (COMPUTE.to_owned(), None));
    assert_eq!(limited[0], (COMPUTE.to_owned(), Some("2000m".to_owned())));
    assert!(limited.len() > 1);
    assert_eq!(limited[1..], free[1..]);
}

fn rendered(vmi: Value, node: Option<&str>) -> Value {
    rendered_for(StartedBy::NodeAgent, vmi, node)
}

fn rendered_for(started_by: StartedBy, vmi: Value, node: Option<&str>) -> Value {
    let launcher = Launcher { image: "launcher:1".to_owned(), started_by, native: false };
    let (vmi, config) = (serde_json::from_value(vmi).unwrap(), ClusterConfig::default());
    json!(launcher_pod(&vmi, &launcher, &config, inputs(node, ImageDelivery::Containers)).unwrap())
}

/// That of a cluster with this configuration.
fn configured(configuration: Value, vmi: Value) -> Value {
    let (config, problems) = ClusterConfig::read(&serde_json::from_value(configuration).unwrap());
    assert_eq!(problems, []);
    let launcher = Launcher { image: "launcher:1".to_owned(), started_by: StartedBy::Kubelet, native: false };
    let vmi = serde_json::from_value(vmi).unwrap();
    json!(launcher_pod(&vmi, &launcher, &config, inputs(None, ImageDelivery::Containers)).unwrap())
}

#[test]
fn the_confinement_of_all_containers_is_configured() {
    let vmi = json!({"metadata": {"name": "demo"}, "spec": {
        "domain": {"memory": {"guest": "64Mi"}, "devices": {"logSerialConsole": true}},
        "volumes": [{"name": "root", "containerDisk": {"image": "example.com/d:1"}}],
    }});
    let profiles = |pod: &Value| -> Vec<Value> {
        let of = |kind: &str| pod["spec"][kind].as_array().cloned().unwrap_or_default();
        let all = of("containers").into_iter().chain(of("initContainers"));
        all.map(|one| one["securityContext"]["seccompProfile"].clone()).collect()
    };
    let pod = configured(json!({}), vmi.clone());
    assert_eq!(pod["spec"].get("securityContext"), None);
    let default = json!({"type": "RuntimeDefault"});
    assert!(profiles(&pod).len() > 3 && profiles(&pod).iter().all(|profile| *profile == default));
    let custom =
        json!({"virtualMachineInstanceProfile": {"customProfile": {"localhostProfile": "vms.json"}}});
    let pod = configured(json!({"selinuxLauncherType": "vm_t", "seccompConfiguration": custom}), vmi);
    assert_eq!(pod["spec"]["securityContext"], json!({"seLinuxOptions": {"type": "vm_t"}}));
    let local = json!({"type": "Localhost", "localhostProfile": "vms.json"});
    assert!(profiles(&pod).len() > 3 && profiles(&pod).iter().all(|profile| *profile == local));
}

#[test]
fn images_are_volumes_of_the_launcher_where_the_cluster_has_them() {
    let kernel =
        json!({"image": "example.com/k:1", "kernelPath": "/boot/vmlinuz", "imagePullPolicy": "Always"});
    let disk = |image: &str| json!({"image": image, "imagePullSecret": "s"});
    let vmi = json!({"metadata": {"name": "demo"}, "spec": {
        "domain": {"memory": {"guest": "64Mi"}, "firmware": {"kernelBoot": {"container": kernel}},
            "devices": {"logSerialConsole": true}},
        "volumes": [{"name": "root", "containerDisk": disk("example.com/d:1")}],
    }});
    let launcher = Launcher { image: "launcher:1".to_owned(), started_by: StartedBy::Kubelet, native: false };
    let (vmi, config) = (serde_json::from_value(vmi).unwrap(), ClusterConfig::default());
    let pod = launcher_pod(&vmi, &launcher, &config, inputs(None, ImageDelivery::Volumes));
    let spec = &json!(pod.unwrap())["spec"];
    assert_eq!(spec.get("initContainers"), None);
    let volumes = json!([
        {"name": "sockets", "emptyDir": {}},
        {"name": "ephemeral-disks", "emptyDir": {}},
        {"name": "volumeroot", "image": {"reference": "example.com/d:1"}},
        {"name": "kernel-boot-volume", "image": {"reference": "example.com/k:1", "pullPolicy": "Always"}},
    ]);
    assert_eq!(spec["volumes"], volumes);
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
    let mounts = json!([
        {"name": "sockets", "mountPath": "/var/run/vireo"},
        mount("ephemeral-disks", "/var/run/kubevirt-ephemeral-disks"),
        mount("volumeroot", "/var/run/kubevirt-private/images/volumeroot"),
        mount("kernel-boot-volume", "/var/run/kubevirt-private/images/kernel-boot-volume"),
    ]);
    assert_eq!(spec["containers"][0]["volumeMounts"], mounts);
    let others = spec["containers"][1]["volumeMounts"].to_string();
    assert!(!others.contains("images"), "the log has none of them: {others}");
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "s"}]));
}

#[test]
fn settings_of_the_cluster_are_in_the_pod() {
    let vmi = json!({"metadata": {"name": "demo"}, "spec": {
        "nodeSelector": {"disk": "ssd"},
        "domain": {"memory": {"guest": "64Mi"}, "cpu": {"cores": 3}, "devices": {"logSerialConsole": true}},
        "volumes": [{"name": "root", "containerDisk": {"image": "example.com/d:1"}}],
    }});
    let support = |kind: &str| json!({"type": kind, "resources": {"requests": {"memory": "7Mi"}}});
    let configuration = json!({
        "imagePullPolicy": "Always", "defaultRuntimeClass": "kata",
        "additionalGuestMemoryOverheadRatio": "1.5",
        "supportContainerResources": [support("container-disk"), support("guest-console-log")],
        "developerConfiguration": {"cpuAllocationRatio": 2, "memoryOvercommit": 200, "useEmulation": true,
            "nodeSelectors": {"disk": "any", "rack": "1"}},
    });
    let spec = configured(configuration, vmi.clone())["spec"].take();
    let compute = &spec["containers"][0];
    assert_eq!((&compute["imagePullPolicy"], &spec["runtimeClassName"]), (&json!("Always"), &json!("kata")));
    let overhead = (120 << 20) * 3 / 2;
    let memory = ((32 << 20) + overhead).to_string();
    let requests = json!({"cpu": "1500m", "memory": memory, "ephemeral-storage": "50M"});
    assert_eq!(compute["resources"], json!({ "requests": requests }), "nothing of KVM");
    assert_eq!((&spec["nodeSelector"]["disk"], &spec["nodeSelector"]["rack"]), (&json!("ssd"), &json!("1")));
    let small =
        json!({"requests": {"cpu": "1m", "memory": "7Mi"}, "limits": {"cpu": "100m", "memory": "40M"}});
    let others = [&spec["containers"][1], &spec["initContainers"][1]];
    assert_eq!(others.map(|one| one["name"].clone()), ["guest-console-log", "volumeroot"]);
    for container in others {
        assert_eq!(container["resources"], small);
    }
    for container in [&spec["containers"][1], &spec["initContainers"][0]] {
        assert_eq!(container["imagePullPolicy"], "Always", "they have the launcher's image");
    }

    let usual = configured(json!({}), vmi)["spec"].take();
    assert_eq!(
        (&usual["containers"][0]["imagePullPolicy"], usual.get("runtimeClassName")),
        (&json!("IfNotPresent"), None)
    );
    let limits = json!({"devices.kubevirt.io/kvm": "1"});
    assert_eq!(usual["containers"][0]["resources"]["limits"], limits);
    let small =
        json!({"requests": {"cpu": "1m", "memory": "1M"}, "limits": {"cpu": "100m", "memory": "40M"}});
    assert_eq!(usual["initContainers"][0]["resources"], small);
}

#[test]
fn devices_of_the_host_are_requested_of_the_node() {
    let device = |name: &str| json!({"name": "x", "deviceName": name});
    let vmi = json!({"metadata": {"name": "demo"}, "spec": {"domain": {
        "memory": {"guest": "64Mi"},
        "devices": {"gpus": [device("a.b/gpu")], "hostDevices": [device("a.b/c"), device("a.b/c")]},
    }}});
    let resources = configured(json!({}), vmi.clone())["spec"]["containers"][0]["resources"].take();
    let memory = ((64 + 120 + 1024) << 20).to_string();
    let expected = json!({
        "requests": {"cpu": "100m", "memory": memory, "ephemeral-storage": "50M", "a.b/c": "2", "a.b/gpu": "1"},
        "limits": {"a.b/c": "2", "a.b/gpu": "1", "devices.kubevirt.io/kvm": "1"},
    });
    assert_eq!(resources, expected);
    let resources = rendered(vmi, None)["spec"]["containers"][0]["resources"].take();
    assert_eq!(resources.get("limits"), None, "of this host");
}

#[test]
fn huge_pages_are_requested_of_the_node() {
    let vmi = json!({"metadata": {"name": "demo"}, "spec": {"domain": {
        "memory": {"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}},
    }}});
    let resources = configured(json!({}), vmi.clone())["spec"]["containers"][0]["resources"].take();
    let (memory, pages) = ((120 << 20).to_string(), (64 << 20).to_string());
    let expected = json!({
        "requests": {"cpu": "100m", "memory": memory, "ephemeral-storage": "50M", "hugepages-2Mi": pages},
        "limits": {"hugepages-2Mi": pages, "devices.kubevirt.io/kvm": "1"},
    });
    assert_eq!(resources, expected);
    let resources = rendered(vmi, None)["spec"]["containers"][0]["resources"].take();
    assert_eq!(resources, json!({"requests": {"cpu": "100m", "memory": memory}}), "of this host");
}

#[test]
fn a_pod_is_of_its_instance() {
    let pod = rendered(
        json!({
            "metadata": {"name": "demo", "namespace": "n", "uid": "u",
                "labels": {"app": "x", "kubevirt.io/nodeName": "old"},
                "annotations": {"a": "b", "kubectl.kubernetes.io/last-applied-configuration": "{}"}},
            "spec": {"domain": {"memory": {"guest": "64Mi"}}},
        }),
        None,
    );
    let metadata = &pod["metadata"];
    assert_eq!(metadata["generateName"], "virt-launcher-demo-");
    let labels = json!({"app": "x", "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "u",
        "vm.kubevirt.io/name": "demo", "vmi.kubevirt.io/id": "demo"});
    assert_eq!(metadata["labels"], labels);
    let annotations = json!({"a": "b", "kubevirt.io/domain": "demo",
        "kubectl.kubernetes.io/default-container": "compute",
        "kubevirt.io/memory-overhead-bytes": "125829120"});
    assert_eq!(metadata["annotations"], annotations);
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "demo",
        "uid": "u", "controller": true, "blockOwnerDeletion": true});
    assert_eq!(metadata["ownerReferences"], json!([owner]));
    let spec = &pod["spec"];
    assert_eq!(spec["containers"][0]["name"], "compute");
    let requests = json!({"cpu": "100m", "memory": (64 << 20) + 125_829_120_i64});
    let requests = json!({"cpu": requests["cpu"], "memory": requests["memory"].to_string()});
    assert_eq!(spec["containers"][0]["resources"]["requests"], requests);
    assert_eq!(spec["containers"][0]["resources"].get("limits"), None, "of this host");
    assert_eq!(
        (&spec["restartPolicy"], &spec["terminationGracePeriodSeconds"]),
        (&json!("Never"), &json!(60))
    );
    assert_eq!(spec.get("nodeName"), None);
    assert_eq!(spec.get("tolerations"), None, "nothing of what is empty");
}

#[test]
fn a_launcher_that_the_kubelet_starts_has_its_sockets_where_the_node_agent_finds_them() {
    let vmi = json!({"metadata": {"name": "demo"}});
    let pod = rendered_for(StartedBy::Kubelet, vmi, None);
    let container = &pod["spec"]["containers"][0];
    let volumes = json!([{"name": "sockets", "emptyDir": {}}, {"name": "ephemeral-disks", "emptyDir": {}}]);
    assert_eq!(pod["spec"]["volumes"], volumes);
    let mounts = json!([{"name": "sockets", "mountPath": SOCKETS_DIRECTORY},
        {"name": "ephemeral-disks", "mountPath": DISKS_DIRECTORY, "readOnly": true}]);
    assert_eq!(container["volumeMounts"], mounts);
    assert_eq!(container["command"][2], format!("{SOCKETS_DIRECTORY}/launcher.sock"));
    assert_eq!(container["command"][3], "--landlock");
}

#[test]
fn a_pod_with_cpus_for_itself_is_guaranteed() {
    let cpu = json!({"cores": 2, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true});
    let pod = rendered_for(
        StartedBy::Kubelet,
        json!({"metadata": {"name": "demo"}, "spec": {
            "domain": {"memory": {"guest": "64Mi"}, "cpu": cpu, "devices": {"logSerialConsole": true}},
            "volumes": [{"name": "root", "containerDisk": {"image": "example.com/d:1"}}],
        }}),
        None,
    );
    let spec = &pod["spec"];
    assert_eq!(spec["nodeSelector"]["cpumanager"], "true");
    assert_eq!(spec["containers"][0]["resources"]["limits"]["cpu"], "3000m");
    let all = [&spec["containers"], &spec["initContainers"]]
        .map(|list| list.as_array().cloned().unwrap_or_default());
    let all = all.concat();
    assert!(all.len() > 2, "{all:?}");
    for container in all {
        let resources = &container["resources"];
        for name in ["cpu", "memory"] {
            assert!(resources["limits"][name].is_string(), "{container}");
            assert_eq!(resources["requests"][name], resources["limits"][name], "{container}");
        }
    }
}

#[test]
fn a_node_with_vhost_vsock_is_requested() {
    let vmi =
        json!({"metadata": {"name": "demo"}, "spec": {"domain": {"devices": {"autoattachVSOCK": true}}}});
    let pod = rendered_for(StartedBy::Kubelet, vmi, None);
    let limits = json!({"devices.kubevirt.io/kvm": "1", "devices.kubevirt.io/vhost-vsock": "1"});
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], limits);
}

#[test]
fn nodes_that_can_run_the_cpu_are_selected() {
    let cpu =
        json!({"model": "Haswell", "features": [{"name": "avx2"}, {"name": "rtm", "policy": "forbid"}]});
    let pod = rendered_for(
        StartedBy::Kubelet,
        json!({"metadata": {"name": "demo"}, "spec": {"domain": {"cpu": cpu}}}),
        None,
    );
    let spec = &pod["spec"];
    let selector = json!({"cpu-feature.node.kubevirt.io/avx2": "true",
        "cpu-model.node.kubevirt.io/Haswell": "true", "kubernetes.io/arch": "amd64",
        "kubevirt.io/schedulable": "true"});
    assert_eq!(spec["nodeSelector"], selector);
    let absent = json!({"key": "cpu-feature.node.kubevirt.io/rtm", "operator": "DoesNotExist"});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [absent]}]}}});
    assert_eq!(spec["affinity"], affinity);
}

#[test]
fn the_name_of_a_pod_has_no_label_that_ends_or_begins_with_a_dash() {
    let name = format!("{}.{}", "x".repeat(LONGEST_NAME - 1), "y".repeat(20));
    let pod = rendered(json!({"metadata": {"name": name}}), None);
    let expected = format!("virt-launcher-{}-", "x".repeat(LONGEST_NAME - 1));
    assert_eq!(pod["metadata"]["generateName"], expected);
}

#[test]
fn what_a_scheduler_needs_is_in_the_pod() {
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}]}}});
    let toleration = json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"});
    let pod = rendered(
        json!({"metadata": {"name": "x".repeat(250)}, "spec": {"nodeSelector": {"disk": "ssd"},
            "affinity": affinity, "tolerations": [toleration], "schedulerName": "mine",
            "priorityClassName": "high", "terminationGracePeriodSeconds": 0}}),
        Some("node1"),
    );
    let spec = &pod["spec"];
    let selector = json!({"disk": "ssd", "kubernetes.io/arch": "amd64", "kubevirt.io/schedulable": "true"});
    assert_eq!(spec["nodeSelector"], selector);
    assert_eq!((&spec["affinity"], &spec["tolerations"]), (&affinity, &json!([toleration])));
    assert_eq!((&spec["schedulerName"], &spec["priorityClassName"]), (&json!("mine"), &json!("high")));
    assert_eq!((&spec["nodeName"], &spec["terminationGracePeriodSeconds"]), (&json!("node1"), &json!(30)));
    let name = pod["metadata"]["generateName"].as_str().unwrap();
    assert!(name.len() < 248, "{name}");
    assert_eq!(pod["metadata"]["labels"]["vm.kubevirt.io/name"].as_str().map(str::len), Some(63));
}
