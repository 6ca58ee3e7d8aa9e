//! A KVM monitor: one process, one VM an ordinary distribution boots on.

pub mod block;
pub mod boot;
pub mod bus;
pub mod config;
pub mod display;
#[cfg(fuzzing)]
pub mod fuzzing;
pub mod hotplug;
pub mod irq;
pub mod kvm;
/// Addresses and lines of the x86_64 VM.
pub mod layout;
pub mod log_rate_limit;
pub mod memory;
pub mod pci;
pub mod rfb;
pub mod serial;
pub mod state;
pub mod sys;
pub mod virtio;

mod ahci;
mod arch;
mod bochs;
mod builder;
mod exit;
mod firmware;
mod i6300esb;
mod legacy;
mod pvpanic;
mod scsi;
mod vcpu;
mod vm;

pub use ahci::AhciError;
pub use builder::BuildError;
pub use exit::{Exit, RunError};
pub use firmware::LogScanner as FirmwareLogScanner;
pub use vcpu::StartError;
pub use vm::{Controls, Paused, Running, Vm};
