//! The roles and bindings of KubeVirt and CDI, which this server has beside Kubernetes' own.

mod cdi;
mod kubevirt;

pub use cdi::CDI_API;
pub use kubevirt::{LOCAL_KUBELET, LOCAL_PROVISIONER, SCHEDULER, VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER};

use serde_json::Value;
use vireo_apiserver::auth::User;
use vireo_apiserver::rbac::defaults::Policy;

/// The bootstrap policy of the server.
pub fn policy() -> Policy {
    Policy::new(kubevirt::all().into_iter().chain(cdi::all()))
}

/// The roles and bindings of KubeVirt, for a cluster: it has a scheduler and its role already.
pub fn kubevirt_roles() -> impl Iterator<Item = Value> {
    kubevirt::all().into_iter().filter(|object| object.name != SCHEDULER).map(|object| object.value)
}

/// Whether this is the scheduler or the user of a component of KubeVirt or CDI, which may write what admission keeps from other users.
pub fn is_component(user: &User) -> bool {
    let is_account = |(namespace, name)| user.name == User::service_account(namespace, name).name;
    user.name == SCHEDULER
        || [CDI_API, VIRT_API, VIRT_CONTROLLER, VIRT_HANDLER, LOCAL_KUBELET, LOCAL_PROVISIONER]
            .into_iter()
            .any(is_account)
}
