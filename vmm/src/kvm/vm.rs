use std::io;
use std::sync::Arc;

use kvm_bindings::{
    KVM_CAP_PMU_CAPABILITY, KVM_PIT_SPEAKER_DUMMY, KVM_PMU_CAP_DISABLE, kvm_enable_cap, kvm_pit_config,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{Kvm, VmFd};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use crate::layout;
use crate::memory::GuestMemory;

/// A step of making a VM on KVM that the kernel rejected.
#[derive(Debug, thiserror::Error)]
#[error("KVM rejected to {step}")]
pub struct KvmError {
    step: &'static str,
    #[source]
    source: io::Error,
}

impl KvmError {
    /// For `map_err`: names the step.
    pub(crate) fn at<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self { step, source: source.into() }
    }
}

/// A VM in the kernel: memory, interrupt controllers and timer, no vCPUs yet.
///
/// Holds the guest's memory, because the kernel uses the mapping until the VM is closed.
pub(crate) struct KvmVm {
    pub(crate) fd: Arc<VmFd>,
    pub(crate) memory: GuestMemory,
}

impl KvmVm {
    /// Makes the VM.
    pub(crate) fn new(kvm: &Kvm, memory: GuestMemory) -> Result<Self, KvmError> {
        let fd = create_vm(kvm).map_err(KvmError::at("create a VM"))?;
        // Both addresses have to be known before the first vCPU exists, and only Intel CPUs use them.
        fd.set_identity_map_address(layout::IDENTITY_MAP_START)
            .map_err(KvmError::at("place the identity map"))?;
        let tss = usize::try_from(layout::TSS_START)
            .map_err(|_| KvmError { step: "place the TSS", source: io::ErrorKind::InvalidInput.into() })?;
        fd.set_tss_address(tss).map_err(KvmError::at("place the TSS"))?;
        fd.create_irq_chip().map_err(KvmError::at("create the interrupt controllers"))?;
        let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
        fd.create_pit2(pit).map_err(KvmError::at("create the timer"))?;
        let vm = Self { fd: Arc::new(fd), memory };
        vm.map_memory()?;
        Ok(vm)
    }

    /// Leaves out performance counters, where KVM has any. Before the first vCPU exists.
    pub(crate) fn disable_pmu(&self, kvm: &Kvm) -> Result<(), KvmError> {
        let modes = kvm.check_extension_raw(KVM_CAP_PMU_CAPABILITY.into());
        if modes.cast_unsigned() & KVM_PMU_CAP_DISABLE == 0 {
            return Ok(());
        }
        let mut disable = kvm_enable_cap { cap: KVM_CAP_PMU_CAPABILITY, ..Default::default() };
        disable.args[0] = KVM_PMU_CAP_DISABLE.into();
        self.fd.enable_cap(&disable).map_err(KvmError::at("leave out performance counters"))
    }

    fn map_memory(&self) -> Result<(), KvmError> {
        for (slot, region) in (0..).zip(self.memory.iter()) {
            let host = region
                .get_host_address(vm_memory::MemoryRegionAddress(0))
                .map_err(|error| KvmError { step: "find guest memory", source: io::Error::other(error) })?;
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: host.addr().get_u64(),
            };
            // SAFETY: `userspace_addr` and `memory_size` are one mapping of `self.memory`, which lives as long as
            // this VM and is never unmapped or moved while `fd` is open.
            #[expect(unsafe_code, reason = "the kernel is handed a mapping")]
            let outcome = unsafe { self.fd.set_user_memory_region(region) };
            outcome.map_err(KvmError::at("map guest memory"))?;
        }
        Ok(())
    }
}

/// A pending signal interrupts the creation, which then has to be repeated.
fn create_vm(kvm: &Kvm) -> Result<VmFd, kvm_ioctls::Error> {
    loop {
        match kvm.create_vm() {
            Err(error) if error.errno() == libc::EINTR => {}
            outcome => return outcome,
        }
    }
}

/// An address as the kernel's structures want it.
pub(super) trait AddressBits {
    fn get_u64(self) -> u64;
}

impl AddressBits for usize {
    fn get_u64(self) -> u64 {
        u64::try_from(self).unwrap_or(u64::MAX)
    }
}
