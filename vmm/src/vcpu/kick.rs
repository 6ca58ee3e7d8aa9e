use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;

use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use super::Vcpu;
use super::gate::Gate;
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
    crew: Arc<Crew>,
    outcome: Arc<Outcome>,
}

/// The same threads for those who pause them. Nothing happens to a crew that was joined.
#[derive(Default)]
pub(crate) struct Crew {
    /// Empty once they are being joined: none of them is touched after that.
    threads: Mutex<Vec<Thread>>,
    gate: Arc<Gate>,
}

struct Thread {
    /// Returns its processor, so that the memory `exit_flag` points into outlives the thread.
    handle: JoinHandle<Vcpu>,
    exit_flag: ExitFlag,
}

impl Thread {
    /// Has the thread look whether its machine is over or paused.
    fn kick(&self) {
        self.exit_flag.raise();
        // Fails only for a thread that has ended.
        let _ended = self.handle.kill(SIGRTMIN());
    }
}

impl Crew {
    fn threads(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until no processor runs, which is as long as a device's register write takes.
    pub(crate) fn pause(&self) {
        self.gate.close();
        let threads = self.threads();
        threads.iter().for_each(Thread::kick);
        let all = threads.len();
        drop(threads);
        self.gate.gather(all);
    }

    /// Lets the processors go on.
    pub(crate) fn resume(&self) {
        self.gate.open();
    }
}

impl Processors {
    /// Starts them all. Those of a paused machine wait before their first instruction.
    pub(crate) fn start(vcpus: Vec<Vcpu>, outcome: Arc<Outcome>, paused: bool) -> Result<Self, StartError> {
        static HANDLER: Once = Once::new();
        let mut handler = Ok(());
        HANDLER.call_once(|| handler = register_signal_handler(SIGRTMIN(), interrupted));
        handler.map_err(|errno| StartError { cpu: 0, source: errno.into() })?;

        let processors = Self { crew: Arc::default(), outcome };
        let gate = &processors.crew.gate;
        if paused {
            gate.close();
        }
        for (cpu, mut vcpu) in vcpus.into_iter().enumerate() {
            let exit_flag = ExitFlag::of(&mut vcpu);
            let gate = gate.clone();
            let handle = std::thread::Builder::new()
                .name(format!("vcpu{cpu}"))
                .stack_size(STACK)
                .spawn(move || {
                    vcpu.run(&gate);
                    vcpu
                })
                .map_err(|source| StartError { cpu, source })?;
            processors.crew.threads().push(Thread { handle, exit_flag });
        }
        Ok(processors)
    }

    /// For those who pause them.
    pub(crate) fn crew(&self) -> &Arc<Crew> {
        &self.crew
    }
}

impl Drop for Processors {
    fn drop(&mut self) {
        // Says so to those that run; of no effect if the machine ended by itself.
        self.outcome.report(Exit::Killed);
        let threads = std::mem::take(&mut *self.crew.threads());
        self.crew.gate.open();
        threads.iter().for_each(Thread::kick);
        for thread in threads {
            if thread.handle.join().is_err() {
                tracing::error!("a processor's thread panicked");
            }
        }
    }
}

/// Interrupting `KVM_RUN` is all the signal is for.
extern "C" fn interrupted(_signal: libc::c_int, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}

/// `immediate_exit` of a processor's shared page: while it is set, `KVM_RUN` returns at once. It closes the gap
/// between looking whether the machine is over or paused and entering the guest, in which a signal would be lost.
struct ExitFlag(*mut u8);

impl ExitFlag {
    fn of(vcpu: &mut Vcpu) -> Self {
        Self(&raw mut vcpu.fd_mut().get_kvm_run().immediate_exit)
    }

    fn raise(&self) {
        // SAFETY: the byte is in the shared page of a `Vcpu`, which its thread owns and hands back when it is
        // joined; `Processors` joins after raising, and nobody else has the flag of a thread that is being joined.
        // The kernel, this and `lower` are the only ones who touch the byte, all of them as a single byte.
        #[expect(unsafe_code, reason = "the byte is shared with the kernel and the thread in KVM_RUN")]
        let flag = unsafe { AtomicU8::from_ptr(self.0) };
        flag.store(1, Ordering::Release);
    }
}

/// Takes the exit flag of a processor down, by its own thread, which then looks again at what it was raised for.
pub(super) fn lower(vcpu: &mut Vcpu) {
    let byte = &raw mut vcpu.fd_mut().get_kvm_run().immediate_exit;
    // SAFETY: the shared page lives as long as `vcpu`; others touch the byte as in `raise`.
    #[expect(unsafe_code, reason = "the byte is shared with the kernel and with those who raise it")]
    let flag = unsafe { AtomicU8::from_ptr(byte) };
    // Nothing that is looked at after this may be seen as it was before: hence no plain store.
    flag.swap(0, Ordering::SeqCst);
}

// SAFETY: the pointer is only used for the atomic store in `raise`, which any thread may do.
#[expect(unsafe_code, reason = "a raw pointer is not Send by itself")]
unsafe impl Send for ExitFlag {}
