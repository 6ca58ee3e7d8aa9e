//! Follows the published VMIs of the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use vireo_api::v1::VirtualMachineInstance;

use crate::manifests::Key;
use crate::node::Node;

/// Calls a function for each published VMI that changed or was removed.
pub(super) async fn follow(node: &Node, changed: impl Fn(&Key, &VirtualMachineInstance)) {
    let mut changes = node.subscribe();
    let mut shown: BTreeMap<Key, Arc<VirtualMachineInstance>> = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        let now: BTreeMap<Key, Arc<VirtualMachineInstance>> =
            node.vmis().into_iter().map(|vmi| (key(&vmi), vmi)).collect();
        for (key, vmi) in &now {
            if shown.get(key).is_none_or(|before| !Arc::ptr_eq(before, vmi)) {
                changed(key, vmi);
            }
        }
        for (key, vmi) in shown.iter().filter(|(key, _)| !now.contains_key(*key)) {
            changed(key, vmi);
        }
        shown = now;
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn key(vmi: &VirtualMachineInstance) -> Key {
    Key::new(&vmi.metadata.namespace, &vmi.metadata.name)
}
