//! The node agent as a library: `virt-handler` is its command, and `vireo` runs it in its own process.
//!
//! [`manifests`] provides the desired state; [`reconcile`] runs a reconciler for every VMI; [`network`], [`storage`]
//! and [`launcher`] run its actions, and [`jobs`] limits blocking operations; [`http`] and [`report`] show the VMIs.
//! [`state`] is the state directory. The handler never parses bytes that a guest wrote; it only relays console bytes.

pub mod capabilities;
pub mod cluster;
pub mod command;
mod console_log;
pub mod devices;
mod downward_metrics;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod heartbeat;
pub mod http;
pub mod inotify;
pub mod jobs;
mod ksm;
pub mod launcher;
pub mod live_settings;
pub mod manifests;
pub mod metrics;
pub mod network;
pub mod node;
pub mod node_labeller;
pub mod program;
pub mod provisioner;
pub mod reconcile;
pub mod report;
pub mod resolve;
pub mod settings;
pub mod state;
pub mod stop;
pub mod storage;
