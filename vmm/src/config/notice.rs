use std::fmt;
use std::sync::Arc;

/// A notice of a running VM to its user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Firmware found nothing to start.
    NoBootDevice,
    /// The guest's kernel panicked, and starts its crash kernel.
    CrashKernelLoaded,
}

/// Where notices go. Called on a vCPU's thread: it must not block.
#[derive(Clone)]
pub struct Notices(Arc<dyn Fn(Notice) + Send + Sync>);

impl Notices {
    /// Calls `listener` with every notice.
    pub fn new(listener: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }

    pub(crate) fn notify(&self, notice: Notice) {
        (self.0)(notice);
    }
}

impl Default for Notices {
    /// No listener.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}
