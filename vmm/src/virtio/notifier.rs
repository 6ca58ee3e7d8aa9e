use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes a device's worker from other threads: readable from [`Self::ring`] to [`Self::settle`].
#[derive(Debug)]
pub(super) struct Notifier(OwnedFd);

impl Notifier {
    pub(super) fn new() -> io::Result<Self> {
        eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(Self).map_err(Into::into)
    }

    /// Never blocks.
    pub(super) fn ring(&self) {
        match rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {
            // It rings already.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => {}
            Err(error) => tracing::error!(%error, "a device's worker could not be woken"),
        }
    }

    /// What comes from now on rings again.
    pub(super) fn settle(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
