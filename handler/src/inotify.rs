//! inotify for an asynchronous task.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches directories.
#[derive(Debug)]
pub struct Inotify {
    fd: AsyncFd<OwnedFd>,
}

/// Something happened in a watched directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The event flags.
    pub flags: ReadFlags,
    /// The directory entry; empty for the directory itself.
    pub name: String,
}

impl Inotify {
    /// Watches nothing yet.
    ///
    /// # Errors
    /// When the kernel's limit of instances is reached.
    pub fn new() -> io::Result<Self> {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        // SAFETY: the descriptor registered is the one owned by the `OwnedFd` moved in; it is neither replaced nor
        // closed before the `AsyncFd` is dropped.
        #[expect(unsafe_code, reason = "tokio's safe constructor is deprecated")]
        let fd =
            unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)?;
        Ok(Self { fd })
    }

    /// Watches a directory.
    ///
    /// # Errors
    /// When it does not exist, is not a directory, or the kernel's limit of watches is reached.
    pub fn watch(&self, directory: &Path, flags: WatchFlags) -> io::Result<()> {
        inotify::add_watch(self.fd.get_ref(), directory, flags | WatchFlags::ONLYDIR)?;
        Ok(())
    }

    /// The next events, at least one.
    ///
    /// # Errors
    /// When the kernel's queue cannot be read.
    pub async fn events(&self) -> io::Result<Vec<Event>> {
        loop {
            let mut ready = self.fd.readable().await?;
            let events = self.drain()?;
            ready.clear_ready();
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    fn drain(&self) -> io::Result<Vec<Event>> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut reader = inotify::Reader::new(self.fd.get_ref(), &mut buffer);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_string_lossy().into_owned());
                    events.push(Event { flags: event.events(), name: name.unwrap_or_default() });
                }
                Err(Errno::WOULDBLOCK) => return Ok(events),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
