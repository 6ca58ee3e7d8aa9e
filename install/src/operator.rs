//! virt-operator: reconciles a cluster's installation with its KubeVirt object. What is to be done is decided by pure functions
//! ([`rollout`], [`uninstall`], [`status`]); [`Operator`] does it.

mod controller;
mod customize;
mod definition;
mod discovery;
mod installed;
mod nodes;
mod rollout;
mod status;
mod uninstall;

pub use controller::Operator;
pub use definition::update_definition;
