use serde_json::{Value, json};

use super::super::StartedBy;
use super::*;

fn inputs(node: Option<&str>, images: ImageDelivery) -> PodInputs<'_> {
    static NO_CLAIMS: Claims = Claims::new();
    PodInputs { node, claims: &NO_CLAIMS, images, limits: NamespaceLimits::default() }
}

#[test]
fn a_cpu_limit_is_that_of_the_launcher_alone() {
    let vmi = json!({"metadata": {"name": "web"},
        "spec": {"domain": {"cpu": {"cores": 2}, "devices": {"logSerialConsole": true}}}});
    let vmi = serde_json::from_value(vmi).unwrap();
    let launcher = Launcher::new("launcher:1", StartedBy::Kubelet);
    let limits = |limits_cpu| {
        let limits = NamespaceLimits { cpu: limits_cpu, memory: None };
        let inputs = PodInputs { limits, ..inputs(None, ImageDelivery::Containers) };
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

#[test]
fn a_limit_of_memory_that_a_namespace_wants_is_that_of_instances_without() {
    let launcher = Launcher::new("launcher:1", StartedBy::Kubelet);
    let limit = |ratio, domain: Value| {
        let vmi = json!({"metadata": {"name": "web"}, "spec": {"domain": domain}});
        let limits = NamespaceLimits { cpu: false, memory: ratio };
        let inputs = PodInputs { limits, ..inputs(None, ImageDelivery::Containers) };
        let vmi = serde_json::from_value(vmi).unwrap();
        let pod = json!(launcher_pod(&vmi, &launcher, &ClusterConfig::default(), inputs).unwrap());
        let resources = &pod["spec"]["containers"][0]["resources"];
        let bytes = |list: &str| resources[list]["memory"].as_str().map(|text| text.parse::<u64>().unwrap());
        (bytes("requests").unwrap(), bytes("limits"))
    };
    let large = json!({"memory": {"guest": "8Gi"}});
    let (request, none) = limit(None, large.clone());
    assert_eq!(none, None);
    assert_eq!(limit(Some(2.0), large.clone()), (request, Some(2 * request)));
    // What may be beside the guest fits, even where the ratio has no room for it.
    let (_, least) = limit(Some(1.0), large);
    assert!(least.unwrap() > request && least.unwrap() < request + (1 << 30), "{least:?}");
    let given = json!({"memory": {"guest": "1Gi"}, "resources": {"limits": {"memory": "2Gi"}}});
    assert_eq!(limit(Some(3.0), given.clone()), limit(None, given));
}

#[test]
fn no_instance_changes_by_name_what_follows_from_it() {
    let pages = json!({"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}});
    let named = json!({"devices.kubevirt.io/kvm": "5", "hugepages-2Mi": "2Mi", "example.com/card": "2"});
    let vmi = json!({"metadata": {"name": "web"},
        "spec": {"domain": {"memory": pages, "resources": {"limits": named}}}});
    let pod = rendered_for(StartedBy::Kubelet, vmi, None);
    let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
    let of = ["devices.kubevirt.io/kvm", "hugepages-2Mi", "example.com/card"].map(|name| &limits[name]);
    assert_eq!(of, [&json!("1"), &json!("67108864"), &json!("2")]);
}

#[test]
fn no_instance_writes_annotations_that_node_agents_trust() {
    let annotations = json!({"vireo.io/claim-disks": "{\"/etc/passwd\":null}", "vireo.io/claim": "c",
        "kubevirt.io/owner-vmi-name": "other", "kubevirt.io/owner-vmi-uid": "1", "note": "a"});
    let vmi = json!({"metadata": {"name": "web", "annotations": annotations},
        "spec": {"domain": {"memory": {"guest": "64Mi"}}}});
    let pod = rendered(vmi, None);
    let found = &pod["metadata"]["annotations"];
    assert_eq!(found["note"], "a");
    for name in TRUSTED_POD_ANNOTATIONS {
        assert_eq!(found[name], Value::Null, "{name}");
    }
}

fn rendered(vmi: Value, node: Option<&str>) -> Value {
    rendered_for(StartedBy::NodeAgent, vmi, node)
}

fn rendered_for(started_by: StartedBy, vmi: Value, node: Option<&str>) -> Value {
    let launcher = Launcher::new("launcher:1", started_by);
    let (vmi, config) = (serde_json::from_value(vmi).unwrap(), ClusterConfig::default());
    json!(launcher_pod(&vmi, &launcher, &config, inputs(node, ImageDelivery::Containers)).unwrap())
}

/// That of a cluster with this configuration.
fn configured(configuration: Value, vmi: Value) -> Value {
    let (config, problems) = ClusterConfig::read(&serde_json::from_value(configuration).unwrap());
    assert_eq!(problems, []);
    let launcher = Launcher::new("launcher:1", StartedBy::Kubelet);
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
fn the_name_of_a_pod_has_no_label_that_ends_or_begins_with_a_dash() {
    let name = format!("{}.{}", "x".repeat(LONGEST_NAME - 1), "y".repeat(20));
    let pod = rendered(json!({"metadata": {"name": name}}), None);
    let expected = format!("virt-launcher-{}-", "x".repeat(LONGEST_NAME - 1));
    assert_eq!(pod["metadata"]["generateName"], expected);
    assert_eq!(pod["metadata"]["labels"]["vm.kubevirt.io/name"].as_str().map(str::len), Some(63));
}

mod golden;
