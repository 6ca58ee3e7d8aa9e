//! VMs with their instance types and preferences.

use std::collections::HashMap;

use super::*;
use crate::admission::instancetype::{cluster_instancetype, instancetype, preference};
use crate::instancetype::{Choice, Scope};

/// What the API server has.
#[derive(Default)]
struct Objects {
    objects: HashMap<(&'static str, &'static str, String), Value>,
    claims: HashMap<&'static str, BTreeMap<String, String>>,
}

impl Objects {
    fn put(&mut self, choice: Choice, scope: Scope, spec: Value) {
        let namespace = if scope == Scope::Namespaced { "default" } else { "" };
        let value = json!({"apiVersion": choice.resource(scope).api_version(), "kind": choice.kind(scope),
            "metadata": {"name": "small"}, "spec": spec});
        let validate: fn(&Value) -> Vec<Problem> = match (choice, scope) {
            (Choice::Instancetype, Scope::Namespaced) => instancetype,
            (Choice::Instancetype, Scope::Cluster) => cluster_instancetype,
            (Choice::Preference, _) => preference,
        };
        assert_eq!(validate(&value), []);
        self.objects.insert((choice.kind(scope), namespace, "small".to_owned()), value);
    }

    fn problems(&self, vm: &Value) -> Vec<(String, String)> {
        let problems = validate_expanded(self, vm, None);
        problems.into_iter().map(|problem| (problem.field, problem.message)).collect()
    }

    /// As the API server admits it: what it is, or why not.
    fn admit(&self, mut vm: Value, old: Option<&Value>) -> (Value, Vec<(String, String)>) {
        let labels = |namespace: &str, claim: &str| {
            assert_eq!(namespace, "default");
            self.claims.get(claim).cloned()
        };
        let mut problems = infer(&mut vm, old, labels);
        if problems.is_empty() {
            problems = super::admit(&mut vm, old);
        }
        if problems.is_empty() {
            problems = validate_expanded(self, &vm, old);
        }
        let problems = problems.into_iter().map(|problem| (problem.field, problem.message)).collect();
        (vm, problems)
    }
}

impl Lookup for Objects {
    fn revision(&self, _: &str, _: &str) -> Option<Value> {
        None
    }

    fn object(&self, choice: Choice, scope: Scope, namespace: &str, name: &str) -> Option<Value> {
        let is_it = |(kind, within, named): &(&str, &str, String)| {
            (*kind, *within, named.as_str()) == (choice.kind(scope), namespace, name)
        };
        self.objects.iter().find(|(key, _)| is_it(key)).map(|(_, object)| object.clone())
    }
}

fn small() -> Value {
    json!({"cpu": {"guest": 2}, "memory": {"guest": "128Mi"}})
}

fn vm(spec: Value) -> Value {
    let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "spec": spec,
        "metadata": {"name": "web", "namespace": "default", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"}});
    assert_eq!(super::admit(&mut vm, None), []);
    vm
}

fn empty() -> Value {
    json!({"spec": {"domain": {"devices": {}}}})
}

#[test]
fn a_vm_is_validated_with_what_it_chose() {
    let mut objects = Objects::default();
    objects.put(Choice::Instancetype, Scope::Cluster, small());
    let requiring = json!({"requirements": {"cpu": {"guest": 4}}});
    objects.put(Choice::Preference, Scope::Namespaced, requiring);
    assert_eq!(objects.problems(&vm(json!({"instancetype": {"name": "small"}, "template": empty()}))), []);
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
        let found = objects.problems(&vm(spec.clone()));
        assert!(found.len() == 1 && found[0].0 == field && found[0].1.contains(word), "{spec}: {found:?}");
    }
}

#[test]
fn a_choice_that_does_not_change_is_not_validated_again() {
    let objects = Objects::default();
    let chosen = json!({"instancetype": {"name": "gone"}, "template": empty()});
    let stored = vm(chosen);
    let fields = |new: &Value, old| {
        let (_, problems) = objects.admit(new.clone(), old);
        problems.into_iter().map(|(field, _)| field).collect::<Vec<_>>()
    };
    assert_eq!(fields(&stored, None), ["spec.instancetype"]);
    let mut labelled = stored.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(fields(&labelled, Some(&stored)).is_empty());
    labelled["spec"]["runStrategy"] = json!("Halted");
    assert_eq!(fields(&labelled, Some(&stored)), ["spec.instancetype"]);
}

#[test]
fn instance_type_is_inferred_from_volumes() {
    let mut objects = Objects::default();
    objects.put(Choice::Instancetype, Scope::Namespaced, small());
    let labels = [
        ("instancetype.kubevirt.io/default-instancetype", "small"),
        ("instancetype.kubevirt.io/default-instancetype-kind", "VirtualMachineInstancetype"),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    objects.claims = HashMap::from([("debian", BTreeMap::from(labels)), ("plain", BTreeMap::new())]);
    let vm = |claim: &str, instancetype: Value, memory: Value| {
        let disks = json!([{"name": "root", "disk": {"bus": "virtio"}}]);
        let domain = json!({"devices": {"disks": disks}, "memory": memory});
        let volumes = json!([{"name": "root", "persistentVolumeClaim": {"claimName": claim}}]);
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"runStrategy": "Always", "instancetype": instancetype,
                "template": {"spec": {"domain": domain, "volumes": volumes}}}})
    };
    let asks = json!({"inferFromVolume": "root"});
    let named = json!({"name": "small", "kind": "VirtualMachineInstancetype"});
    let (first, problems) = objects.admit(vm("debian", asks.clone(), Value::Null), None);
    assert_eq!((&first["spec"]["instancetype"], problems), (&named, vec![]));
    // What `kubectl apply` makes of the same manifest: it does not take away what it has not written.
    let mut again = first.clone();
    again["spec"]["instancetype"]["inferFromVolume"] = json!("root");
    let (second, problems) = objects.admit(again.clone(), Some(&first));
    assert_eq!((&second["spec"], problems), (&first["spec"], vec![]));
    again["spec"]["instancetype"]["name"] = json!("large");
    let (_, problems) = objects.admit(again, Some(&first));
    assert_eq!(problems.first().map(|(field, _)| field.as_str()), Some("spec.instancetype.name"));

    let label = "unable to find required instancetype.kubevirt.io/default-instancetype label on the volume";
    let (_, problems) = objects.admit(vm("plain", asks, Value::Null), None);
    assert_eq!(problems, [("spec.instancetype.inferFromVolume".to_owned(), label.to_owned())]);
    let inferred = json!({"inferFromVolume": "root", "inferFromVolumeFailurePolicy": "Ignore"});
    let memory = json!({"guest": "64Mi"});
    let (without, problems) = objects.admit(vm("plain", inferred.clone(), memory.clone()), None);
    assert_eq!((without["spec"].get("instancetype"), problems), (None, vec![]));
    assert_eq!(without["spec"]["template"]["spec"]["domain"]["memory"], memory);
    let (with, problems) = objects.admit(vm("debian", inferred, memory), None);
    assert_eq!((&with["spec"]["instancetype"], problems), (&named, vec![]));
    assert!(with["spec"]["template"]["spec"]["domain"].get("memory").is_none(), "the instance type's is");
}

fn fields(spec: Value) -> Vec<String> {
    let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "x", "namespace": "n"}, "spec": spec});
    super::admit(&mut vm, None).into_iter().map(|problem| problem.field).collect()
}

#[test]
fn problems_of_the_template_are_those_of_a_vmi() {
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {}}}});
    assert!(fields(json!({"runStrategy": "Always", "template": template})).is_empty());
    assert!(fields(json!({"running": true, "template": template})).is_empty());
    assert_eq!(
        fields(json!({"running": true, "runStrategy": "Always", "template": template})),
        ["spec.runStrategy"]
    );
    assert_eq!(
        fields(json!({"dataVolumeTemplates": [{}], "template": template})),
        ["spec.dataVolumeTemplates[0].metadata.name"]
    );
    assert_eq!(fields(json!({"runstrategy": "Always", "template": template})), ["spec.runstrategy"]);
    assert_eq!(fields(json!({"runStrategy": "Always"})), ["spec.template"]);
    let broken = json!({"spec": {"domain": {"devices": {"disks": [{"name": "root"}]}}}});
    let found = fields(json!({"template": broken}));
    assert!(found.contains(&"spec.template.spec.domain.memory.guest".to_owned()), "{found:?}");
    let mistyped = json!({"spec": {"domain": {"cpu": {"cores": "many"}}}});
    assert_eq!(fields(json!({"template": mistyped})), ["spec.template.spec.domain.cpu.cores"]);
}

#[test]
fn a_spec_that_does_not_change_is_not_validated_again() {
    let stored = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "x", "namespace": "n", "finalizers": ["a"]}, "spec": {"runStrategy": "Sometimes"}});
    let mut released = stored.clone();
    released["metadata"]["finalizers"] = json!([]);
    assert_eq!(super::admit(&mut released, Some(&stored)), []);
    released["spec"]["runStrategy"] = json!("Never");
    assert!(!super::admit(&mut released, Some(&stored)).is_empty());
}

#[test]
fn what_cannot_start_is_refused_where_the_template_changes() {
    let template = json!({"metadata": {"annotations": {"vireo.io/hypervisor": "native"}},
        "spec": {"domain": {"memory": {"guest": "64Mi"}, "devices": {"tpm": {}}}}});
    let tpm = "spec.template.spec.domain.devices.tpm";
    let mut vm = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"name": "x", "namespace": "n"}, "spec": {"runStrategy": "Always", "template": template}});
    let fields = |vm: &Value, old| {
        let problems = super::admit(&mut vm.clone(), old);
        problems.into_iter().map(|problem| problem.field).collect::<Vec<_>>()
    };
    assert_eq!(fields(&vm, None), [tpm]);
    // One that an earlier release accepted can be stopped.
    let stored = vm.clone();
    vm["spec"]["runStrategy"] = json!("Halted");
    assert_eq!(fields(&vm, Some(&stored)), [""; 0]);
    vm["spec"]["template"]["spec"]["domain"]["devices"]["rng"] = json!({});
    assert_eq!(fields(&vm, Some(&stored)), [tpm]);
    vm["spec"]["template"]["metadata"] = json!({});
    assert_eq!(fields(&vm, Some(&stored)), [""; 0]);
}

#[test]
fn the_examples_are_valid() {
    for text in [
        include_str!("../../../../examples/standalone/vm.yaml"),
        include_str!("../../../../examples/cluster/datavolume.yaml"),
    ] {
        let mut vm = decode::documents(text).unwrap().remove(0);
        assert_eq!(super::admit(&mut vm, None), []);
    }
}
