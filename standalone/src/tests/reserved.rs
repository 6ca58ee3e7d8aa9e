//! Reserved labels and annotations of VMIs through every way to write.

use vireo_apiserver::store::{Change, WriteError};

use super::*;

const VMS: &str = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines";
const NODE: &str = "kubevirt.io/nodeName";

fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

/// The node agent's own way: directly into the store.
fn write_as_the_node(world: &World, name: &str) {
    let key = kubevirt::VMIS.key("default", name);
    let written: Result<_, WriteError<std::convert::Infallible>> =
        world.server.store.write(&key, |object, _| {
            let mut value = object.unwrap().to_value();
            value["metadata"]["labels"] = json!({NODE: "node1"});
            Ok(Change::Put(value))
        });
    written.unwrap();
}

#[tokio::test]
async fn no_client_writes_reserved_labels_of_a_vmi() {
    let world = World::new();
    let mut marked = vmi("x");
    marked["metadata"]["labels"] = json!({NODE: "elsewhere"});
    let (code, status) = world.ask("POST", VMIS, marked.clone()).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("metadata.labels")));
    let apply = async |marked: &Value| {
        let path = format!("{VMIS}/x?fieldManager=me&force=true");
        world.send("PATCH", &path, "application/apply-patch+yaml", marked.to_string()).await
    };
    let (code, status) = apply(&marked).await;
    assert_eq!(code, 422, "{status}");
    assert_eq!(world.ask("POST", VMIS, vmi("x")).await.0, 201);
    let item = format!("{VMIS}/x");
    assert_eq!(world.patch(&item, "merge", labels(json!({"tier": "web"}))).await.0, 200);
    write_as_the_node(&world, "x");
    let add = |value: Value| json!([{"op": "add", "path": "/metadata/labels", "value": value}]);
    for (kind, patch) in [
        ("merge", labels(json!({NODE: "elsewhere"}))),
        ("merge", labels(json!({NODE: null}))),
        ("merge", labels(Value::Null)),
        ("merge", labels(json!({"kubevirt.io/schedulable": "true"}))),
        ("json", add(json!({}))),
    ] {
        let (code, status) = world.patch(&item, kind, patch.clone()).await;
        let message = status["message"].as_str().unwrap_or_default();
        assert_eq!(code, 422, "{patch} {status}");
        assert!(message.contains("modification of the following reserved kubevirt.io/ labels"), "{message}");
    }
    let (code, status) = apply(&marked).await;
    assert_eq!(code, 422, "{status}");
    let (_, mut whole) = world.ask("GET", &item, Value::Null).await;
    whole["metadata"]["labels"] = json!({"tier": "db"});
    assert_eq!(world.ask("PUT", &item, whole).await.0, 422);
    // What leaves them alone goes through, and so does the end.
    let (code, vmi) = world.patch(&item, "merge", labels(json!({"tier": "db"}))).await;
    assert_eq!((code, &vmi["metadata"]["labels"]), (200, &json!({"tier": "db", NODE: "node1"})));
    assert_eq!(world.ask("DELETE", &item, Value::Null).await.0, 200);
}

#[tokio::test]
async fn nor_those_of_a_template() {
    let world = World::new();
    let template = |labels: Value| json!({"metadata": {"labels": labels}, "spec": vmi("x")["spec"]});
    let vm = |labels: Value| {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "web"},
            "spec": {"runStrategy": "Halted", "template": template(labels)}})
    };
    let (code, status) = world.ask("POST", VMS, vm(json!({"kubevirt.io/created-by": "me"}))).await;
    let field = &status["details"]["causes"][0]["field"];
    assert_eq!((code, field), (422, &json!("spec.template.metadata.labels")), "{status}");
    assert_eq!(world.ask("POST", VMS, vm(json!({"tier": "web"}))).await.0, 201);
    let item = format!("{VMS}/web");
    let change =
        json!({"spec": {"template": {"metadata": {"labels": {"kubevirt.io/install-strategy": ""}}}}});
    assert_eq!(world.patch(&item, "merge", change.clone()).await.0, 422);
    // A write of the status takes nothing else.
    let (code, vm) = world.patch(&format!("{item}/status"), "merge", change).await;
    assert_eq!((code, &vm["spec"]["template"]["metadata"]["labels"]), (200, &json!({"tier": "web"})));
}

#[tokio::test]
async fn no_client_writes_annotations_of_a_vmi_that_components_trust() {
    let world = World::new();
    let annotations = |annotations: Value| json!({"metadata": {"annotations": annotations}});
    let mut marked = vmi("x");
    marked["metadata"]["annotations"] = json!({"vireo.io/claim-disks": "{\"/etc/passwd\":null}"});
    let (code, status) = world.ask("POST", VMIS, marked).await;
    assert_eq!((code, &status["details"]["causes"][0]["field"]), (422, &json!("metadata.annotations")));
    assert_eq!(world.ask("POST", VMIS, vmi("x")).await.0, 201);
    let item = format!("{VMIS}/x");
    for name in ["kubevirt.io/ephemeral-hotplug-volumes", "kubevirt.io/vm-generation"] {
        let (code, status) = world.patch(&item, "merge", annotations(json!({name: "1"}))).await;
        let message = status["message"].as_str().unwrap_or_default();
        assert_eq!(code, 422, "{status}");
        assert!(message.contains(&format!(
            "modification of the following reserved annotations on a VMI object is prohibited: {name}"
        )));
    }
    let (code, vmi) = world.patch(&item, "merge", annotations(json!({"tier": "db"}))).await;
    assert_eq!((code, &vmi["metadata"]["annotations"]["tier"]), (200, &json!("db")));
}
