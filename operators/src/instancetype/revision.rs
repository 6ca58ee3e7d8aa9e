//! Instance types and preferences as they were when a VM was first started with them.

use serde_json::{Value, json};
use vireo_api::v1::{INSTANCETYPE_VERSION, ObjectMeta, VirtualMachine};

use super::Choice;
use super::find::{Chosen, Source};
use crate::revision::controller_revision;

impl Chosen {
    /// What was chosen.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// The name of the ControllerRevision that keeps it for a VM.
    pub fn revision_name(&self, vm: &ObjectMeta) -> String {
        match &self.source {
            Source::Revision(name) => name.clone(),
            Source::Object(object) => {
                let (uid, generation) = identity(object);
                format!("{}-{}-{uid}-{generation}", vm.name, self.name)
            }
        }
    }

    /// The ControllerRevision that is to keep it for a VM; absent where it comes from one.
    pub fn new_revision(&self, vm: &ObjectMeta) -> Option<Value> {
        let object = match &self.source {
            Source::Revision(_) => return None,
            Source::Object(object) => object,
        };
        let (kind, (uid, generation)) = (self.choice.kind(self.scope), identity(object));
        let labels = json!({
            "instancetype.kubevirt.io/object-name": self.name, "instancetype.kubevirt.io/object-kind": kind,
            "instancetype.kubevirt.io/object-uid": uid,
            "instancetype.kubevirt.io/object-version": "v1beta1",
            "instancetype.kubevirt.io/object-generation": generation.to_string(),
        });
        let data = json!({
            "apiVersion": INSTANCETYPE_VERSION, "kind": kind, "metadata": object.get("metadata"),
            "spec": self.spec,
        });
        Some(controller_revision(vm, &self.revision_name(vm), &labels, &data, 0))
    }

    /// Records it in the status of a VM.
    pub fn record(&self, vm: &mut VirtualMachine) {
        let revision = self.revision_name(&vm.metadata);
        let kind = self.choice.kind(self.scope);
        let reference = json!({"name": self.name, "kind": kind, "controllerRevisionRef": {"name": revision}});
        *recorded(vm, self.choice) = Some(reference);
    }
}

/// Removes a choice that a VM does not make any more from its status.
pub fn clear(vm: &mut VirtualMachine, choice: Choice) {
    *recorded(vm, choice) = None;
}

fn recorded(vm: &mut VirtualMachine, choice: Choice) -> &mut Option<Value> {
    match choice {
        Choice::Instancetype => &mut vm.status.instancetype_ref,
        Choice::Preference => &mut vm.status.preference_ref,
    }
}

fn identity(object: &Value) -> (&str, i64) {
    let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
    (uid, object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::{Lookup, Scope, find};
    use super::*;

    /// One instance type, and the revisions that were made of it.
    struct Known {
        object: Value,
        revisions: Vec<Value>,
    }

    impl Lookup for Known {
        fn revision(&self, namespace: &str, name: &str) -> Option<Value> {
            let is_it =
                |one: &&Value| one["metadata"]["name"] == name && one["metadata"]["namespace"] == namespace;
            self.revisions.iter().find(is_it).map(|one| one["data"].clone())
        }

        fn object(&self, choice: Choice, scope: Scope, namespace: &str, name: &str) -> Option<Value> {
            let is_it =
                (choice, scope, namespace, name) == (Choice::Instancetype, Scope::Cluster, "", "small");
            is_it.then(|| self.object.clone())
        }
    }

    fn small(generation: i64, cpus: i64) -> Value {
        json!({"metadata": {"name": "small", "uid": "u", "generation": generation}, "spec": {"cpu": {"guest": cpus}}})
    }

    #[test]
    fn a_vm_keeps_the_instance_type_as_it_was() {
        let mut known = Known { object: small(1, 2), revisions: Vec::new() };
        let mut vm: VirtualMachine = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "n", "uid": "v"}, "spec": {"instancetype": {"name": "small"}},
        }))
        .unwrap();
        let chosen =
            |known: &Known, vm: &VirtualMachine| find(known, vm, Choice::Instancetype).unwrap().unwrap();
        let first = chosen(&known, &vm);
        let revision = first.new_revision(&vm.metadata).unwrap();
        assert_eq!(revision["metadata"]["name"], "web-small-u-1");
        assert_eq!(revision["metadata"]["ownerReferences"][0]["uid"], "v");
        assert_eq!(revision["data"]["spec"], json!({"cpu": {"guest": 2}}));
        known.revisions.push(revision);
        first.record(&mut vm);
        known.object = small(2, 4);
        let kept = chosen(&known, &vm);
        assert_eq!((&kept.spec, kept.new_revision(&vm.metadata)), (&first.spec, None));
        assert_eq!(kept.revision_name(&vm.metadata), "web-small-u-1");
        // Without the revision, another one is made.
        known.revisions.clear();
        assert_eq!(chosen(&known, &vm).revision_name(&vm.metadata), "web-small-u-2");
        clear(&mut vm, Choice::Instancetype);
        assert_eq!(vm.status.instancetype_ref, None);
        vm.spec.instancetype.as_mut().unwrap().revision_name = "old".to_owned();
        let problem = find(&known, &vm, Choice::Instancetype).unwrap_err();
        assert_eq!(problem.field, "spec.instancetype.revisionName");
    }
}
