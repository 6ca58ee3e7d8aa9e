//! Launchers: their processes, the connection to them, and their shutdown with the node.

pub mod cgroup;
pub(crate) mod cpus;
mod descendants;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod files;
pub mod link;
pub(crate) mod numa;
pub(crate) mod passt;
pub(crate) mod pod;
pub mod process;
pub(crate) mod realtime;
pub(crate) mod socket;
pub mod users;
