//! The resources that this server has beside Kubernetes' own: KubeVirt's and those of storage.

pub(crate) mod claim;
pub mod storage;
pub(crate) mod volume;

use std::sync::Arc;

use vireo_apiserver::resource::Resource;
use vireo_install::resource::kubevirt;

pub use volume::describe_class;

/// All of them.
pub fn rows() -> Vec<Arc<Resource>> {
    let storage = [&storage::CLAIMS, &storage::VOLUMES, &storage::STORAGE_CLASSES];
    storage.into_iter().map(|row| Arc::clone(row)).chain(kubevirt::rows()).collect()
}
