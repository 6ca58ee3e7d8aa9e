//! DataVolumes, which the test fills as CDI does.

use kube::ResourceExt as _;
use vireo_operators::vmi::{Launcher, StartedBy};

use super::cluster::{self, EVENT, in_process};
use super::workload_update::eventually;
use super::*;

/// Kinds of CDI with their singular names.
const DATA_VOLUME: (Kind, &str) = (Kind::DATA_VOLUME, "datavolume");
const DATA_SOURCE: (Kind, &str) = (Kind::DATA_SOURCE, "datasource");

/// The definition of a kind, for any object.
fn definition((Kind { kind, plural, .. }, singular): (Kind, &str)) -> Value {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({"name": "v1beta1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.cdi.kubevirt.io")},
        "spec": {"group": "cdi.kubevirt.io", "scope": "Namespaced", "versions": [version],
            "names": {"kind": kind, "listKind": format!("{kind}List"), "plural": plural, "singular": singular}},
    })
}

fn kubelet() -> Launcher {
    Launcher::new("launcher:1", StartedBy::Kubelet)
}

fn spec_with(name: &str) -> Value {
    let mut spec = vmi_spec();
    spec["volumes"] = json!([{"name": "root", "dataVolume": {"name": name}}]);
    spec["domain"]["devices"]["disks"] = json!([{"name": "root", "disk": {"bus": "virtio"}}]);
    spec
}

async fn pods(cluster: &Cluster) -> usize {
    cluster.api(Kind::POD).list(&Default::default()).await.unwrap().items.len()
}

async fn reason(cluster: &Cluster, name: &str, kind: &str) -> Option<String> {
    let vmi = serde_json::to_value(cluster.api(Kind::VMI).get(name).await.unwrap()).unwrap();
    let conditions = vmi["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|one| one["type"] == kind)?;
    Some(condition["reason"].as_str()?.to_owned())
}

async fn printable(cluster: &Cluster, name: &str) -> String {
    let vm = serde_json::to_value(cluster.api(Kind::VM).get(name).await.unwrap()).unwrap();
    vm["status"]["printableStatus"].as_str().unwrap_or_default().to_owned()
}

async fn create_claim(cluster: &Cluster, owners: Value) {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}});
    let metadata = json!({"ownerReferences": owners});
    cluster.create(Kind::CLAIM, "disk", json!({"metadata": metadata, "spec": spec})).await;
}

/// Serves DataVolumes, and runs the controllers.
async fn with_data_volumes(cluster: &Cluster) {
    super::workload_update::has_default_account(cluster).await;
    cluster.define(&[DATA_VOLUME, DATA_SOURCE].map(definition)).await;
    for kind in [Kind::DATA_VOLUME, Kind::DATA_SOURCE] {
        let served = async || kind.is_served(&cluster.virt_controller()).await.is_ok_and(|served| served);
        eventually(&format!("{} are served", kind.plural), served).await;
    }
    cluster.start_controllers_of(kubelet());
}

/// The spec of a VM with a DataVolume of this source.
fn vm_with(source: Value) -> Value {
    let mut spec = json!({"storage": {"resources": {"requests": {"storage": "1Gi"}}}});
    json_patch::merge(&mut spec, &source);
    let template = json!({"metadata": {"name": "disk", "labels": {"tier": "web"}}, "spec": spec});
    json!({"runStrategy": "Always", "dataVolumeTemplates": [template], "template": {"spec": spec_with("disk")}})
}

async fn data_volume(cluster: &Cluster) -> Value {
    let found = cluster.api(Kind::DATA_VOLUME).get_opt("disk").await.unwrap();
    serde_json::to_value(found).unwrap()
}

/// The message of the VM's condition `Failure`.
async fn failure(cluster: &Cluster) -> String {
    let vm = serde_json::to_value(cluster.api(Kind::VM).get("a").await.unwrap()).unwrap();
    let conditions = vm["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let failure = conditions.into_iter().find(|one| one["type"] == "Failure").unwrap_or_default();
    failure["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn the_data_volume_of_a_template_is_that_of_its_vm() {
    in_process(async |cluster| {
        let http = json!({"source": {"http": {"url": "http://images.example/debian.qcow2"}}});
        let refused = cluster.try_create(Kind::VM, "a", json!({"spec": vm_with(http.clone())})).await;
        let Err(kube::Error::Api(status)) = refused else { panic!("there is no CDI: {refused:?}") };
        assert!(status.message.contains("spec.dataVolumeTemplates: "), "{}", status.message);
        with_data_volumes(cluster).await;
        cluster.collect_garbage();

        let vm = cluster.create(Kind::VM, "a", json!({"spec": vm_with(http.clone())})).await;
        let is_there = async || !data_volume(cluster).await.is_null();
        eventually("there is a DataVolume", is_there).await;
        eventually("it is being filled", async || printable(cluster, "a").await == "Provisioning").await;
        let made = data_volume(cluster).await;
        let owners = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "a",
            "uid": vm["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]);
        assert_eq!(made["metadata"]["ownerReferences"], owners);
        let labels = json!({"tier": "web", "kubevirt.io/created-by": vm["metadata"]["uid"]});
        assert_eq!(made["metadata"]["labels"], labels);
        assert_eq!(made["spec"]["source"], http["source"]);
        assert!(cluster.objects(Kind::VMI).is_empty());

        let owner = json!([{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk",
            "uid": made["metadata"]["uid"], "controller": true}]);
        create_claim(cluster, owner).await;
        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "Succeeded"})).await;
        eventually("there is a Pod", async || pods(cluster).await == 1).await;
        let created = reasons(["SuccessfulDataVolumeCreate"]);
        cluster.until("an event", || created.is_subset(&cluster.reasons())).await;
        cluster.patch(Kind::VM, "a", json!({"spec": {"runStrategy": "Halted"}})).await;
        cluster.until("it is halted", || cluster.objects(Kind::VMI).is_empty()).await;
        cluster.delete(Kind::VM, "a").await;
        eventually("the DataVolume is gone", async || data_volume(cluster).await.is_null()).await;
    })
    .await;
}

#[tokio::test]
async fn a_clone_needs_the_right_of_the_service_account_of_the_vm() {
    in_process(async |cluster| {
        with_data_volumes(cluster).await;
        let data_source = json!({"spec": {"source": {"pvc": {"namespace": "default", "name": "debian"}}}});
        cluster.create(Kind::DATA_SOURCE, "debian", data_source).await;
        let reference = json!({"sourceRef": {"kind": "DataSource", "name": "debian"}});
        cluster.create(Kind::VM, "a", json!({"spec": vm_with(reference)})).await;
        let account = format!("system:serviceaccount:{}:default", cluster.namespace);
        let why = format!("User {account} has insufficient permissions in clone source namespace default");
        eventually("it says why", async || failure(cluster).await.contains(&why)).await;
        let unauthorized = reasons(["UnauthorizedDataVolumeCreate"]);
        cluster.until("an event", || unauthorized.is_subset(&cluster.reasons())).await;
        assert_eq!(data_volume(cluster).await, Value::Null);

        let rules = json!([{"verbs": ["create"], "apiGroups": ["cdi.kubevirt.io"],
            "resources": ["datavolumes/source"]}]);
        cluster.grant("default", &account, rules).await;
        // Roles are not watched: it is tried again after a while, and when the VM changes.
        cluster.patch(Kind::VM, "a", json!({"metadata": {"labels": {"granted": "true"}}})).await;
        let is_there = async || !data_volume(cluster).await.is_null();
        eventually("there is a DataVolume", is_there).await;
        let made = data_volume(cluster).await;
        // The DataSource may name another claim by the time that CDI reads it.
        let source = json!({"pvc": {"namespace": "default", "name": "debian"}});
        assert_eq!((&made["spec"]["source"], made["spec"].get("sourceRef")), (&source, None));
        eventually("it says no more", async || failure(cluster).await.is_empty()).await;
    })
    .await;
}

#[tokio::test]
async fn a_vm_waits_until_its_data_volume_is_filled() {
    in_process(async |cluster| {
        with_data_volumes(cluster).await;
        let template = json!({"spec": spec_with("disk")});
        cluster.create(Kind::VM, "a", json!({"spec": {"runStrategy": "Always", "template": template}})).await;
        eventually("there is no claim", async || printable(cluster, "a").await == "ErrorPvcNotFound").await;

        let data_volume = cluster.create(Kind::DATA_VOLUME, "disk", json!({"spec": {}})).await;
        let owner = json!([{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk",
            "uid": data_volume["metadata"]["uid"], "controller": true}]);
        create_claim(cluster, owner).await;
        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "ImportInProgress"})).await;
        eventually("it is being filled", async || printable(cluster, "a").await == "Provisioning").await;
        assert_eq!(reason(cluster, "a", "DataVolumesReady").await.as_deref(), Some("NotAllDVsReady"));
        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "WaitForFirstConsumer"})).await;
        let waits = async || printable(cluster, "a").await == "WaitingForVolumeBinding";
        eventually("nothing has bound it", waits).await;
        eventually("the claim has a consumer", async || pods(cluster).await == 1).await;
        let consumer = cluster.api(Kind::POD).list(&Default::default()).await.unwrap().items.remove(0);
        assert_eq!(consumer.metadata.labels.as_ref().unwrap()["kubevirt.io"], "virt-consumer");
        let volumes = consumer.data["spec"]["volumes"].as_array().unwrap();
        assert_eq!(volumes.len(), 1, "{volumes:?}");
        assert_eq!(volumes[0]["persistentVolumeClaim"]["claimName"], "disk");
        // It was scheduled, and CDI imports.
        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "ImportInProgress"})).await;
        eventually("it is deleted", async || pods(cluster).await == 0).await;

        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "Succeeded"})).await;
        eventually("there is a Pod", async || pods(cluster).await == 1).await;
        let pod = cluster.api(Kind::POD).list(&Default::default()).await.unwrap().items.remove(0);
        let volumes = pod.data["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == "disk"));
    })
    .await;
}

#[tokio::test]
async fn a_pod_of_another_owner_is_not_the_consumer_of_claims() {
    in_process(async |cluster| {
        with_data_volumes(cluster).await;
        let vmi = cluster.create(Kind::VMI, "a", json!({"spec": spec_with("disk")})).await;
        let uid = vmi["metadata"]["uid"].as_str().unwrap();
        let identity: String = uid.chars().filter(char::is_ascii_alphanumeric).take(10).collect();
        let name = format!("virt-consumer-a-{identity}");
        let spec = json!({"containers": [{"name": "other", "image": "other:1"}]});
        let other = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        // A server of one host takes Pods from components alone.
        let pods = Kind::POD.namespaced(&cluster.virt_controller(), &cluster.namespace);
        cluster::put(&pods, other).await;
        let data_volume = cluster.create(Kind::DATA_VOLUME, "disk", json!({"spec": {}})).await;
        let owner = json!([{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk",
            "uid": data_volume["metadata"]["uid"], "controller": true}]);
        create_claim(cluster, owner).await;
        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "WaitForFirstConsumer"})).await;
        let is_reported = || {
            let events = cluster.objects(EVENT);
            let is_refusal = |event: &&Value| {
                event["reason"] == "FailedCreate"
                    && event["message"].as_str().is_some_and(|message| message.contains(&name))
            };
            events.iter().any(|event| is_refusal(&event))
        };
        cluster.until("it is reported", is_reported).await;
        let synchronized = async || reason(cluster, "a", "Synchronized").await;
        eventually("it is a condition", async || synchronized().await.as_deref() == Some("FailedCreate"))
            .await;

        cluster.delete(Kind::POD, &name).await;
        let consumer = async || cluster.api(Kind::POD).get_opt(&name).await.unwrap();
        let is_consumed = async || {
            consumer().await.is_some_and(|pod| pod.owner_references().iter().any(|one| one.uid == uid))
        };
        eventually("the claim has a consumer", is_consumed).await;
    })
    .await;
}

#[tokio::test]
async fn claims_are_not_consumed_while_another_one_does_not_exist() {
    in_process(async |cluster| {
        with_data_volumes(cluster).await;
        let mut spec = spec_with("disk");
        let volume = |name: &str, of: &str| json!({"name": name, "dataVolume": {"name": of}});
        let disk = |name: &str| json!({"name": name, "disk": {"bus": "virtio"}});
        spec["volumes"] = json!([volume("root", "disk"), volume("more", "more")]);
        spec["domain"]["devices"]["disks"] = json!([disk("root"), disk("more")]);
        cluster.create(Kind::VMI, "a", json!({"spec": spec})).await;
        for name in ["disk", "more"] {
            cluster.create(Kind::DATA_VOLUME, name, json!({"spec": {}})).await;
        }
        let owner = json!([{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "name": "disk",
            "uid": data_volume(cluster).await["metadata"]["uid"], "controller": true}]);
        create_claim(cluster, owner).await;
        cluster.patch_status(Kind::DATA_VOLUME, "disk", json!({"phase": "WaitForFirstConsumer"})).await;
        let is_said = async || {
            let vmi = serde_json::to_value(cluster.api(Kind::VMI).get("a").await.unwrap()).unwrap();
            vmi["status"]["conditions"].to_string().contains("/more does not exist")
        };
        eventually("the condition names the claim", is_said).await;
        assert_eq!(pods(cluster).await, 0);
    })
    .await;
}

#[tokio::test]
async fn without_cdi_the_claim_of_a_data_volume_is_enough() {
    in_process(async |cluster| {
        super::workload_update::has_default_account(cluster).await;
        cluster.start_controllers_of(kubelet());
        cluster.create(Kind::VMI, "a", json!({"spec": spec_with("disk")})).await;
        let absent =
            async || reason(cluster, "a", "Synchronized").await.as_deref() == Some("FailedPvcNotFound");
        eventually("there is no claim", absent).await;
        assert_eq!(pods(cluster).await, 0);
        create_claim(cluster, json!([])).await;
        eventually("there is a Pod", async || pods(cluster).await == 1).await;
    })
    .await;
}
