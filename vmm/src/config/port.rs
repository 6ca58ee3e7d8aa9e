use std::fmt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// A port by which a program of the guest and one of the host exchange bytes.
#[derive(Debug)]
pub struct Port {
    pub(crate) name: String,
    pub(crate) line: UnixStream,
    pub(crate) opened: Opened,
}

/// Called when a program of the guest opens or closes a port. On the device's thread: it must not block, and the
/// guest may call it as often as it likes.
#[derive(Clone)]
pub struct Opened(pub(crate) Arc<dyn Fn(bool) + Send + Sync>);

impl Opened {
    /// Calls `listener` with every change.
    pub fn new(listener: impl Fn(bool) + Send + Sync + 'static) -> Self {
        Self(Arc::new(listener))
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opened")
    }
}

impl Port {
    /// A port that the guest finds by its name, with our end of it.
    pub fn new(name: impl Into<String>, line: UnixStream, opened: Opened) -> Self {
        Self { name: name.into(), line, opened }
    }
}
