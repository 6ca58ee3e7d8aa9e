//! The x86_64 machine: what processors start with and what the guest is told about the hardware.

pub(crate) mod acpi;
pub(crate) mod cpuid;
pub(crate) mod msr;
pub(crate) mod regs;
pub(crate) mod smbios;
pub(crate) mod topology;
