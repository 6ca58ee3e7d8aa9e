//! KVM: whether this host has a usable one, and the VM's virtual hardware on it.

mod doorbell;
mod irq;
mod probe;
mod rom;
mod slot;
pub(crate) mod state;
mod vm;

pub use probe::{KvmUnusable, probe};

pub(crate) use doorbell::KvmDoorbells;
pub(crate) use irq::{KvmLine, KvmPins, KvmRouter};
pub(crate) use probe::open;
pub(crate) use rom::{Rom, RomSlot};
pub(crate) use slot::KvmSlots;
pub(crate) use vm::{KvmError, KvmVm};
