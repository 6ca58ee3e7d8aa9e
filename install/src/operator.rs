//! virt-operator: keeps a cluster's installation as its KubeVirt object says. What is to be done is decided by pure functions
//! ([`rollout`], [`uninstall`], [`status`]); [`Operator`] does it.

mod controller;
mod customize;
mod installed;
mod rollout;
mod status;
mod uninstall;

pub use controller::Operator;
