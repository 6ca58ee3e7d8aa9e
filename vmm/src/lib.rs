//! A KVM monitor: one process, one machine an ordinary distribution boots on.

pub mod block;
pub mod boot;
pub mod bus;
pub mod config;
pub mod display;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod irq;
pub mod kvm;
/// Addresses and lines of the x86_64 machine.
pub mod layout;
pub mod memory;
pub mod pace;
pub mod pci;
pub mod rfb;
pub mod serial;
pub mod sys;
pub mod virtio;

mod ahci;
mod arch;
mod builder;
mod firmware;
mod legacy;
mod scsi;
mod vcpu;
mod vm;

pub use ahci::AhciError;
pub use builder::BuildError;
pub use firmware::Talk as FirmwareTalk;
pub use vm::{Controls, Exit, Paused, RunError, Running, StartError, Vm};
