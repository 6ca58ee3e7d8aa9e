//! `virt-launcher`: one process that holds one virtual machine.
//!
//! A launch message arrives over the launcher's socket ([`server`]), is checked ([`launch`]), a hypervisor is
//! chosen for it ([`hypervisor::choose`]), every file it names is opened and locked ([`host`]), and the machine
//! runs until it ends; [`session`] owns all of that and is the only one who does. Beside the machine stand its
//! serial console ([`console`]) and the DHCP server of its network ([`dhcp`]); whoever wants to know whether its guest is
//! well asks it from here ([`health`]).
//!
//! One thread runs everything here; the native hypervisor brings its own threads for the machine.

pub mod agent;
pub mod console;
pub mod dhcp;
pub mod fault;
pub mod firmware;
pub mod health;
pub mod host;
pub mod hypervisor;
pub mod launch;
pub mod logging;
pub mod node;
pub mod plan;
pub mod process;
pub mod screenshot;
pub mod server;
pub mod session;
pub mod socket;
pub mod statistics;
