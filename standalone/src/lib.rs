//! `vireo standalone`: the KubeVirt API on one host, without a cluster.
//!
//! It composes [`vireo_apiserver`], the controllers and the node agent. [`resource`] has the resources of storage beside
//! KubeVirt's ([`vireo_install::resource`]), [`admit`] and [`vireo_install::policy`] who may write what. [`virt_api`] mounts KubeVirt's API server, [`cdi`] is CDI's. [`vireo_handler::cluster`] is
//! the node agent's source of VMIs; the controllers of VMs, replica sets and pools are [`vireo_operators::Controllers`],
//! [`vireo_operators::placement`] binds instances to the node,
//! [`vireo_handler::provisioner`] makes the disks of claims and [`uploads`] fills them.

pub mod admit;
pub mod bootstrap;
pub mod cdi;
pub mod compose;
pub mod credentials;
mod host_paths;
mod pod_log;
pub mod resource;
pub mod run;
pub mod uploads;
pub mod virt_api;

#[cfg(test)]
mod tests;
