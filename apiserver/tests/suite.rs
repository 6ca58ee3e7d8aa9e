//! kube-rs on the in-process client of a server that has Kubernetes' resources alone.

#![expect(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by its panic")]

#[path = "suite/access.rs"]
mod access;
#[path = "suite/custom.rs"]
mod custom;
#[path = "suite/faults.rs"]
mod faults;
#[path = "suite/objects.rs"]
mod objects;
#[path = "suite/pods.rs"]
mod pods;
#[path = "suite/test_server.rs"]
mod test_server;
#[path = "suite/watches.rs"]
mod watches;
