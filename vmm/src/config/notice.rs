use std::fmt;
use std::sync::Arc;

/// What a machine tells its owner while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Firmware found nothing to start.
    NoBootDevice,
}

/// Where notices go. Called on a processor's thread: it must not block.
#[derive(Clone)]
pub struct Notices(Arc<dyn Fn(Notice) + Send + Sync>);

impl Notices {
    /// Calls `hear` with every notice.
    pub fn new(hear: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Self(Arc::new(hear))
    }

    pub(crate) fn tell(&self, notice: Notice) {
        (self.0)(notice);
    }
}

impl Default for Notices {
    /// Nobody listens.
    fn default() -> Self {
        Self::new(|_| {})
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}
