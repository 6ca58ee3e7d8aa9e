use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

/// A cluster in which all claims and DataVolumes are in one namespace.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cluster {
    pub(crate) claims: BTreeMap<String, ClaimState>,
    pub(crate) data_volumes: BTreeMap<String, DataVolume>,
    pub(crate) has_cdi: bool,
}

impl Cluster {
    /// A claim that a DataVolume fills, if one is named.
    pub(crate) fn add_claim(&mut self, name: &str, phase: &str, data_volume: Option<&str>) {
        let owner = data_volume
            .map(|name| json!({"kind": "DataVolume", "name": name, "uid": "u", "controller": true}));
        let owners: Vec<Value> = owner.into_iter().collect();
        let object =
            json!({"metadata": {"name": name, "ownerReferences": owners}, "status": {"phase": phase}});
        self.claims.insert(name.to_owned(), ClaimState::read(object).unwrap());
    }

    pub(crate) fn add_data_volume(&mut self, name: &str, status: Value) {
        self.data_volumes.insert(name.to_owned(), data_volume(name, status));
    }
}

impl Storage for Cluster {
    fn claim(&self, key: &ObjectKey) -> Option<ClaimState> {
        self.claims.get(&key.name).cloned()
    }

    fn data_volume(&self, key: &ObjectKey) -> Option<DataVolume> {
        self.data_volumes.get(&key.name).cloned()
    }

    fn serves_data_volumes(&self) -> bool {
        self.has_cdi
    }
}

fn data_volume(name: &str, status: Value) -> DataVolume {
    serde_json::from_value(json!({"metadata": {"name": name}, "status": status})).unwrap()
}

#[test]
fn a_data_volume_is_filled_by_its_phase() {
    for (phase, filled, provisioning) in [
        ("", false, true),
        ("Pending", false, true),
        ("ImportInProgress", false, true),
        ("WaitForFirstConsumer", false, false),
        ("PendingPopulation", true, false),
        ("Succeeded", true, false),
    ] {
        let one = data_volume("d", json!({"phase": phase}));
        assert_eq!((one.is_filled(), one.is_provisioning()), (filled, provisioning), "{phase}");
        assert_eq!(one.failure(), None, "{phase}");
    }
    let bound = json!([{"type": "Bound", "status": "True"}]);
    let bound = data_volume("d", json!({"phase": "WaitForFirstConsumer", "conditions": bound}));
    assert!(bound.is_provisioning());
    let half = data_volume("d", json!({"phase": "ImportInProgress", "progress": "50.0%"}));
    assert_eq!(half.progress(), "ImportInProgress, 50.0%");
}

#[test]
fn a_failure_has_a_reason() {
    let failure = |status: Value| data_volume("d", status).failure();
    assert_eq!(failure(json!({"phase": "Failed"})).as_deref(), Some("DataVolume d has failed"));
    let running = |reason: &str| {
        json!({"phase": "ImportInProgress",
            "conditions": [{"type": "Running", "status": "False", "reason": reason, "message": "no such host"}]})
    };
    let text = "DataVolume d is not being filled: no such host";
    assert_eq!(failure(running("Error")).as_deref(), Some(text));
    assert_eq!(failure(running("ContainerCreating")), None);
    let quota = json!({"phase": "Pending",
        "conditions": [{"type": "Bound", "status": "Unknown", "reason": "ErrExceededQuota", "message": "no such host"}]});
    assert_eq!(failure(quota).as_deref(), Some(text));
}
