//! Instance types and preferences of VMs that are admitted or expanded: over the store, what
//! [`vireo_operators::instancetype`] says.

mod infer;

use serde_json::Value;
use vireo_api::v1::{VirtualMachine, VirtualMachineInstanceTemplateSpec};
use vireo_apiserver::meta;
use vireo_apiserver::resource::{Cause, Resource};
use vireo_apiserver::store::Store;
use vireo_operators::instancetype::{self, Choice, Lookup, Problem, Scope};

use crate::resource::{has_same_spec, kubevirt, of_machine};

/// A VM's template with its instance type and its preference.
pub type Expanded = Result<Option<VirtualMachineInstanceTemplateSpec>, Vec<Cause>>;

struct Stored<'a>(&'a Store);

impl Lookup for Stored<'_> {
    fn revision(&self, namespace: &str, name: &str) -> Option<Value> {
        self.0
            .get(&vireo_apiserver::resource::CONTROLLER_REVISIONS.key(namespace, name))?
            .value
            .get("data")
            .cloned()
    }

    fn object(&self, choice: Choice, scope: Scope, namespace: &str, name: &str) -> Option<Value> {
        Some(self.0.get(&row(choice, scope).key(namespace, name))?.value.clone())
    }
}

fn row(choice: Choice, scope: Scope) -> &'static Resource {
    match (choice, scope) {
        (Choice::Instancetype, Scope::Namespaced) => &kubevirt::INSTANCETYPES,
        (Choice::Instancetype, Scope::Cluster) => &kubevirt::CLUSTER_INSTANCETYPES,
        (Choice::Preference, Scope::Namespaced) => &kubevirt::PREFERENCES,
        (Choice::Preference, Scope::Cluster) => &kubevirt::CLUSTER_PREFERENCES,
    }
}

/// Expands a VM's template; nothing where the VM has neither an instance type nor a preference.
pub fn expand(store: &Store, vm: &VirtualMachine) -> Expanded {
    let cause = |Problem { r#type, field, message }| Cause { reason: r#type.as_str(), message, field };
    let expanded = instancetype::expand(&Stored(store), vm);
    expanded.map_err(|problems| problems.into_iter().map(cause).collect())
}

/// Completes and validates an object of any kind, a VM expanded. `old` is the stored object that it replaces.
pub fn admit(store: &Store, resource: &Resource, value: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    let mut causes = find_names(store, resource, value, old);
    if causes.is_empty() {
        causes = (resource.admit)(value, old);
    }
    if causes.is_empty() {
        causes = judge(store, resource, value, old);
    }
    causes
}

/// Sets the instance type and the preference that a VM infers from its volumes. Why it cannot.
pub fn find_names(store: &Store, resource: &Resource, value: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    match chooses(resource, value, old) {
        true => infer::infer(store, value, old),
        false => Vec::new(),
    }
}

fn chooses(resource: &Resource, value: &Value, old: Option<&Value>) -> bool {
    resource.is(&kubevirt::VMS) && !meta::is_leaving(value) && !has_same_spec(value, old)
}

/// Validates a VM with its instance type and its preference. `old` is the stored object that it replaces.
pub fn judge(store: &Store, resource: &Resource, value: &Value, old: Option<&Value>) -> Vec<Cause> {
    if !chooses(resource, value, old) {
        return Vec::new();
    }
    let Ok(vm) = serde_json::from_value::<VirtualMachine>(value.clone()) else { return Vec::new() };
    match expand(store, &vm) {
        Ok(Some(template)) => of_machine(&vm.metadata, &template),
        Ok(None) => Vec::new(),
        Err(causes) => causes,
    }
}

#[cfg(test)]
mod tests;
