use std::io;

/// Why a vCPU failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// `KVM_RUN` failed.
    #[error("vCPU {cpu} cannot enter the guest")]
    Kvm {
        /// Its number.
        cpu: u8,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// KVM met something it cannot do for the guest, such as an instruction it cannot emulate.
    #[error("KVM gave up on vCPU {cpu} at {rip:#x} (internal error {suberror}, data {data:x?})")]
    Internal {
        /// Its number.
        cpu: u8,
        /// Instruction pointer; zero if it cannot be had.
        rip: u64,
        /// `KVM_INTERNAL_ERROR_*`.
        suberror: u32,
        /// What KVM adds.
        data: Vec<u64>,
    },
    /// The hardware rejected the vCPU's state.
    #[error("the hardware failed to enter the guest on vCPU {cpu} at {rip:#x} (reason {reason:#x})")]
    Entry {
        /// Its number.
        cpu: u8,
        /// Instruction pointer; zero if it cannot be had.
        rip: u64,
        /// The hardware's own code.
        reason: u64,
    },
    /// A page of guest memory could not be had, for example because the host has no memory left.
    #[error("guest memory at {address:#x} cannot be accessed by vCPU {cpu}")]
    Memory {
        /// Its number.
        cpu: u8,
        /// Guest-physical.
        address: u64,
    },
    /// An exit that a VM like this never makes.
    #[error("vCPU {cpu} left the guest at {rip:#x} for a reason that is not expected: {reason}")]
    Unexpected {
        /// Its number.
        cpu: u8,
        /// Instruction pointer; zero if it cannot be had.
        rip: u64,
        /// KVM's name for it.
        reason: String,
    },
}
