//! How many VMs were created, by namespace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use vireo_client::Kind;
use vireo_client::metrics::{Metric, MetricSet, counter};

const CREATED: Metric = counter(
    "kubevirt_vm_created_by_pod_total",
    "How many VMs were created since this virt-api started, by the reviews that it has answered.",
);

/// The VMs that this replica has admitted. Others admit others.
#[derive(Debug, Clone, Default)]
pub(super) struct CreatedVms(Arc<Mutex<BTreeMap<String, u64>>>);

impl CreatedVms {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the VM of a review of an object that is to be stored, by its answer.
    pub(super) fn observe(&self, review: &Value, answer: &Value) {
        if let Some(namespace) = created_in(review, answer) {
            *self.lock().entry(namespace.to_owned()).or_default() += 1;
        }
    }

    /// Adds the counts to a set.
    pub(super) fn add(&self, set: &mut MetricSet) {
        for (namespace, count) in &*self.lock() {
            set.add(&CREATED, vec![("namespace".into(), namespace.clone())], Some((*count).into()));
        }
    }
}

/// The namespace of a VM that is created, unless that is denied or a dry run.
fn created_in<'a>(review: &'a Value, answer: &Value) -> Option<&'a str> {
    let request = &review["request"];
    let resource = &request["resource"];
    let is_vm = resource["group"] == Kind::VM.group && resource["resource"] == Kind::VM.plural;
    // A creation has no other subresource than `status`, which is not written by it.
    let is_new =
        request["operation"] == "CREATE" && request["subResource"].as_str().is_none_or(str::is_empty);
    let is_stored = answer["response"]["allowed"] == true && request["dryRun"] != true;
    request["namespace"].as_str().filter(|_| is_vm && is_new && is_stored)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_client::metrics::encode;

    use super::*;

    fn review(changes: Value) -> Value {
        let mut request = json!({
            "operation": "CREATE", "namespace": "prod", "dryRun": false,
            "resource": {"group": "kubevirt.io", "version": "v1", "resource": "virtualmachines"},
        });
        for (field, value) in changes.as_object().unwrap() {
            request[field] = value.clone();
        }
        json!({"request": request})
    }

    fn answer(allowed: bool) -> Value {
        json!({"response": {"allowed": allowed}})
    }

    #[test]
    fn vms_are_counted_once_they_are_admitted() {
        let created = CreatedVms::default();
        created.observe(&review(json!({})), &answer(true));
        created.observe(&review(json!({"dryRun": null})), &answer(true));
        created.observe(&review(json!({"namespace": "test"})), &answer(true));
        let vmis = json!({"group": "kubevirt.io", "version": "v1", "resource": "virtualmachineinstances"});
        for (changes, allowed) in [
            (json!({}), false),
            (json!({"dryRun": true}), true),
            (json!({"operation": "UPDATE"}), true),
            (json!({"subResource": "status"}), true),
            (json!({"resource": vmis}), true),
        ] {
            assert_eq!(created_in(&review(changes.clone()), &answer(allowed)), None, "{changes}");
        }
        let mut set = MetricSet::default();
        created.add(&mut set);
        let text = encode(set, &[]).unwrap();
        for line in ["{namespace=\"prod\"} 2", "{namespace=\"test\"} 1"] {
            let line = format!("kubevirt_vm_created_by_pod_total{line}");
            assert!(text.lines().any(|one| one == line), "{line}: {text}");
        }
    }
}
