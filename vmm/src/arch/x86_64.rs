//! x86_64: initial vCPU state and the hardware description for the guest.

pub(crate) mod acpi;
pub(crate) mod cpuid;
pub(crate) mod msr;
pub(crate) mod regs;
pub(crate) mod reset_vector;
pub(crate) mod smbios;
pub(crate) mod topology;
