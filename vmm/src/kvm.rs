//! KVM: whether this host has a usable one, and the machine's virtual hardware on it.

mod doorbell;
mod irq;
mod probe;
mod vm;

pub use probe::{KvmUnusable, probe};

pub(crate) use doorbell::KvmDoorbells;
pub(crate) use irq::{KvmLine, KvmRouter};
pub(crate) use probe::open;
pub(crate) use vm::{KvmError, KvmMachine};
