//! Requests in flight by `io_submit(2)`, for which neither std nor rustix has a function.

use std::ffi::{c_long, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use super::pattern::Operation;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DATA_SYNC: u16 = 3;
const PAGE: usize = 4096;

/// `struct iocb` of `linux/aio_abi.h`, little-endian.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ControlBlock {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: u64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    object: u64,
    result: i64,
    result2: i64,
}

/// What `O_DIRECT` asks of buffers.
#[repr(C, align(4096))]
#[derive(Clone)]
struct Page([u8; PAGE]);

/// Slots for requests to one file, each with a buffer.
pub(crate) struct Aio<'f> {
    file: &'f File,
    context: c_ulong,
    block: usize,
    buffers: Vec<Vec<Page>>,
    /// What the request of a slot is to transfer.
    expected: Vec<usize>,
    events: Vec<Event>,
}

impl<'f> Aio<'f> {
    /// With `depth` slots for requests of `block` bytes.
    pub(crate) fn new(file: &'f File, depth: usize, block: usize) -> io::Result<Self> {
        // Not zeros: a monitor may look for these in what is written.
        let buffers = vec![vec![Page([0x5a; PAGE]); block.div_ceil(PAGE)]; depth];
        let mut context: c_ulong = 0;
        // SAFETY: io_setup(2) writes one number, to where `context` is.
        #[expect(unsafe_code, reason = "a system call")]
        check(unsafe { libc::syscall(libc::SYS_io_setup, depth as c_ulong, &raw mut context) })?;
        let events = vec![Event::default(); depth];
        Ok(Self { file, context, block, buffers, expected: vec![0; depth], events })
    }

    /// Starts a request in a slot that has none.
    pub(crate) fn submit(&mut self, slot: usize, operation: Operation) -> io::Result<()> {
        let (buffer, expected) =
            self.buffers.get_mut(slot).zip(self.expected.get_mut(slot)).ok_or(io::ErrorKind::InvalidInput)?;
        let (opcode, offset, buffer, bytes) = match operation {
            Operation::Read(offset) => (READ, offset, buffer.as_mut_ptr().expose_provenance(), self.block),
            Operation::Write(offset) => (WRITE, offset, buffer.as_mut_ptr().expose_provenance(), self.block),
            Operation::Sync => (DATA_SYNC, 0, 0, 0),
        };
        *expected = bytes;
        let mut control = ControlBlock {
            data: slot as u64,
            opcode,
            fd: self.file.as_raw_fd().cast_unsigned(),
            buffer: buffer as u64,
            bytes: bytes as u64,
            offset,
            ..ControlBlock::default()
        };
        let controls = [&raw mut control];
        // SAFETY: the kernel copies the control block. It accesses the buffer, which has room for `bytes`, until the request
        // completes: nothing else does, and `drop` waits for that before the buffers are freed.
        #[expect(unsafe_code, reason = "a system call")]
        let submitted = check(unsafe {
            libc::syscall(libc::SYS_io_submit, self.context, 1 as c_long, controls.as_ptr())
        })?;
        if submitted == 1 { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Waits for at least one request, and returns the slots of all that completed.
    pub(crate) fn wait(&mut self) -> io::Result<Vec<usize>> {
        let room = c_long::try_from(self.events.len()).unwrap_or(c_long::MAX);
        let no_timeout = std::ptr::null_mut::<libc::timespec>();
        // SAFETY: the kernel writes at most `room` events, for which `events` has space.
        #[expect(unsafe_code, reason = "a system call")]
        let count = check(unsafe {
            libc::syscall(
                libc::SYS_io_getevents,
                self.context,
                1 as c_long,
                room,
                self.events.as_mut_ptr(),
                no_timeout,
            )
        })?;
        let done = self.events.iter().take(usize::try_from(count).unwrap_or(0));
        done.map(|event| {
            let slot = usize::try_from(event.data).map_err(io::Error::other)?;
            match usize::try_from(event.result) {
                Ok(bytes) if self.expected.get(slot) == Some(&bytes) => Ok(slot),
                Ok(bytes) => Err(io::Error::other(format!("a request transferred only {bytes} bytes"))),
                Err(_) => {
                    let errno = i32::try_from(event.result.saturating_neg()).unwrap_or(libc::EIO);
                    Err(io::Error::from_raw_os_error(errno))
                }
            }
        })
        .collect()
    }
}

impl Drop for Aio<'_> {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own; the call returns when no request is in flight any more.
        #[expect(unsafe_code, reason = "a system call")]
        let destroyed = check(unsafe { libc::syscall(libc::SYS_io_destroy, self.context) });
        if destroyed.is_err() {
            // Requests may be in flight: their buffers stay.
            std::mem::forget(std::mem::take(&mut self.buffers));
        }
    }
}

fn check(result: c_long) -> io::Result<c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
