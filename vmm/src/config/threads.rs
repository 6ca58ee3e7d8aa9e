use std::fmt;
use std::sync::Arc;

/// What a thread of a VM is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThreadKind {
    /// Runs one vCPU.
    Vcpu,
    /// Serves the queues of one device, or one drive. The threads of its disk images are its children.
    Device,
}

/// Called by each thread that works on what the guest writes, before it does.
///
/// The driver of a device activates it on a vCPU's thread, which starts the threads of the device: those inherit what
/// the hook did to the vCPU's, as seccomp filters and the CPUs that it may run on. [`Self::with_starting`] is for what they are
/// not to inherit.
#[derive(Clone)]
pub struct ThreadHook {
    started: Arc<dyn Fn(ThreadKind) + Send + Sync>,
    starting: Arc<dyn Fn(Starting) + Send + Sync>,
}

/// Where a thread is that starts one for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Starting {
    /// Before it does.
    Before,
    /// After it did.
    After,
}

impl ThreadHook {
    /// Calls `hook` on each thread.
    pub fn new(hook: impl Fn(ThreadKind) + Send + Sync + 'static) -> Self {
        Self { started: Arc::new(hook), starting: Arc::new(|_| {}) }
    }

    /// Calls `hook` also on threads that start those of devices, before and after. Default: does nothing.
    #[must_use]
    pub fn with_starting(mut self, hook: impl Fn(Starting) + Send + Sync + 'static) -> Self {
        self.starting = Arc::new(hook);
        self
    }

    pub(crate) fn started(&self, kind: ThreadKind) {
        (self.started)(kind);
    }

    /// Starts the thread of a device where a vCPU may do that.
    pub(crate) fn start<T>(&self, start: impl FnOnce() -> T) -> T {
        (self.starting)(Starting::Before);
        let started = start();
        (self.starting)(Starting::After);
        started
    }
}

impl Default for ThreadHook {
    /// Does nothing.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for ThreadHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThreadHook")
    }
}
