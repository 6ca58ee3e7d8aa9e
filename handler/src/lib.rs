//! The node agent as a library: `virt-handler` is its command, and `vireo` runs it in its own process.
//!
//! What is wanted comes in through [`manifests`]; [`reconcile`] gives every VMI a task that decides and acts; [`network`],
//! [`storage`] and [`launcher`] are what it acts with, and [`jobs`] limits how long that takes; [`http`] and [`report`]
//! show what is there. [`state`] says where it is kept. The handler never reads a byte that a guest wrote, except to pass
//! console bytes on.

pub mod cluster;
pub mod command;
mod console_log;
pub mod heartbeat;
pub mod http;
mod inotify;
pub mod jobs;
pub mod launcher;
pub mod manifests;
pub mod metrics;
pub mod network;
pub mod node;
pub mod provisioner;
pub mod reconcile;
pub mod report;
pub mod resolve;
pub mod settings;
pub mod state;
pub mod storage;
