//! `virt-launcher`: one process that holds one VM.
//!
//! A launch message arrives over the launcher's socket ([`server`]), is checked ([`launch`]), a hypervisor is
//! chosen for it ([`hypervisor::choose`]), every file it names is taken and locked ([`host`]), and the VM
//! runs until it ends; [`session`] owns all of that. Beside the VM run its serial console ([`console`]), the DHCP
//! server of its network ([`dhcp`]), its IPv6 router ([`ipv6`]) and the probes of its guest ([`health`]).
//!
//! A launcher that the node agent starts as a process confines itself first ([`confine`]), and one in a Pod restricts itself
//! ([`landlock`]). In a Pod, the same program serves other containers: [`image`] and [`console_log`].
//!
//! One thread runs everything here; the native hypervisor brings its own threads for the VM.

pub mod agent;
mod blocks;
pub mod confine;
pub mod console;
pub mod console_log;
pub mod dhcp;
pub mod fault;
pub mod files;
pub mod firmware;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod health;
pub mod host;
pub mod hypervisor;
pub mod image;
pub mod ipv6;
pub mod landlock;
pub mod launch;
mod lines;
pub mod logging;
mod metrics_port;
pub mod node;
#[cfg(test)]
mod page;
pub mod pinning;
pub mod plan;
pub mod process;
mod program;
pub mod screenshot;
pub mod seccomp;
pub mod server;
pub mod session;
pub mod socket;
pub mod statistics;
