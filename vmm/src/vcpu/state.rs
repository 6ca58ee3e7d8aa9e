//! The state of a vCPU that does not run, in the order in which the kernel wants it.

use std::collections::HashSet;

use kvm_bindings::{
    KVM_CAP_XSAVE2, Msrs, kvm_cpuid_entry2, kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
    kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Cap, Kvm, KvmNestedStateBuffer, VcpuFd};
use serde::{Deserialize, Serialize};

use super::Vcpu;
use crate::arch::x86_64::msr::KERNEL_GS_BASE;
use crate::kvm::KvmError;
use crate::state::{Registers, Section, SectionError};

/// Registers of the extended state that `KVM_GET_XSAVE` has room for.
const XSAVE_SIZE: i32 = 4096;
/// Model-specific registers that are read and set at a time.
const MSR_CHUNK: usize = 128;
const IA32_TSC: u32 = 0x10;
const IA32_TSC_DEADLINE: u32 = 0x6e0;

/// Leaves with frequencies: those of the host on which the guest was started stay.
const FREQUENCIES: [u32; 3] = [0x15, 0x16, 0x4000_0010];

/// Whether `KVM_GET_XSAVE` has room for all of the extended state.
fn xsave_fits(kvm: &Kvm) -> bool {
    kvm.check_extension_raw(KVM_CAP_XSAVE2.into()) <= XSAVE_SIZE
}

/// The model-specific registers that the kernel has, in the order in which they are set.
fn msr_indexes(kvm: &Kvm) -> Result<Vec<u32>, KvmError> {
    let list = kvm.get_msr_index_list().map_err(KvmError::at("list model-specific registers"))?;
    let mut indexes = list.as_slice().to_vec();
    // The deadline counts from the TSC.
    indexes.sort_by_key(|index| match *index {
        IA32_TSC => 0,
        IA32_TSC_DEADLINE => 2,
        _ => 1,
    });
    Ok(indexes)
}

/// A vCPU's state.
#[derive(Serialize, Deserialize)]
pub(crate) struct VcpuState {
    cpuid: Vec<kvm_cpuid_entry2>,
    tsc_khz: Option<u32>,
    mp_state: kvm_mp_state,
    regs: kvm_regs,
    sregs: kvm_sregs,
    xsave: kvm_xsave,
    xcrs: kvm_xcrs,
    debug_regs: kvm_debugregs,
    lapic: kvm_lapic_state,
    msrs: Vec<(u32, u64)>,
    events: kvm_vcpu_events,
}

impl Section for Vcpu {
    const TAG: &'static str = "kvm-vcpu";
    const VERSION: u16 = 1;
    type State = VcpuState;

    fn save(&self) -> Result<VcpuState, SectionError> {
        let (fd, kvm) = (self.fd(), self.kvm());
        if !xsave_fits(kvm) {
            return Err(SectionError::Unsavable("its extended state has more than 4096 bytes"));
        }
        if kvm.check_extension(Cap::NestedState) && is_hypervisor(fd)? {
            return Err(SectionError::Unsavable("the guest runs VMs of its own"));
        }
        // First: reading it may process an INIT or SIPI, which changes registers.
        let mp_state = fd.get_mp_state().map_err(KvmError::at("read a vCPU's state"))?;
        Ok(VcpuState {
            cpuid: self.cpuid().to_vec(),
            tsc_khz: fd.get_tsc_khz().ok(),
            mp_state,
            regs: fd.get_regs().map_err(KvmError::at("read a vCPU's general registers"))?,
            sregs: fd.get_sregs().map_err(KvmError::at("read a vCPU's special registers"))?,
            xsave: fd.get_xsave().map_err(KvmError::at("read a vCPU's extended state"))?,
            xcrs: fd.get_xcrs().map_err(KvmError::at("read a vCPU's extended control registers"))?,
            debug_regs: fd.get_debug_regs().map_err(KvmError::at("read a vCPU's debug registers"))?,
            lapic: fd.get_lapic().map_err(KvmError::at("read a local interrupt controller"))?,
            msrs: read_msrs(fd, &msr_indexes(kvm)?)?,
            events: fd.get_vcpu_events().map_err(KvmError::at("read a vCPU's events"))?,
        })
    }

    fn load(&self, state: VcpuState) -> Result<(), SectionError> {
        let fd = self.fd();
        if !xsave_fits(self.kvm()) {
            return Err(SectionError::Invalid("this host's extended state has more than 4096 bytes"));
        }
        let cpuid = adopt(self.cpuid(), &state.cpuid)?;
        super::identify(fd, &cpuid)?;
        if let (Some(wanted), Ok(now)) = (state.tsc_khz, fd.get_tsc_khz())
            && wanted != now
        {
            fd.set_tsc_khz(wanted).map_err(KvmError::at("set the frequency of a vCPU's TSC"))?;
        }
        fd.set_mp_state(state.mp_state).map_err(KvmError::at("set a vCPU's state"))?;
        fd.set_regs(&state.regs).map_err(KvmError::at("set a vCPU's general registers"))?;
        fd.set_sregs(&state.sregs).map_err(KvmError::at("set a vCPU's special registers"))?;
        #[expect(
            unsafe_code,
            reason = "the kernel may read more than the structure has where that was enabled"
        )]
        // SAFETY: the structure has the 4096 bytes that the kernel reads where no larger state was enabled, which
        // takes a request for it (ARCH_REQ_XCOMP_GUEST_PERM) that this process does not make.
        let set = unsafe { fd.set_xsave(&state.xsave) };
        set.map_err(KvmError::at("set a vCPU's extended state"))?;
        fd.set_xcrs(&state.xcrs).map_err(KvmError::at("set a vCPU's extended control registers"))?;
        fd.set_debug_regs(&state.debug_regs).map_err(KvmError::at("set a vCPU's debug registers"))?;
        fd.set_lapic(&state.lapic).map_err(KvmError::at("set a local interrupt controller"))?;
        write_msrs(fd, &state.msrs)?;
        fd.set_vcpu_events(&state.events).map_err(KvmError::at("set a vCPU's events"))?;
        // Informs a guest with KVM's clock that it was stopped. There is no way for other clocks.
        let _unsupported = fd.kvmclock_ctrl();
        Ok(())
    }
}

impl Vcpu {
    /// What a memory dump has of it.
    pub(crate) fn registers(&self) -> Result<Registers, SectionError> {
        let fd = self.fd();
        let bases = read_msrs(fd, &[KERNEL_GS_BASE])?;
        let (_, kernel_gs_base) =
            *bases.first().ok_or(SectionError::Unsavable("KVM does not read the base of GS"))?;
        Ok(Registers {
            regs: fd.get_regs().map_err(KvmError::at("read a vCPU's general registers"))?,
            sregs: fd.get_sregs().map_err(KvmError::at("read a vCPU's special registers"))?,
            kernel_gs_base,
        })
    }
}

/// The leaves of the saved vCPU, if this host gives a vCPU the same.
fn adopt(
    ours: &[kvm_cpuid_entry2],
    saved: &[kvm_cpuid_entry2],
) -> Result<Vec<kvm_cpuid_entry2>, SectionError> {
    let same = |one: &kvm_cpuid_entry2, other: &kvm_cpuid_entry2| {
        let id = |leaf: &kvm_cpuid_entry2| (leaf.function, leaf.index, leaf.flags);
        let values = |leaf: &kvm_cpuid_entry2| [leaf.eax, leaf.ebx, leaf.ecx, leaf.edx];
        id(one) == id(other) && (FREQUENCIES.contains(&one.function) || values(one) == values(other))
    };
    if ours.len() != saved.len() || !ours.iter().zip(saved).all(|(one, other)| same(one, other)) {
        return Err(SectionError::Invalid("the saved vCPU has other features than this host gives a vCPU"));
    }
    Ok(saved.to_vec())
}

/// Whether the vCPU is between a guest's own VMs, or in one.
fn is_hypervisor(fd: &VcpuFd) -> Result<bool, KvmError> {
    let mut buffer = Box::new(KvmNestedStateBuffer::empty());
    let length = fd.nested_state(&mut buffer).map_err(KvmError::at("read a vCPU's nested state"))?;
    Ok(length.is_some())
}

/// Those that can be read. The kernel stops at the first that cannot.
fn read_msrs(fd: &VcpuFd, indexes: &[u32]) -> Result<Vec<(u32, u64)>, SectionError> {
    let mut values = Vec::with_capacity(indexes.len());
    let mut rest = indexes;
    while !rest.is_empty() {
        let entry = |&index: &u32| kvm_msr_entry { index, ..Default::default() };
        let entries: Vec<_> = rest.iter().take(MSR_CHUNK).map(entry).collect();
        let mut msrs = list(&entries)?;
        let read = fd.get_msrs(&mut msrs).map_err(KvmError::at("read model-specific registers"))?;
        values.extend(msrs.as_slice().iter().take(read).map(|msr| (msr.index, msr.data)));
        let skipped = usize::from(read < entries.len());
        rest = rest.get(read + skipped..).unwrap_or_default();
    }
    Ok(values)
}

/// Sets them in order. One that cannot be set has to have its value already.
fn write_msrs(fd: &VcpuFd, values: &[(u32, u64)]) -> Result<(), SectionError> {
    let mut seen = HashSet::new();
    if !values.iter().all(|(index, _)| seen.insert(*index)) {
        return Err(SectionError::Invalid("a model-specific register is there twice"));
    }
    let mut rest = values;
    while !rest.is_empty() {
        let entry = |&(index, data): &(u32, u64)| kvm_msr_entry { index, data, ..Default::default() };
        let entries: Vec<_> = rest.iter().take(MSR_CHUNK).map(entry).collect();
        let written = fd.set_msrs(&list(&entries)?).unwrap_or(0);
        let mut done = written;
        if let Some(rejected) = entries.get(written) {
            if read_msrs(fd, &[rejected.index])? != [(rejected.index, rejected.data)] {
                tracing::error!(index = rejected.index, data = rejected.data, "a register cannot be set");
                return Err(SectionError::Invalid("this host rejects a model-specific register"));
            }
            done += 1;
        }
        rest = rest.get(done..).unwrap_or_default();
    }
    Ok(())
}

fn list(entries: &[kvm_msr_entry]) -> Result<Msrs, SectionError> {
    Msrs::from_entries(entries).map_err(|_| SectionError::Invalid("there are too many registers"))
}
