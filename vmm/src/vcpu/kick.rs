use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Once};
use std::thread::JoinHandle;

use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use super::Vcpu;
use crate::vm::{Exit, Outcome};

/// A processor's thread needs little: its deepest call is a device's register write.
const STACK: usize = 256 << 10;

/// A processor's thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the thread of processor {cpu}")]
pub struct StartError {
    cpu: usize,
    #[source]
    source: io::Error,
}

/// The threads the processors run on. Dropping it stops and joins them.
pub(crate) struct Processors {
    threads: Vec<Thread>,
    outcome: Arc<Outcome>,
}

struct Thread {
    /// Returns its processor, so that the memory `exit_flag` points into outlives the thread.
    handle: JoinHandle<Vcpu>,
    exit_flag: ExitFlag,
}

impl Processors {
    /// Starts them all.
    pub(crate) fn start(vcpus: Vec<Vcpu>, outcome: Arc<Outcome>) -> Result<Self, StartError> {
        static HANDLER: Once = Once::new();
        let mut handler = Ok(());
        HANDLER.call_once(|| handler = register_signal_handler(SIGRTMIN(), interrupted));
        handler.map_err(|errno| StartError { cpu: 0, source: errno.into() })?;

        let mut processors = Self { threads: Vec::with_capacity(vcpus.len()), outcome };
        for (cpu, mut vcpu) in vcpus.into_iter().enumerate() {
            let exit_flag = ExitFlag::of(&mut vcpu);
            let handle = std::thread::Builder::new()
                .name(format!("vcpu{cpu}"))
                .stack_size(STACK)
                .spawn(move || {
                    vcpu.run();
                    vcpu
                })
                .map_err(|source| StartError { cpu, source })?;
            processors.threads.push(Thread { handle, exit_flag });
        }
        Ok(processors)
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        // Says so to those that run; of no effect if the machine ended by itself.
        self.outcome.report(Exit::Killed);
        for thread in &self.threads {
            thread.exit_flag.raise();
            // Fails only for a thread that has ended.
            let _ended = thread.handle.kill(SIGRTMIN());
        }
        for thread in self.threads.drain(..) {
            if thread.handle.join().is_err() {
                tracing::error!("a processor's thread panicked");
            }
        }
    }
}

/// Interrupting `KVM_RUN` is all the signal is for.
extern "C" fn interrupted(_signal: libc::c_int, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}

/// `immediate_exit` of a processor's shared page: while it is set, `KVM_RUN` returns at once. It closes the gap
/// between looking whether the machine is over and entering the guest, in which a signal would be lost.
struct ExitFlag(*mut u8);

impl ExitFlag {
    fn of(vcpu: &mut Vcpu) -> Self {
        Self(&raw mut vcpu.fd_mut().get_kvm_run().immediate_exit)
    }

    fn raise(&self) {
        // SAFETY: the byte is in the shared page of a `Vcpu`, which its thread owns and hands back when it is
        // joined; `Processors` joins after raising. The kernel and this are the only ones who touch the byte, and
        // both do so as a single byte.
        #[expect(unsafe_code, reason = "the byte is shared with the kernel and the thread in KVM_RUN")]
        let flag = unsafe { AtomicU8::from_ptr(self.0) };
        flag.store(1, Ordering::Release);
    }
}

// SAFETY: the pointer is only used for the atomic store in `raise`, which any thread may do.
#[expect(unsafe_code, reason = "a raw pointer is not Send by itself")]
unsafe impl Send for ExitFlag {}
