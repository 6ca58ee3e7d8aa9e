//! A KVM monitor: one process, one machine an ordinary distribution boots on.

pub mod bus;
pub mod config;
pub mod irq;

/// Addresses and lines of the x86_64 machine.
pub mod layout;

pub mod pci;
