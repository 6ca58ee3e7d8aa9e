use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;

use vmm_sys_util::signal::{Killable, SIGRTMIN, register_signal_handler};

use super::Vcpu;
use super::gate::Gate;
use crate::config::{ThreadHook, ThreadKind};
use crate::exit::{Exit, Outcome};

/// A vCPU's thread needs little: its deepest call is a device's register write.
const STACK: usize = 256 << 10;

/// A vCPU's thread could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the thread of vCPU {cpu}")]
pub struct StartError {
    cpu: usize,
    #[source]
    source: io::Error,
}

/// The threads the vCPUs run on. Dropping it stops and joins them.
pub(crate) struct VcpuPool {
    control: Arc<VcpuControl>,
    outcome: Arc<Outcome>,
}

/// Pauses and resumes the same threads. Without effect once they were joined.
pub(crate) struct VcpuControl {
    /// Empty once they are being joined: none of them is touched after that.
    threads: Mutex<Vec<Thread>>,
    gate: Arc<Gate<Vcpu>>,
    outcome: Arc<Outcome>,
}

struct Thread {
    /// Returns its vCPU, so that the memory `exit_flag` points into outlives the thread.
    handle: JoinHandle<Vcpu>,
    exit_flag: ExitFlag,
}

impl Thread {
    /// Has the thread look whether its VM is over or paused.
    fn kick(&self) {
        self.exit_flag.raise();
        // Fails only for a thread that has ended.
        let _ended = self.handle.kill(SIGRTMIN());
    }
}

impl VcpuControl {
    fn threads(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until no vCPU runs, which is as long as a device's register write takes.
    pub(crate) fn pause(&self) {
        self.gate.close();
        let threads = self.threads();
        threads.iter().for_each(Thread::kick);
        let all = threads.len();
        drop(threads);
        self.gate.gather(all);
    }

    /// Calls `visit` for each vCPU, which are all paused, on its own thread; what it answered, in the vCPUs' order. `None`
    /// if one is not paused, or the VM is over.
    pub(crate) fn visit<T: Send + 'static>(
        &self,
        visit: impl Fn(&Vcpu) -> T + Send + Sync + 'static,
    ) -> Option<Vec<T>> {
        let all = self.threads().len();
        let answers = Arc::new(Mutex::new(Vec::with_capacity(all)));
        let theirs = answers.clone();
        let done = self.gate.visit(
            all,
            &self.outcome,
            Arc::new(move |vcpu| {
                let answer = (vcpu.number(), visit(vcpu));
                theirs.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
            }),
        );
        let mut answers = std::mem::take(&mut *answers.lock().unwrap_or_else(PoisonError::into_inner));
        answers.sort_by_key(|(number, _)| *number);
        (done && all > 0).then(|| answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Resumes the vCPUs.
    pub(crate) fn resume(&self) {
        self.gate.open();
    }
}

impl VcpuPool {
    /// Starts them all. Those of a paused VM wait before their first instruction.
    pub(crate) fn start(
        vcpus: Vec<Vcpu>,
        outcome: Arc<Outcome>,
        threads: &ThreadHook,
        paused: bool,
    ) -> Result<Self, StartError> {
        static HANDLER: Once = Once::new();
        let mut handler = Ok(());
        HANDLER.call_once(|| handler = register_signal_handler(SIGRTMIN(), interrupted));
        handler.map_err(|errno| StartError { cpu: 0, source: errno.into() })?;

        let control =
            VcpuControl { threads: Mutex::default(), gate: Arc::default(), outcome: outcome.clone() };
        let pool = Self { control: Arc::new(control), outcome };
        let gate = &pool.control.gate;
        if paused {
            gate.close();
        }
        for (cpu, mut vcpu) in vcpus.into_iter().enumerate() {
            let exit_flag = ExitFlag::of(&mut vcpu);
            let gate = gate.clone();
            let threads = threads.clone();
            let handle = std::thread::Builder::new()
                .name(format!("vcpu{cpu}"))
                .stack_size(STACK)
                .spawn(move || {
                    threads.started(ThreadKind::Vcpu);
                    vcpu.run(&gate);
                    vcpu
                })
                .map_err(|source| StartError { cpu, source })?;
            pool.control.threads().push(Thread { handle, exit_flag });
        }
        Ok(pool)
    }

    /// For those who pause them.
    pub(crate) fn control(&self) -> &Arc<VcpuControl> {
        &self.control
    }
}

impl Drop for VcpuPool {
    fn drop(&mut self) {
        // Ends those that run; of no effect if the VM ended by itself.
        self.outcome.report(Exit::Killed);
        let threads = std::mem::take(&mut *self.control.threads());
        self.control.gate.open();
        threads.iter().for_each(Thread::kick);
        for thread in threads {
            if thread.handle.join().is_err() {
                tracing::error!("a vCPU's thread panicked");
            }
        }
    }
}

/// Interrupting `KVM_RUN` is all the signal is for.
extern "C" fn interrupted(_signal: libc::c_int, _info: *mut libc::siginfo_t, _context: *mut libc::c_void) {}

/// `immediate_exit` of a vCPU's shared page: while it is set, `KVM_RUN` returns at once. It closes the gap
/// between looking whether the VM is over or paused and entering the guest, in which a signal would be lost.
struct ExitFlag(*mut u8);

impl ExitFlag {
    fn of(vcpu: &mut Vcpu) -> Self {
        Self(&raw mut vcpu.fd_mut().get_kvm_run().immediate_exit)
    }

    fn raise(&self) {
        // SAFETY: the byte is in the shared page of a `Vcpu`, which its thread owns and hands back when it is
        // joined; `VcpuPool` joins after raising, and no other thread has the flag of a thread that is being joined.
        // The kernel, this and `lower` are the only ones who touch the byte, all of them as a single byte.
        #[expect(unsafe_code, reason = "the byte is shared with the kernel and the thread in KVM_RUN")]
        let flag = unsafe { AtomicU8::from_ptr(self.0) };
        flag.store(1, Ordering::Release);
    }
}

/// Raises the exit flag of a vCPU, by its own thread: it enters the guest no more until the flag is lowered.
pub(super) fn raise(vcpu: &mut Vcpu) {
    ExitFlag::of(vcpu).raise();
}

/// Takes the exit flag of a vCPU down, by its own thread, which then looks again at what it was raised for.
pub(super) fn lower(vcpu: &mut Vcpu) {
    let byte = &raw mut vcpu.fd_mut().get_kvm_run().immediate_exit;
    // SAFETY: the shared page lives as long as `vcpu`; others touch the byte as in `raise`.
    #[expect(unsafe_code, reason = "the byte is shared with the kernel and with those who raise it")]
    let flag = unsafe { AtomicU8::from_ptr(byte) };
    // Nothing that is looked at after this may be seen as before: hence no plain store.
    flag.swap(0, Ordering::SeqCst);
}

// SAFETY: the pointer is only used for the atomic store in `raise`, which any thread may do.
#[expect(unsafe_code, reason = "a raw pointer is not Send by itself")]
unsafe impl Send for ExitFlag {}
