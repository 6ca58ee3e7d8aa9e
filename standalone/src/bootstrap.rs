//! The objects that a server has from the start.

use jiff::Timestamp;
use vireo_apiserver::objects;
use vireo_apiserver::resource::NODES;
use vireo_apiserver::store::{DiskError, Store};
use vireo_handler::heartbeat;
use vireo_handler::provisioner::CLASS;

use crate::resource::{describe_class, storage};

/// Creates the permanent namespaces, the StorageClass and this node, where they are absent. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn prepare(store: &Store, node: &str) -> Result<(), DiskError> {
    objects::prepare(store)?;
    objects::make(store, &storage::STORAGE_CLASSES, CLASS, describe_class)?;
    objects::make(store, &NODES, node, |value| heartbeat::describe(value, node, Timestamp::now()))
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
        assert_eq!(objects::namespace(&store, "default").unwrap().value()["status"]["phase"], "Active");
    }
}
