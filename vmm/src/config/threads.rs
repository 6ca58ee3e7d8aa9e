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
/// the hook did to the vCPU's.
#[derive(Clone)]
pub struct ThreadHook(Arc<dyn Fn(ThreadKind) + Send + Sync>);

impl ThreadHook {
    /// Calls `hook` on each thread.
    pub fn new(hook: impl Fn(ThreadKind) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hook))
    }

    pub(crate) fn started(&self, kind: ThreadKind) {
        (self.0)(kind);
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
