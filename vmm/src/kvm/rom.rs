use std::sync::Arc;

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use vm_memory::MmapRegion;

use super::vm::{AddressBits, KvmError};

/// Which read-only mapping. The numbers are the last ones that every kernel has; those of RAM and devices begin at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RomSlot {
    /// Firmware's code.
    Code = 500,
}

/// A mapping that the guest reads as memory. What it writes there leaves to the monitor.
pub(crate) struct Rom {
    fd: Arc<VmFd>,
    slot: RomSlot,
    start: u64,
    region: Arc<MmapRegion>,
}

impl Rom {
    /// Shows `region` to the guest from `start`.
    pub(crate) fn map(
        fd: Arc<VmFd>,
        slot: RomSlot,
        start: u64,
        region: Arc<MmapRegion>,
    ) -> Result<Self, KvmError> {
        let rom = Self { fd, slot, start, region };
        rom.set(rom.region.size().get_u64())?;
        Ok(rom)
    }

    /// With a size of zero the slot is taken away.
    fn set(&self, size: u64) -> Result<(), KvmError> {
        let region = kvm_userspace_memory_region {
            slot: self.slot as u32,
            flags: KVM_MEM_READONLY,
            guest_phys_addr: self.start,
            memory_size: size,
            userspace_addr: self.region.as_ptr().addr().get_u64(),
        };
        // SAFETY: `userspace_addr` and `memory_size` are the mapping of `self.region`, which is alive until `drop` has
        // taken the slot away.
        #[expect(unsafe_code, reason = "the kernel is handed a mapping")]
        let outcome = unsafe { self.fd.set_user_memory_region(region) };
        outcome.map_err(KvmError::at("map the firmware"))
    }
}

impl Drop for Rom {
    fn drop(&mut self) {
        if let Err(error) = self.set(0) {
            tracing::error!(%error, "firmware could not be unmapped");
        }
    }
}
