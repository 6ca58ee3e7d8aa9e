use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kvm_bindings::{KVM_MEM_LOG_DIRTY_PAGES, KVM_MEM_READONLY, kvm_userspace_memory_region};
use kvm_ioctls::VmFd;

use crate::memory::device::{DeviceMemory, MemorySlot, MemorySlots};

const PAGE: usize = 4096;

/// The memory slots of a VM beyond its RAM.
pub(crate) struct KvmSlots {
    vm: Arc<VmFd>,
    /// The kernel has 32 thousand; a number that was given back is not used again.
    next: AtomicU32,
}

impl KvmSlots {
    /// The numbers below `first` are taken.
    pub(crate) fn new(vm: Arc<VmFd>, first: u32) -> Self {
        Self { vm, next: AtomicU32::new(first) }
    }
}

impl MemorySlots for KvmSlots {
    fn claim(&self, memory: Arc<DeviceMemory>) -> io::Result<Arc<dyn MemorySlot>> {
        let slot = self.next.fetch_add(1, Ordering::Relaxed);
        let mapping = Mutex::new(Mapping { address: None, moved: false });
        Ok(Arc::new(KvmSlot { vm: self.vm.clone(), slot, memory, mapping }))
    }
}

struct KvmSlot {
    vm: Arc<VmFd>,
    slot: u32,
    memory: Arc<DeviceMemory>,
    mapping: Mutex<Mapping>,
}

struct Mapping {
    address: Option<u64>,
    /// Since the dirty pages were taken last.
    moved: bool,
}

impl KvmSlot {
    /// Sets the slot in the kernel; a `size` of zero removes it.
    fn set(&self, address: u64, size: usize) -> io::Result<()> {
        let wide = |value: usize| u64::try_from(value).map_err(io::Error::other);
        let region = kvm_userspace_memory_region {
            slot: self.slot,
            flags: if self.memory.is_read_only() { KVM_MEM_READONLY } else { KVM_MEM_LOG_DIRTY_PAGES },
            guest_phys_addr: address,
            memory_size: wide(size)?,
            userspace_addr: wide(self.memory.host_address())?,
        };
        // SAFETY: `userspace_addr` and `memory_size` are the mapping of `self.memory`, which is never moved, and is
        // unmapped only after `drop` took the slot away.
        #[expect(unsafe_code, reason = "the kernel is handed a mapping")]
        let outcome = unsafe { self.vm.set_user_memory_region(region) };
        Ok(outcome?)
    }
}

impl MemorySlot for KvmSlot {
    fn map(&self, address: Option<u64>) -> io::Result<()> {
        let mut mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        if mapping.address == address {
            return Ok(());
        }
        // A slot with a dirty log can be moved in one step, but not without being unmapped in between.
        if let Some(old) = mapping.address {
            self.set(old, 0)?;
            mapping.address = None;
        }
        if let Some(new) = address {
            self.set(new, self.memory.bytes().len())?;
            *mapping = Mapping { address, moved: true };
        }
        Ok(())
    }

    fn take_dirty(&self) -> io::Result<Vec<u64>> {
        let mut mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        let size = self.memory.bytes().len();
        let words = size.div_ceil(PAGE).div_ceil(64);
        if mapping.address.is_none() || self.memory.is_read_only() {
            return Ok(vec![0; words]);
        }
        let mut dirty = self.vm.get_dirty_log(self.slot, size)?;
        if std::mem::take(&mut mapping.moved) {
            dirty = vec![u64::MAX; words];
        }
        Ok(dirty)
    }
}

impl Drop for KvmSlot {
    fn drop(&mut self) {
        if let Err(error) = self.map(None) {
            tracing::error!(%error, slot = self.slot, "a memory slot could not be given back");
            // The kernel still uses the mapping.
            std::mem::forget(self.memory.clone());
        }
    }
}
