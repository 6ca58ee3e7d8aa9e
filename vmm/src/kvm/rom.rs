use std::io;
use std::sync::Arc;

use kvm_bindings::{KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;
use vm_memory::MmapRegion;

use super::vm::{AddressBits, KvmError};
use crate::firmware::Window;

/// Which read-only mapping. The numbers are the last ones that every kernel has; those of RAM and of devices begin
/// at zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum RomSlot {
    /// Firmware's code.
    Code = 500,
    /// Firmware's variables.
    Variables = 501,
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
        rom.show().map_err(KvmError::at("map the firmware"))?;
        Ok(rom)
    }

    /// With a size of zero the slot is taken away.
    fn set(&self, size: u64) -> io::Result<()> {
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
        outcome.map_err(io::Error::from)
    }
}

impl Window for Rom {
    fn show(&self) -> io::Result<()> {
        self.set(self.region.size().get_u64())
    }

    fn hide(&self) -> io::Result<()> {
        self.set(0)
    }
}

impl Drop for Rom {
    fn drop(&mut self) {
        // A slot that is not there can be taken away, too.
        if let Err(error) = self.set(0)
            && error.raw_os_error() != Some(libc::EINVAL)
        {
            tracing::error!(%error, "firmware could not be unmapped");
        }
    }
}
