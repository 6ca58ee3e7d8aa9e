//! The roles and bindings of KubeVirt and CDI, which this server has beside Kubernetes' own.

mod cdi;
mod kubevirt;

pub use kubevirt::VIRT_CONTROLLER;

use vireo_apiserver::rbac::defaults::Policy;

/// The bootstrap policy of the server.
pub fn policy() -> Policy {
    Policy::new(kubevirt::all().into_iter().chain(cdi::all()))
}
