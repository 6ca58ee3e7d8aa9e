use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::register::Restriction;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode, squeue};

use super::{CAPACITY, Completion, Engine, FileOperation};
use crate::memory::GuestMemory;
use crate::sys::vectored::Vectors;

/// io_uring, for operations of disks alone.
pub(super) struct Uring {
    ring: IoUring,
    /// What it operates on. Not registered with the ring: the kernel lets go of registered files some time after a
    /// process has ended, and until then the locks of a disk would be held that another process is to use.
    pub(super) files: Vec<File>,
    /// The buffers of each operation, by its tag: the kernel may read them until it is over.
    vectors: Vec<Vectors>,
    /// Keeps mapped what the buffers point at.
    memory: GuestMemory,
    /// Operations that are not over, prepared ones included.
    running: usize,
}

impl Uring {
    /// Without files.
    pub(super) fn new(memory: GuestMemory) -> io::Result<Self> {
        let entries = u32::try_from(CAPACITY).map_err(io::Error::other)?;
        let ring = IoUring::builder().dontfork().setup_r_disabled().build(entries)?;
        let submitter = ring.submitter();
        // Also a launcher that is taken over can do nothing else with it.
        submitter.register_restrictions(&mut [
            Restriction::sqe_op(opcode::Readv::CODE),
            Restriction::sqe_op(opcode::Writev::CODE),
            Restriction::sqe_op(opcode::Fsync::CODE),
        ])?;
        submitter.register_enable_rings()?;
        let vectors = (0..CAPACITY).map(|_| Vectors::default()).collect();
        Ok(Self { ring, files: Vec::new(), vectors, memory, running: 0 })
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        let mut queue = self.ring.submission();
        #[expect(unsafe_code, reason = "the kernel reads and writes guest memory, which is not a Rust slice")]
        // SAFETY: what the entry points at is in `vectors` under its tag, which is not reused before the operation is
        // over, and points into `memory`, which is mapped as long as `self` is; dropping `self` waits for all.
        let pushed = unsafe { queue.push(entry) };
        pushed.map_err(io::Error::other)
    }

    /// Calls the kernel until it takes everything that was prepared.
    fn enter(&mut self, want: usize) -> io::Result<()> {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(_) if self.ring.submission().is_empty() => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It is short of memory for a moment.
                Err(error) if [Some(libc::EAGAIN), Some(libc::EBUSY)].contains(&error.raw_os_error()) => {
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
    }
}

impl Engine for Uring {
    fn prepare(&mut self, tag: usize, file: usize, operation: FileOperation<'_>) -> io::Result<()> {
        let file = Fd(self.files.get(file).ok_or(io::ErrorKind::NotFound)?.as_raw_fd());
        let vectors = self.vectors.get_mut(tag).ok_or(io::ErrorKind::InvalidInput)?;
        let entry = match operation {
            FileOperation::Read { offset, to } => {
                let (start, count) = vectors.fill(to, &self.memory)?;
                opcode::Readv::new(file, start, count).offset(offset).build()
            }
            FileOperation::Write { offset, from, durable } => {
                let (start, count) = vectors.fill(from, &self.memory)?;
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                opcode::Writev::new(file, start, count).offset(offset).rw_flags(flags).build()
            }
            FileOperation::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        };
        let tag = u64::try_from(tag).map_err(io::Error::other)?;
        self.push(&entry.user_data(tag))?;
        self.running += 1;
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        if self.ring.submission().is_empty() { Ok(()) } else { self.enter(0) }
    }

    fn take_completed(&mut self, completed: &mut Vec<Completion>) {
        let before = completed.len();
        completed.extend(self.ring.completion().map(|entry| {
            Completion {
                tag: usize::try_from(entry.user_data()).unwrap_or(usize::MAX),
                moved: u64::try_from(entry.result())
                    .map_err(|_| io::Error::from_raw_os_error(entry.result().saturating_neg())),
            }
        }));
        self.running = self.running.saturating_sub(completed.len() - before);
    }

    fn wait(&mut self) -> io::Result<()> {
        if self.running == 0 { Ok(()) } else { self.enter(1) }
    }

    fn source(&self) -> BorrowedFd<'_> {
        #[expect(unsafe_code, reason = "the ring lends its descriptor as a number only")]
        // SAFETY: the ring is open as long as `self` is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) };
        fd
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        let mut over = Vec::new();
        while self.running > 0 {
            if let Err(error) = self.wait() {
                // What the kernel still writes must not meet other memory.
                tracing::error!(%error, "operations of a disk cannot be waited for");
                std::mem::forget(self.memory.clone());
                return;
            }
            over.clear();
            self.take_completed(&mut over);
        }
    }
}
