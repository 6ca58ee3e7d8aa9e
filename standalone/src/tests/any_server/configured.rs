//! What the configuration of a cluster changes.

use vireo_operators::vmi::{Launcher, StartedBy};

use super::cluster::in_process;
use super::workload_update::eventually;
use super::*;

#[tokio::test]
async fn references_to_instance_types_are_expanded() {
    on_a_server(async |cluster| {
        let spec = json!({"cpu": {"guest": 2}, "memory": {"guest": "96Mi"}});
        cluster.create(Kind::INSTANCETYPE, "small", json!({ "spec": spec })).await;
        let chosen = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
        let template = json!({"spec": {"domain": {"devices": {}}}});
        let vm = json!({"runStrategy": "Halted", "instancetype": chosen, "template": template});
        let created = cluster.create(Kind::VM, "web", json!({ "spec": vm })).await;
        assert_eq!(created["spec"]["instancetype"]["name"], "small");
        let policy = json!({"instancetype": {"referencePolicy": "expand"}});
        cluster.start_controllers_with(crate::tests::launcher(), policy);
        let is_expanded = || {
            let vm = cluster.object(Kind::VM, "web");
            vm.is_object() && vm["spec"].get("instancetype").is_none()
        };
        cluster.until("it is expanded", is_expanded).await;
        let vm = cluster.object(Kind::VM, "web");
        let domain = &vm["spec"]["template"]["spec"]["domain"];
        assert_eq!((&domain["cpu"]["sockets"], &domain["memory"]["guest"]), (&json!(2), &json!("96Mi")));
        assert_eq!(vm["status"].get("instancetypeRef"), None);
    })
    .await;
}

#[tokio::test]
async fn references_are_expanded_once_both_are_found() {
    on_a_server(async |cluster| {
        let spec = json!({"cpu": {"guest": 2}, "memory": {"guest": "96Mi"}});
        cluster.create(Kind::INSTANCETYPE, "small", json!({ "spec": spec })).await;
        let instancetype = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
        let preference = json!({"name": "linux", "kind": "VirtualMachinePreference"});
        let template = json!({"spec": {"domain": {"devices": {}}}});
        let vm = json!({"runStrategy": "Halted", "instancetype": instancetype, "preference": preference,
            "template": template});
        cluster.create(Kind::PREFERENCE, "linux", json!({"spec": {}})).await;
        cluster.create(Kind::VM, "web", json!({ "spec": vm })).await;
        cluster.delete(Kind::PREFERENCE, "linux").await;
        let policy = json!({"instancetype": {"referencePolicy": "expand"}});
        cluster.start_controllers_with(crate::tests::launcher(), policy);
        let is_decided = || cluster.object(Kind::VM, "web")["status"]["printableStatus"] == "Stopped";
        cluster.until("it is decided without the preference", is_decided).await;
        assert_eq!(cluster.object(Kind::VM, "web")["status"].get("instancetypeRef"), None);
        cluster.create(Kind::PREFERENCE, "linux", json!({"spec": {}})).await;
        let is_expanded = || cluster.object(Kind::VM, "web")["spec"].get("instancetype").is_none();
        cluster.until("it is expanded", is_expanded).await;
    })
    .await;
}

#[tokio::test]
async fn launchers_of_some_namespaces_have_cpu_limits() {
    in_process(async |cluster| {
        super::workload_update::has_default_account(cluster).await;
        let kubelet = Launcher::new("l:1", StartedBy::Kubelet);
        let selector = json!({"autoCPULimitNamespaceLabelSelector": {"matchLabels": {"limited": "yes"}}});
        cluster.start_controllers_with(kubelet, selector);
        let limit = async |name: &str| {
            cluster.create(Kind::VMI, name, json!({"spec": vmi_spec()})).await;
            let selector = format!("vm.kubevirt.io/name={name}");
            let launchers = kube::api::ListParams::default().labels(&selector);
            let is_there = async || !cluster.api(Kind::POD).list(&launchers).await.unwrap().items.is_empty();
            eventually("there is a Pod", is_there).await;
            let pod = cluster.api(Kind::POD).list(&launchers).await.unwrap().items.remove(0);
            pod.data["spec"]["containers"][0]["resources"]["limits"].get("cpu").cloned()
        };
        assert_eq!(limit("a").await, None);
        let label = kube::api::Patch::Merge(json!({"metadata": {"labels": {"limited": "yes"}}}));
        let namespaces = cluster.all(Kind::NAMESPACE);
        namespaces.patch(&cluster.namespace, &kube::api::PatchParams::default(), &label).await.unwrap();
        assert_eq!(limit("b").await, Some(json!("1000m")));
    })
    .await;
}
