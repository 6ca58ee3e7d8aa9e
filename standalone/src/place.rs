//! The resources that controllers look after, what must be there, and how objects are made of others.

use serde_json::{Value, json};
use vireo_apiserver::meta;
use vireo_apiserver::resource::{self, Resource};
use vireo_apiserver::store::{Change, DiskError, Key, Store};
use vireo_handler::provisioner::CLASS;

use crate::nodes;
use crate::resource::{describe_class, kubevirt};

pub use vireo_apiserver::objects::{
    Leaving, change, done, is_held, make, mark_for_deletion, namespace, remove,
};

/// The row of nodes.
pub fn nodes() -> &'static Resource {
    &resource::NODES
}

/// The row of events.
pub fn events() -> &'static Resource {
    &resource::EVENTS
}

/// The row of VMIs.
pub fn vmis() -> &'static Resource {
    &kubevirt::VMIS
}

/// The row of VirtualMachines.
pub fn vms() -> &'static Resource {
    &kubevirt::VMS
}

/// The row of VirtualMachineInstanceReplicaSets.
pub fn replica_sets() -> &'static Resource {
    &kubevirt::REPLICA_SETS
}

/// The row of PersistentVolumeClaims.
pub fn claims() -> &'static Resource {
    &kubevirt::CLAIMS
}

/// The row of PersistentVolumes.
pub fn volumes() -> &'static Resource {
    &kubevirt::VOLUMES
}

/// The row of StorageClasses.
pub fn classes() -> &'static Resource {
    &kubevirt::STORAGE_CLASSES
}

/// The row of VirtualMachinePools.
pub fn pools() -> &'static Resource {
    &kubevirt::POOLS
}

/// The row of ControllerRevisions.
pub fn revisions() -> &'static Resource {
    &resource::CONTROLLER_REVISIONS
}

/// Shortens the time that the guest of an instance gets to shut down, also of one that is leaving already. As for pods, a
/// deletion never makes it longer.
pub fn shorten_grace(instance: &mut Value, seconds: i64) {
    const USUAL: i64 = 30;
    let field = "terminationGracePeriodSeconds";
    let has = instance.pointer(&format!("/spec/{field}")).and_then(Value::as_i64).unwrap_or(USUAL);
    if seconds < has {
        instance["spec"][field] = json!(seconds);
    }
}

/// What an object would be refused for; completes it.
pub fn judge(store: &Store, resource: &Resource, value: &mut Value, old: Option<&Value>) -> Option<String> {
    let causes = crate::instancetypes::admit(store, resource, value, old);
    causes.first().map(|cause| format!("{}: {}", cause.field, cause.message))
}

/// Creates a machine or an instance as a controller does; `complete` adds to it what only controllers say. Why not, if it
/// is refused. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn create(
    store: &Store,
    resource: &Resource,
    key: &Key,
    mut value: Value,
    complete: impl FnOnce(&mut Value),
) -> Result<Option<String>, DiskError> {
    if store.is_unreadable(key) {
        return Ok(Some(format!("{} {:?} is there and cannot be read", key.resource, key.name)));
    }
    meta::create(&mut value, &key.namespace, &key.name);
    if let Some(why) = judge(store, resource, &mut value, None) {
        return Ok(Some(why));
    }
    complete(&mut value);
    let mut refused = None;
    let written = store.write(key, |before, store| {
        let leaves = namespace(store, &key.namespace).is_none_or(|room| meta::is_leaving(&room.value));
        refused = match before {
            Some(_) => Some(format!("{} {:?} already exists", key.resource, key.name)),
            None if leaves => Some(format!("the namespace {:?} is being deleted", key.namespace)),
            None => None,
        };
        Ok(if refused.is_some() { Change::Nothing } else { Change::Put(value) })
    });
    done(written)?;
    Ok(refused)
}

/// Makes what must be there: the permanent namespaces, the StorageClass and this node. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn prepare(store: &Store, node: &str) -> Result<(), DiskError> {
    vireo_apiserver::objects::prepare(store)?;
    make(store, classes(), CLASS, describe_class)?;
    make(store, self::nodes(), node, |value| nodes::describe(value, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preparing_again_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        prepare(&store, "node1").unwrap();
        let revision = store.revision();
        prepare(&store, "node1").unwrap();
        assert_eq!(store.revision(), revision);
        assert_eq!(namespace(&store, "default").unwrap().value["status"]["phase"], "Active");
    }
}
