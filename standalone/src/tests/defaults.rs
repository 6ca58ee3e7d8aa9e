//! What admission writes into objects, and what it warns of.

use std::time::Duration;

use axum::http::HeaderMap;
use vireo_apiserver::definitions;
use vireo_client::Kind;
use vireo_install::policy::VIRT_CONTROLLER;
use vireo_install::resource::crd::kubevirt_definition;
use vireo_operators::Controllers;
use vireo_operators::config::LiveConfig;

use super::*;
use crate::compose::client;

const VMS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const PODS: &str = "/api/v1/namespaces/default/pods";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const KUBEVIRTS: &str = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts";

/// A VMI with lists that are completed.
fn with_lists(name: &str) -> Value {
    let mut vmi = vmi(name);
    vmi["spec"]["volumes"] = json!([{"name": "data", "emptyDisk": {"capacity": "1Gi"}}]);
    vmi["spec"]["domain"]["devices"]["disks"] = json!([{"name": "drive", "cdrom": {}}]);
    vmi
}

#[tokio::test]
async fn a_vmi_is_stored_with_defaults_and_applied_again_unchanged() {
    let world = World::new();
    let (code, made) = world.ask("POST", VMIS, with_lists("a")).await;
    assert_eq!(code, 201, "{made}");
    let spec = &made["spec"];
    assert_eq!((&spec["architecture"], &spec["evictionStrategy"]), (&json!("amd64"), &json!("None")));
    assert_eq!(spec["networks"], json!([{"name": "default", "pod": {}}]));
    let domain = &spec["domain"];
    assert_eq!(domain["machine"]["type"], "q35");
    let cpu = json!({"cores": 1, "sockets": 1, "threads": 1, "model": "host-model"});
    assert_eq!((&domain["cpu"], domain["firmware"]["uuid"].as_str().map(str::len)), (&cpu, Some(36)));
    let drive = json!({"name": "drive", "cdrom": {"bus": "sata", "readonly": true, "tray": "closed"}});
    assert_eq!(domain["devices"]["disks"], json!([drive, {"name": "data", "disk": {"bus": "sata"}}]));

    // As `kubectl apply`: lists of the manifest replace those that are stored.
    let path = format!("{VMIS}/a");
    let patch = json!({"spec": with_lists("a")["spec"]});
    assert_eq!(world.patch(&path, "merge", patch).await, (200, made.clone()));
    let mut replaced = with_lists("a");
    replaced["metadata"] = made["metadata"].clone();
    assert_eq!(world.ask("PUT", &path, replaced).await, (200, made.clone()));
    let larger = json!({"spec": {"domain": {"memory": {"guest": "128Mi"}}}});
    let (code, status) = world.patch(&path, "merge", larger).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("spec")));
}

#[tokio::test]
async fn a_vmi_that_is_applied_by_the_server_again_is_unchanged() {
    let world = World::new();
    let apply = async || {
        let path = format!("{VMIS}/a?fieldManager=me");
        world.send("PATCH", &path, "application/apply-patch+yaml", with_lists("a").to_string()).await
    };
    let (code, made) = apply().await;
    assert_eq!((code, &made["spec"]["domain"]["machine"]["type"]), (201, &json!("q35")), "{made}");
    assert_eq!(apply().await, (200, made));
}

#[tokio::test]
async fn a_vmi_that_is_not_valid_is_refused_by_the_fields_of_its_manifest() {
    let world = World::new();
    let mut odd = with_lists("a");
    odd["spec"]["domain"]["cpu"] = json!({"cores": 1000});
    odd["spec"]["domain"]["devices"]["disks"] = json!([{"name": "none"}]);
    let (code, status) = world.ask("POST", VMIS, odd).await;
    let causes = status["details"]["causes"].as_array().unwrap();
    let fields: Vec<&Value> = causes.iter().map(|cause| &cause["field"]).collect();
    assert_eq!(
        (code, fields),
        (422, vec![&json!("spec.domain.cpu"), &json!("spec.domain.devices.disks[0].name")])
    );
}

#[tokio::test]
async fn a_vm_gets_an_identity_once_and_what_its_preference_prefers() {
    let world = World::new();
    let preferences = "/apis/instancetype.kubevirt.io/v1beta1/namespaces/default/virtualmachinepreferences";
    let preference = json!({"apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachinePreference",
        "metadata": {"name": "new"}, "spec": {"machine": {"preferredMachineType": "pc-q35-9.0"}}});
    assert_eq!(world.ask("POST", preferences, preference).await.0, 201);
    let vm = |name: &str, more: Value| {
        let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": name},
            "spec": {"runStrategy": "Halted", "template": {"spec": vmi("a")["spec"]}}});
        json_patch::merge(&mut vm["spec"], &more);
        vm
    };
    let (code, made) = world.ask("POST", VMS, vm("a", json!({}))).await;
    assert_eq!(code, 201, "{made}");
    let spec = &made["spec"]["template"]["spec"];
    assert_eq!((&spec["architecture"], &spec["domain"]["machine"]["type"]), (&json!("amd64"), &json!("q35")));
    let firmware = &spec["domain"]["firmware"];
    assert!(firmware["uuid"].is_string() && firmware["serial"].is_string(), "{firmware}");
    let patch = json!({"spec": vm("a", json!({}))["spec"]});
    assert_eq!(world.patch(&format!("{VMS}/a"), "merge", patch).await, (200, made.clone()));
    let mut replaced = vm("a", json!({"runStrategy": "Manual"}));
    replaced["metadata"] = made["metadata"].clone();
    let (_, changed) = world.ask("PUT", &format!("{VMS}/a"), replaced).await;
    assert_eq!(changed["spec"]["runStrategy"], "Manual");
    assert_eq!(&changed["spec"]["template"], &made["spec"]["template"]);

    let matcher = json!({"preference": {"name": "new", "kind": "VirtualMachinePreference"}});
    let (code, made) = world.ask("POST", VMS, vm("b", matcher)).await;
    let machine = &made["spec"]["template"]["spec"]["domain"]["machine"];
    assert_eq!((code, &machine["type"]), (201, &json!("pc-q35-9.0")), "{made}");
}

#[tokio::test]
async fn what_cannot_start_is_refused_with_its_fields() {
    let world = World::new();
    let mut odd = vmi("a");
    odd["metadata"]["annotations"] = json!({"vireo.io/hypervisor": "native"});
    odd["spec"]["domain"]["devices"] = json!({"tpm": {}});
    odd["spec"]["domain"]["cpu"] = json!({"model": "Haswel", "features": [{"name": "avx3"}]});
    let template = json!({"metadata": {"annotations": odd["metadata"]["annotations"]}, "spec": odd["spec"]});
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a"},
        "spec": {"runStrategy": "Halted", "template": template}});
    for (path, object, at) in [(VMIS, odd, ""), (VMS, vm, "spec.template.")] {
        let (code, status) = world.ask("POST", path, object).await;
        let causes = status["details"]["causes"].as_array().unwrap();
        let fields: Vec<_> = causes.iter().map(|cause| cause["field"].as_str().unwrap().to_owned()).collect();
        let expected = ["cpu.model", "cpu.features[0].name", "cpu.model", "cpu.features", "devices.tpm"];
        assert_eq!((code, fields), (422, expected.map(|field| format!("{at}spec.domain.{field}")).to_vec()));
        assert!(status["message"].as_str().unwrap().contains("did you mean Haswell?"), "{status}");
    }
}

/// The warnings of a request.
fn warnings(headers: &HeaderMap) -> Vec<&str> {
    headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn settings_without_effect_come_back_as_warnings() {
    let world = World::new();
    let post = async |path: &str, object: &Value| {
        let request = Request::builder().method("POST").uri(path).header("Content-Type", "application/json");
        let request = request.body(Body::from(object.to_string())).unwrap();
        let response = answer(Arc::clone(&world.server), User::administrator(), request).await;
        assert_eq!(response.status(), 201);
        response.headers().clone()
    };
    let why = "domain.cpu.maxSockets: has no effect: vCPUs cannot be hotplugged yet";
    let mut odd = vmi("a");
    odd["spec"]["domain"]["cpu"] = json!({"maxSockets": 4});
    assert_eq!(warnings(&post(VMIS, &odd).await), [format!("299 - \"spec.{why}\"")]);
    assert_eq!(warnings(&post(VMIS, &vmi("b")).await), [""; 0]);
    let vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a"},
        "spec": {"running": false, "template": {"spec": odd["spec"]}}});
    assert_eq!(
        warnings(&post(VMS, &vm).await),
        [
            "299 - \"spec.running is deprecated, please use spec.runStrategy instead.\"".to_owned(),
            format!("299 - \"spec.template.spec.{why}\"")
        ]
    );
}

async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "{what}");
}

/// As of virt-controller and virt-api in a cluster.
#[tokio::test]
async fn the_configuration_of_a_cluster_applies_to_what_is_created_afterwards() {
    let world = World::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(definitions::run(Arc::clone(&world.server.store)));
    assert_eq!(world.ask("POST", CRDS, kubevirt_definition()).await.0, 201);
    let namespace = json!({"metadata": {"name": "kubevirt"}});
    assert_eq!(world.ask("POST", "/api/v1/namespaces", namespace).await.0, 201);
    let kubevirt = |rack: &str| {
        let developer = json!({"nodeSelectors": {"rack": rack}, "cpuAllocationRatio": 4});
        json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"},
            "spec": {"configuration": {"developerConfiguration": developer}}})
    };
    eventually("KubeVirts are served", async || world.ask("GET", KUBEVIRTS, Value::Null).await.0 == 200)
        .await;
    let (code, made) = world.ask("POST", KUBEVIRTS, kubevirt("1")).await;
    assert_eq!(code, 201, "{made}");

    let virt_controller = client(&world.server, VIRT_CONTROLLER, "virt-controller");
    let config = LiveConfig::watched(&virt_controller);
    let controllers = Controllers::new(&virt_controller, launcher(), config.clone());
    tasks.spawn(async move { controllers.run().await });
    let watched = config.clone();
    tasks.spawn(async move { watched.run().await });
    let pod = async |name: &str| {
        assert_eq!(world.ask("POST", VMIS, vmi(name)).await.0, 201);
        let prefix = format!("virt-launcher-{name}-");
        let find = || {
            let pods = world.server.store.list(Kind::POD.plural, Some("default")).objects;
            let mut pods = pods.iter().map(|pod| pod.to_value());
            pods.find(|pod| pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(&prefix)))
        };
        world.until("it has a Pod", || find().is_some(), || ()).await;
        find().unwrap()
    };
    let first = pod("a").await;
    assert_eq!(first["spec"]["nodeSelector"]["rack"], "1");
    assert_eq!(first["spec"]["containers"][0]["resources"]["requests"]["cpu"], "250m");
    let change = json!({"spec": kubevirt("2")["spec"]});
    assert_eq!(world.patch(&format!("{KUBEVIRTS}/kubevirt"), "merge", change).await.0, 200);
    eventually("it is seen", async || config.current().node_selectors["rack"] == "2").await;
    assert_eq!(pod("b").await["spec"]["nodeSelector"]["rack"], "2");
    let name = first["metadata"]["name"].as_str().unwrap();
    let (_, same) = world.ask("GET", &format!("{PODS}/{name}"), Value::Null).await;
    assert_eq!(same["spec"]["nodeSelector"]["rack"], "1");
}
