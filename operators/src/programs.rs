//! The programs of a cluster that are controllers. `vireo` runs as each of them.

pub mod virt_api;
pub mod virt_controller;
