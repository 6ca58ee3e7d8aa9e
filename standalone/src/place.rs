//! The places that are always there, and how objects leave theirs.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::resource::{self, Resource, kubevirt};
use crate::store::{Change, DiskError, Key, Object, Store, WriteError};
use crate::{meta, nodes};

/// Namespaces that are made at the start and cannot be deleted.
const PERMANENT: [&str; 2] = ["default", "kube-system"];

/// Whether an object that was deleted is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// Somebody holds it by a finalizer.
    Held,
    /// It goes at once.
    Free,
}

/// The row of namespaces.
pub fn namespaces() -> &'static Resource {
    &resource::NAMESPACES
}

/// The row of ServiceAccounts.
pub fn accounts() -> &'static Resource {
    &resource::SERVICE_ACCOUNTS
}

/// The row of Secrets.
pub fn secrets() -> &'static Resource {
    &resource::SECRETS
}

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

/// The row of CustomResourceDefinitions.
pub fn definitions() -> &'static Resource {
    &resource::CUSTOM_RESOURCE_DEFINITIONS
}

/// The row of VirtualMachinePools.
pub fn pools() -> &'static Resource {
    &kubevirt::POOLS
}

/// The row of ControllerRevisions.
pub fn revisions() -> &'static Resource {
    &resource::CONTROLLER_REVISIONS
}

/// One namespace.
pub fn namespace(store: &Store, name: &str) -> Option<Arc<Object>> {
    store.get(&namespaces().key("", name))
}

/// Whether an object cannot be deleted.
pub fn is_permanent(resource: &Resource, name: &str) -> bool {
    std::ptr::eq(resource, namespaces()) && PERMANENT.contains(&name)
}

/// Whether somebody holds an object.
pub fn is_held(value: &Value) -> bool {
    let inner = value.get("kind").is_some_and(|kind| kind == "Namespace")
        && value.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    inner || !meta::finalizers(value).is_empty()
}

/// Marks an object as leaving, if it is held.
pub fn leave(value: &mut Value) -> Leaving {
    if !is_held(value) {
        return Leaving::Free;
    }
    if !meta::is_leaving(value) {
        let metadata = meta::of(value);
        metadata.insert("deletionTimestamp".to_owned(), json!(meta::now()));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
        if value.get("kind").is_some_and(|kind| kind == "Namespace") {
            value["status"] = json!({"phase": "Terminating"});
        }
    }
    Leaving::Held
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

/// Deletes an object as a request without options would. What is gone already is no error. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn remove(store: &Store, object: &Object) -> Result<(), DiskError> {
    change(store, object, |value| leave(value) == Leaving::Held)
}

/// Changes an object that is still the same one; `stays` says whether it is kept. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn change(
    store: &Store,
    object: &Object,
    stays: impl FnOnce(&mut Value) -> bool,
) -> Result<(), DiskError> {
    let uid = meta::text(&object.value, "uid");
    let changed = store.write(&object.key, |now, _| {
        let Some(now) = now.filter(|now| meta::text(&now.value, "uid") == uid) else {
            return Ok(Change::Nothing);
        };
        let mut value = now.value.clone();
        Ok(if stays(&mut value) { Change::Put(value) } else { Change::Remove(value) })
    });
    done(changed)
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
pub fn plant(
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

/// For writers that refuse nothing.
///
/// # Errors
/// When the store cannot be written.
pub fn done<T>(result: Result<T, WriteError<std::convert::Infallible>>) -> Result<(), DiskError> {
    match result {
        Ok(_) => Ok(()),
        Err(WriteError::Refused(never)) => match never {},
        Err(WriteError::Disk(error)) => Err(error),
    }
}

/// Makes what must be there: the permanent namespaces, the StorageClass and this node. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn prepare(store: &Store, node: &str) -> Result<(), DiskError> {
    for name in PERMANENT {
        make(store, namespaces(), name, |value| {
            (namespaces().admit)(value, None);
        })?;
    }
    make(store, classes(), resource::CLASS, resource::describe_class)?;
    make(store, self::nodes(), node, |value| nodes::describe(value, node))
}

/// Makes an object if it is not there, and brings it up to date. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn make(
    store: &Store,
    resource: &'static Resource,
    name: &str,
    complete: impl FnOnce(&mut Value),
) -> Result<(), DiskError> {
    let written = store.write(&resource.key("", name), |before, _| {
        let mut value = match before {
            Some(before) => before.value.clone(),
            None => {
                let mut fresh =
                    json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {}});
                meta::create(&mut fresh, "", name);
                fresh
            }
        };
        complete(&mut value);
        Ok(Change::Put(value))
    });
    done(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_marked_once_and_what_is_not_goes() {
        let mut free = json!({"metadata": {"name": "x"}});
        assert_eq!(leave(&mut free), Leaving::Free);
        let mut held = json!({"metadata": {"name": "x", "finalizers": ["a"]}});
        assert_eq!(leave(&mut held), Leaving::Held);
        let marked = held.clone();
        assert!(meta::is_leaving(&marked));
        assert_eq!(leave(&mut held), Leaving::Held);
        assert_eq!(held, marked);
        let mut namespace =
            json!({"kind": "Namespace", "metadata": {}, "spec": {"finalizers": ["kubernetes"]}});
        assert_eq!(leave(&mut namespace), Leaving::Held);
        assert_eq!(namespace["status"]["phase"], "Terminating");
    }

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
