use std::convert::Infallible;

use serde_json::json;
use vireo_apiserver::store::{Change, Key};

use super::*;
use crate::bootstrap;

struct World {
    _dir: tempfile::TempDir,
    store: Store,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        bootstrap::prepare(&store, "node1").unwrap();
        Self { _dir: dir, store }
    }

    fn put(&self, key: &Key, mut value: Value) {
        meta::create(&mut value, &key.namespace, &key.name);
        self.store.write(key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
    }

    fn choose_from(&self, choice: Choice, scope: Scope, spec: Value) {
        let row = row(choice, scope);
        assert_eq!(row.kind, choice.kind(scope));
        let namespace = if scope == Scope::Namespaced { "default" } else { "" };
        let mut value =
            json!({"apiVersion": row.api_version(), "kind": row.kind, "metadata": {}, "spec": spec});
        assert_eq!((row.admit)(&mut value, None), []);
        self.put(&row.key(namespace, "small"), value);
    }

    fn causes(&self, vm: &VirtualMachine) -> Vec<(String, String)> {
        let value = serde_json::to_value(vm).unwrap();
        let causes = judge(&self.store, &kubevirt::VMS, &value, None);
        causes.into_iter().map(|cause| (cause.field, cause.message)).collect()
    }
}

fn small() -> Value {
    json!({"cpu": {"guest": 2}, "memory": {"guest": "128Mi"}})
}

fn vm(spec: Value) -> VirtualMachine {
    let mut value = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": spec,
        "metadata": {"name": "web", "namespace": "default", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"}});
    assert_eq!((kubevirt::VMS.admit)(&mut value, None), []);
    serde_json::from_value(value).unwrap()
}

fn empty() -> Value {
    json!({"spec": {"domain": {"devices": {}}}})
}

#[test]
fn a_machine_is_judged_with_what_it_chose() {
    let world = World::new();
    world.choose_from(Choice::Instancetype, Scope::Cluster, small());
    let demanding = json!({"requirements": {"cpu": {"guest": 4}}});
    world.choose_from(Choice::Preference, Scope::Namespaced, demanding);
    assert_eq!(world.causes(&vm(json!({"instancetype": {"name": "small"}, "template": empty()}))), []);
    let conflict = json!({"spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}}});
    for (spec, field, word) in [
        (json!({"instancetype": {"name": "large"}, "template": empty()}), "spec.instancetype", "not found"),
        (
            json!({"instancetype": {"name": "small"}, "template": conflict}),
            "spec.template.spec.domain.memory.guest",
            "conflicts with selected instance type",
        ),
        (
            json!({"instancetype": {"name": "small", "kind": "Flavour"}, "template": empty()}),
            "spec.instancetype.kind",
            "Flavour",
        ),
        (
            json!({"instancetype": {"name": "small"}, "template": empty(),
                "preference": {"name": "small", "kind": "virtualmachinepreference"}}),
            "spec.instancetype",
            "preference requires 4 vCPU",
        ),
        (
            json!({"instancetype": {"name": "small", "revisionName": "old"}, "template": empty()}),
            "spec.instancetype.revisionName",
            "old",
        ),
    ] {
        let told = world.causes(&vm(spec.clone()));
        assert!(told.len() == 1 && told[0].0 == field && told[0].1.contains(word), "{spec}: {told:?}");
    }
}

#[test]
fn a_spec_that_does_not_change_is_not_validated_again() {
    let world = World::new();
    let chosen = json!({"instancetype": {"name": "gone"}, "template": empty()});
    let stored = serde_json::to_value(vm(chosen)).unwrap();
    let fields = |new: &Value, old| {
        let causes = admit(&world.store, &kubevirt::VMS, &mut new.clone(), old);
        causes.into_iter().map(|cause| cause.field).collect::<Vec<_>>()
    };
    assert_eq!(fields(&stored, None), ["spec.instancetype"]);
    let mut labelled = stored.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(fields(&labelled, Some(&stored)).is_empty());
    labelled["spec"]["runStrategy"] = json!("Halted");
    assert_eq!(fields(&labelled, Some(&stored)), ["spec.instancetype"]);
}

#[test]
fn a_machine_is_what_its_volume_says() {
    let world = World::new();
    world.choose_from(Choice::Instancetype, Scope::Namespaced, small());
    let labels = json!({
        "instancetype.kubevirt.io/default-instancetype": "small",
        "instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype",
    });
    let claims = &kubevirt::CLAIMS;
    world.put(&claims.key("default", "debian"), json!({"metadata": {"labels": labels}}));
    world.put(&claims.key("default", "plain"), json!({"metadata": {}}));
    let machine = |claim: &str, instancetype: Value, memory: Value| {
        let disks = json!([{"name": "root", "disk": {"bus": "virtio"}}]);
        let domain = json!({"devices": {"disks": disks}, "memory": memory});
        let volumes = json!([{"name": "root", "persistentVolumeClaim": {"claimName": claim}}]);
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"runStrategy": "Always", "instancetype": instancetype,
                "template": {"spec": {"domain": domain, "volumes": volumes}}}})
    };
    let admitted = |mut value: Value, old: Option<&Value>| {
        let causes = admit(&world.store, &kubevirt::VMS, &mut value, old);
        let causes: Vec<_> = causes.into_iter().map(|cause| (cause.field, cause.message)).collect();
        (value, causes)
    };
    let asks = json!({"inferFromVolume": "root"});
    let named = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
    let (first, causes) = admitted(machine("debian", asks.clone(), Value::Null), None);
    assert_eq!((&first["spec"]["instancetype"], causes), (&named, vec![]));
    // What `kubectl apply` makes of the same manifest: it does not take away what it has not written.
    let mut again = first.clone();
    again["spec"]["instancetype"]["inferFromVolume"] = json!("root");
    let (second, causes) = admitted(again.clone(), Some(&first));
    assert_eq!((&second["spec"], causes), (&first["spec"], vec![]));
    again["spec"]["instancetype"]["name"] = json!("large");
    let (_, causes) = admitted(again, Some(&first));
    assert_eq!(causes.first().map(|(field, _)| field.as_str()), Some("spec.instancetype.name"));

    let label = "unable to find required instancetype.kubevirt.io/default-instancetype label on the volume";
    let (_, causes) = admitted(machine("plain", asks, Value::Null), None);
    assert_eq!(causes, [("spec.instancetype.inferFromVolume".to_owned(), label.to_owned())]);
    let wishes = json!({"inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Ignore"});
    let memory = json!({"guest": "64Mi"});
    let (without, causes) = admitted(machine("plain", wishes.clone(), memory.clone()), None);
    assert_eq!((without["spec"].get("instancetype"), causes), (None, vec![]));
    assert_eq!(without["spec"]["template"]["spec"]["domain"]["memory"], memory);
    let (with, causes) = admitted(machine("debian", wishes, memory), None);
    assert_eq!((&with["spec"]["instancetype"], causes), (&named, vec![]));
    assert!(with["spec"]["template"]["spec"]["domain"].get("memory").is_none(), "the instance type's is");
}
