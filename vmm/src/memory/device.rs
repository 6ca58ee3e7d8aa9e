//! Memory of a device that the guest reaches without leaving to the monitor: a framebuffer, an expansion ROM.

use std::io;
use std::sync::Arc;

use vm_memory::mmap::MmapRegionError;
use vm_memory::{Bytes, MmapRegion, VolatileMemory, VolatileSlice};

use crate::bus::BusDevice;

/// Zeroed memory that the monitor and the guest share, populated on first access.
///
/// On the bus it answers as the slot does, for the time in which the slot is on its way from one address to another.
pub struct DeviceMemory {
    mapping: MmapRegion,
    read_only: bool,
}

impl DeviceMemory {
    /// `bytes`, a multiple of 4096. With `read_only` the guest's writes are dropped.
    pub fn new(bytes: usize, read_only: bool) -> Result<Arc<Self>, MmapRegionError> {
        Ok(Arc::new(Self { mapping: MmapRegion::new(bytes)?, read_only }))
    }

    /// All of it. The guest may change it at any time.
    pub fn bytes(&self) -> VolatileSlice<'_> {
        self.mapping.as_volatile_slice()
    }

    /// Whether the guest's writes are dropped.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Where the monitor has it.
    pub(crate) fn host_address(&self) -> usize {
        self.mapping.as_ptr().addr()
    }
}

impl BusDevice for DeviceMemory {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        if self.bytes().read_slice(data, at).is_err() {
            data.fill(0xff);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        if !self.read_only
            && let Err(error) = self.bytes().write_slice(data, at)
        {
            tracing::debug!(%error, "a write beyond a device's memory");
        }
    }
}

/// Puts memory of devices before the guest.
pub trait MemorySlots: Send + Sync {
    /// A slot for `memory`, not mapped. Given back when dropped.
    fn claim(&self, memory: Arc<DeviceMemory>) -> io::Result<Arc<dyn MemorySlot>>;
}

/// The mapping of a [`DeviceMemory`] in the guest's addresses.
pub trait MemorySlot: Send + Sync {
    /// Moves it to `address` (a multiple of 4096), or away.
    fn map(&self, address: Option<u64>) -> io::Result<()>;

    /// The pages written to since the last call, by the guest or, on the way, by anyone: a bit each, in words, lowest
    /// first. All of them after it was mapped, and none while it is unmapped or read-only.
    fn take_dirty(&self) -> io::Result<Vec<u64>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_the_bus_it_is_memory() {
        for read_only in [false, true] {
            let memory = DeviceMemory::new(0x2000, read_only).unwrap();
            memory.bytes().write_slice(&[7; 8], 0x1000).unwrap();
            memory.write(0x1002, &[1, 2]);
            let mut data = [0; 4];
            memory.read(0x1001, &mut data);
            assert_eq!(data, if read_only { [7; 4] } else { [7, 1, 2, 7] });
            memory.write(0x1fff, &[1, 2]);
            memory.read(0x1fff, &mut data);
            assert_eq!(data, [0xff; 4]);
            memory.read(u64::MAX, &mut data);
        }
    }
}
