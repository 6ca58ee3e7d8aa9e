use std::sync::Arc;

use kvm_bindings::kvm_cpuid_entry2;
use kvm_bindings::{
    KVM_SYSTEM_EVENT_CRASH, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN, kvm_run,
    kvm_run__bindgen_ty_1__bindgen_ty_4 as IoExit,
};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};

use super::gate::Gate;
use super::pool;
use crate::bus::Bus;
use crate::exit::{Exit, Outcome, RunError};
use crate::kvm::KvmError;

/// One vCPU.
pub(crate) struct Vcpu {
    fd: VcpuFd,
    kvm: Arc<Kvm>,
    cpuid: Vec<kvm_cpuid_entry2>,
    cpu: u8,
    mmio: Arc<Bus>,
    pio: Arc<Bus>,
    outcome: Arc<Outcome>,
}

/// What an exit leads to.
enum Next {
    Continue,
    End(Exit),
    Fail(Failure),
}

enum Failure {
    Internal,
    Entry(u64),
    Memory(u64),
    Unexpected(String),
}

impl Vcpu {
    /// vCPU number `cpu` with the leaves `cpuid`, whose accesses go to the two buses and whose end is reported to
    /// `outcome`.
    pub(crate) fn new(
        (fd, kvm): (VcpuFd, Arc<Kvm>),
        (cpu, cpuid): (u8, Vec<kvm_cpuid_entry2>),
        (mmio, pio): (&Arc<Bus>, &Arc<Bus>),
        outcome: Arc<Outcome>,
    ) -> Result<Self, KvmError> {
        identify(&fd, &cpuid)?;
        Ok(Self { fd, kvm, cpuid, cpu, mmio: mmio.clone(), pio: pio.clone(), outcome })
    }

    /// Its number, from 0.
    pub(crate) fn number(&self) -> u8 {
        self.cpu
    }

    pub(super) fn kvm(&self) -> &Kvm {
        &self.kvm
    }

    /// What it is to the guest.
    pub(super) fn cpuid(&self) -> &[kvm_cpuid_entry2] {
        &self.cpuid
    }

    pub(crate) fn fd(&self) -> &VcpuFd {
        &self.fd
    }

    pub(crate) fn fd_mut(&mut self) -> &mut VcpuFd {
        &mut self.fd
    }

    /// Runs the guest until the VM is over, but for the times at which the gate is closed.
    pub(super) fn run(&mut self, gate: &Gate<Self>) {
        while !self.outcome.is_over() {
            if gate.is_closed() {
                self.complete_exit();
                // Informs a guest with KVM's clock of the pause. There is no way for other clocks.
                let _unsupported = self.fd.kvmclock_ctrl();
                gate.wait(self, &self.outcome);
                continue;
            }
            self.step();
        }
    }

    /// Enters the guest once. Whether it was interrupted.
    fn step(&mut self) -> bool {
        let exit = match self.enter() {
            Ok(Next::Continue) => return false,
            Ok(Next::End(exit)) => exit,
            Ok(Next::Fail(failure)) => Exit::Failed(self.explain(failure)),
            Err(error) if matches!(error.errno(), libc::EINTR | libc::EAGAIN) => {
                pool::lower(self);
                return error.errno() == libc::EINTR;
            }
            Err(error) => Exit::Failed(RunError::Kvm { cpu: self.cpu, source: error.into() }),
        };
        self.outcome.report(exit);
        false
    }

    /// Has the kernel complete the instruction whose access was answered last: until then, registers and memory are as
    /// before it. No other instruction is executed.
    fn complete_exit(&mut self) {
        while !self.outcome.is_over() {
            pool::raise(self);
            if self.step() {
                return;
            }
        }
    }

    /// Enters the guest and answers the exit it comes back with.
    fn enter(&mut self) -> Result<Next, kvm_ioctls::Error> {
        let shared: *const kvm_run = self.fd.get_kvm_run();
        let next = match self.fd.run()? {
            VcpuExit::IoOut(port, data) => {
                for element in data.chunks(element_width(shared)) {
                    self.pio.write(port.into(), element);
                }
                Next::Continue
            }
            VcpuExit::IoIn(port, data) => {
                for element in data.chunks_mut(element_width(shared)) {
                    self.pio.read(port.into(), element);
                }
                Next::Continue
            }
            VcpuExit::MmioRead(address, data) => {
                self.mmio.read(address, data);
                Next::Continue
            }
            VcpuExit::MmioWrite(address, data) => {
                self.mmio.write(address, data);
                Next::Continue
            }
            VcpuExit::Intr | VcpuExit::Hlt | VcpuExit::IrqWindowOpen => Next::Continue,
            VcpuExit::Shutdown => Next::End(Exit::TripleFault),
            VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_SHUTDOWN, _) => Next::End(Exit::PowerOff),
            VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_RESET | KVM_SYSTEM_EVENT_CRASH, _) => {
                Next::End(Exit::Reset)
            }
            VcpuExit::InternalError => Next::Fail(Failure::Internal),
            VcpuExit::FailEntry(reason, _) => Next::Fail(Failure::Entry(reason)),
            VcpuExit::MemoryFault { gpa, .. } => Next::Fail(Failure::Memory(gpa)),
            other => Next::Fail(Failure::Unexpected(format!("{other:?}"))),
        };
        Ok(next)
    }

    fn explain(&mut self, failure: Failure) -> RunError {
        let cpu = self.cpu;
        let rip = self.fd.get_regs().map_or(0, |regs| regs.rip);
        match failure {
            Failure::Internal => {
                let (suberror, data) = internal_error(self.fd.get_kvm_run());
                RunError::Internal { cpu, rip, suberror, data }
            }
            Failure::Entry(reason) => RunError::Entry { cpu, rip, reason },
            Failure::Memory(address) => RunError::Memory { cpu, address },
            Failure::Unexpected(reason) => RunError::Unexpected { cpu, rip, reason },
        }
    }
}

/// The width of one element of a port access: a string instruction brings many in one exit.
fn element_width(shared: *const kvm_run) -> usize {
    // SAFETY: `shared` is the page of the vCPU whose `run` has just returned a port access, mapped for as long
    // as that vCPU lives.
    #[expect(unsafe_code, reason = "the page is shared with the kernel")]
    let details = unsafe { &raw const (*shared).__bindgen_anon_1 };
    // SAFETY: as above, and every bit pattern is an `IoExit`.
    #[expect(unsafe_code, reason = "the binding is a C union")]
    let io: IoExit = unsafe { details.cast::<IoExit>().read() };
    usize::from(io.size).max(1)
}

/// `KVM_INTERNAL_ERROR_*` and what comes with it.
fn internal_error(shared: &kvm_run) -> (u32, Vec<u64>) {
    // SAFETY: the vCPU has just exited with an internal error, and every bit pattern is one.
    #[expect(unsafe_code, reason = "the binding is a C union")]
    let internal = unsafe { shared.__bindgen_anon_1.internal };
    let count = usize::try_from(internal.ndata).unwrap_or(0);
    (internal.suberror, internal.data.iter().take(count).copied().collect())
}

/// What a vCPU is to the guest.
pub(crate) fn identify(fd: &VcpuFd, leaves: &[kvm_cpuid_entry2]) -> Result<(), KvmError> {
    let leaves = kvm_bindings::CpuId::from_entries(leaves).map_err(|error| {
        KvmError::at("take the vCPU's identity")(std::io::Error::other(format!("{error:?}")))
    })?;
    fd.set_cpuid2(&leaves).map_err(KvmError::at("take the vCPU's identity"))
}
