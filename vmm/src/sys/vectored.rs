//! Vectored I/O straight between files and guest memory.
//!
//! Guest memory is never a Rust slice: the guest changes it at any time. The kernel copies to and from raw addresses.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use vm_memory::VolatileSlice;
use vm_memory::volatile_memory::PtrGuardMut;

use crate::memory::{GuestMemory, Segments};

/// The most buffers of one call (`IOV_MAX`).
pub(crate) const MAX_VECTORS: usize = 1024;

/// Buffers in guest memory as the kernel takes them. They stay mapped as long as this lives.
pub(crate) struct IoVecs<'a> {
    vecs: Vec<libc::iovec>,
    len: u64,
    _mapped: std::marker::PhantomData<&'a PtrGuardMut>,
}

impl<'a> IoVecs<'a> {
    /// At most `IOV_MAX` of them take part in one call.
    pub(crate) fn new(slices: impl IntoIterator<Item = VolatileSlice<'a>>) -> Self {
        let mut len: u64 = 0;
        let vecs = slices
            .into_iter()
            .map(|slice| {
                len = len.saturating_add(u64::try_from(slice.len()).unwrap_or(u64::MAX));
                // Without an on-demand mapping backend the guard only carries the address.
                let base = slice.ptr_guard_mut().as_ptr().cast();
                libc::iovec { iov_base: base, iov_len: slice.len() }
            })
            .collect();
        Self { vecs, len, _mapped: std::marker::PhantomData }
    }

    /// How many bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Takes off the first `count` bytes.
    fn advance(&mut self, count: usize) {
        let mut left = count;
        let done = self.vecs.iter().take_while(|vec| {
            let whole = vec.iov_len <= left;
            if whole {
                left -= vec.iov_len;
            }
            whole
        });
        let done = done.count();
        self.vecs.drain(..done);
        self.len = self.len.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
        if let Some(first) = self.vecs.first_mut() {
            // Within the same buffer: `left` is less than its length.
            first.iov_base = first.iov_base.wrapping_byte_add(left);
            first.iov_len -= left;
        }
    }

    fn raw(&self) -> (*const libc::iovec, libc::c_int) {
        let count = self.vecs.len().min(MAX_VECTORS);
        (self.vecs.as_ptr(), libc::c_int::try_from(count).unwrap_or(0))
    }
}

/// Buffers in guest memory for a call that the kernel carries out later. Whoever fills it keeps them mapped until then.
#[derive(Debug, Default)]
pub(crate) struct Vectors(Vec<Vector>);

/// The layout of `iovec`, with an address that may be sent to another thread.
#[repr(C)]
#[derive(Debug)]
struct Vector {
    base: usize,
    len: usize,
}

const _: () = assert!(
    size_of::<Vector>() == size_of::<libc::iovec>() && align_of::<Vector>() == align_of::<libc::iovec>()
);

impl Vectors {
    /// Takes these buffers instead of those before; where they are, and how many.
    ///
    /// # Errors
    /// When they are more than one call takes, or not in RAM.
    pub(crate) fn fill(
        &mut self,
        segments: &Segments,
        memory: &GuestMemory,
    ) -> io::Result<(*const libc::iovec, u32)> {
        self.0.clear();
        segments.for_each_slice(memory, |slice| {
            let base = slice.ptr_guard_mut().as_ptr().expose_provenance();
            self.0.push(Vector { base, len: slice.len() });
        })?;
        if self.0.len() > MAX_VECTORS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok((self.0.as_ptr().cast(), u32::try_from(self.0.len()).map_err(io::Error::other)?))
    }
}

/// Buffers in guest memory that one read after the other fills. Each read may take all of them; what one has filled is taken
/// off the front.
pub(crate) struct ReadBuffers {
    /// Keeps what the vectors point at mapped.
    memory: GuestMemory,
    vectors: Vec<Vector>,
    /// Those before are taken off.
    start: usize,
}

impl ReadBuffers {
    /// None yet, all to come in `memory`.
    pub(crate) fn new(memory: GuestMemory) -> Self {
        Self { memory, vectors: Vec::new(), start: 0 }
    }

    /// Adds buffers behind the others; in how many pieces the host has them.
    ///
    /// # Errors
    /// When they are not in RAM; then none is added.
    pub(crate) fn push(&mut self, segments: &Segments) -> io::Result<usize> {
        let before = self.vectors.len();
        let vectors = &mut self.vectors;
        let pushed = segments.for_each_slice(&self.memory, |slice| {
            let base = slice.ptr_guard_mut().as_ptr().expose_provenance();
            vectors.push(Vector { base, len: slice.len() });
        });
        if pushed.is_err() {
            self.vectors.truncate(before);
        }
        pushed.map(|()| self.vectors.len() - before)
    }

    /// Takes the first `count` pieces off.
    pub(crate) fn take_off(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.vectors.len());
        if self.start == self.vectors.len() || self.start >= MAX_VECTORS {
            self.vectors.drain(..self.start);
            self.start = 0;
        }
    }

    /// One read into the first `count` pieces, or as many as one call takes; how many bytes came. `None` if there were
    /// more than room: a tap truncates silently.
    pub(crate) fn read(&mut self, file: BorrowedFd<'_>, count: usize) -> io::Result<Option<u64>> {
        let count = count.min(MAX_VECTORS - 1).min(self.vectors.len() - self.start);
        // A byte here means that something did not fit.
        let mut excess = 0_u8;
        let behind = Vector { base: (&raw mut excess).expose_provenance(), len: 1 };
        let end = self.start + count;
        let replaced = match self.vectors.get_mut(end) {
            Some(vector) => Some(std::mem::replace(vector, behind)),
            None => {
                self.vectors.push(behind);
                None
            }
        };
        let used = self.vectors.get(self.start..=end).unwrap_or_default();
        let room = used.iter().fold(0, |sum: usize, vector| sum.saturating_add(vector.len));
        let length = libc::c_int::try_from(used.len()).unwrap_or(0);
        #[expect(unsafe_code, reason = "reads into guest memory, which is not a Rust slice")]
        // SAFETY: `used` has `length` entries with the layout of `iovec`; they point into memory that `memory` keeps
        // mapped, and the last at `excess`, which outlives the call.
        let done = unsafe { libc::readv(file.as_raw_fd(), used.as_ptr().cast(), length) };
        let done = usize::try_from(done).map_err(|_| io::Error::last_os_error());
        match (replaced, self.vectors.get_mut(end)) {
            (Some(vector), Some(slot)) => *slot = vector,
            (None, _) | (_, None) => self.vectors.truncate(end),
        }
        let done = done?;
        Ok((done < room).then(|| u64::try_from(done).unwrap_or(u64::MAX)))
    }
}

/// Reads all of `to` from `offset` of a file if the host has it in memory, else nothing. Whether it did.
pub(crate) fn read_cached_at(file: BorrowedFd<'_>, to: &IoVecs<'_>, offset: u64) -> bool {
    let (vecs, count) = to.raw();
    let Ok(offset) = i64::try_from(offset) else { return false };
    #[expect(unsafe_code, reason = "reads into guest memory, which is not a Rust slice")]
    // SAFETY: `vecs` points at `count` entries of a live `IoVecs`, whose lifetime keeps their memory mapped.
    let done = unsafe { libc::preadv2(file.as_raw_fd(), vecs, count, offset, libc::RWF_NOWAIT) };
    u64::try_from(done).is_ok_and(|done| done == to.len())
}

/// Reads all of `to` from `offset` of a file. The end of the file within is an error.
pub(crate) fn read_exact_at(file: BorrowedFd<'_>, to: IoVecs<'_>, offset: u64) -> io::Result<()> {
    transfer(to, offset, |(vecs, count), at| {
        #[expect(unsafe_code, reason = "reads into guest memory, which is not a Rust slice")]
        // SAFETY: `vecs` points at `count` entries of a live `IoVecs`, whose lifetime keeps their memory mapped.
        let done = unsafe { libc::preadv(file.as_raw_fd(), vecs, count, at) };
        done
    })
}

/// Writes all of `from` at `offset` of a file.
pub(crate) fn write_all_at(file: BorrowedFd<'_>, from: IoVecs<'_>, offset: u64) -> io::Result<()> {
    transfer(from, offset, |(vecs, count), at| {
        #[expect(unsafe_code, reason = "writes from guest memory, which is not a Rust slice")]
        // SAFETY: `vecs` points at `count` entries of a live `IoVecs`, whose lifetime keeps their memory mapped.
        let done = unsafe { libc::pwritev(file.as_raw_fd(), vecs, count, at) };
        done
    })
}

/// One write of `segments`, by vectors that were there before; how many bytes went.
pub(crate) fn write(
    file: BorrowedFd<'_>,
    vectors: &mut Vectors,
    segments: &Segments,
    memory: &GuestMemory,
) -> io::Result<usize> {
    let (vecs, count) = vectors.fill(segments, memory)?;
    let count = libc::c_int::try_from(count).unwrap_or(0);
    #[expect(unsafe_code, reason = "writes from guest memory, which is not a Rust slice")]
    // SAFETY: `vecs` points at `count` entries of `vectors`, filled with addresses that `memory` keeps mapped.
    let done = unsafe { libc::writev(file.as_raw_fd(), vecs, count) };
    usize::try_from(done).map_err(|_| io::Error::last_os_error())
}

fn transfer(
    mut vecs: IoVecs<'_>,
    mut offset: u64,
    call: impl Fn((*const libc::iovec, libc::c_int), i64) -> isize,
) -> io::Result<()> {
    while vecs.len() > 0 {
        let at = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        match usize::try_from(call(vecs.raw(), at)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(done) => {
                vecs.advance(done);
                offset = offset.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
            }
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

    use super::*;

    fn vecs<'a>(memory: &'a GuestMemoryMmap<()>, parts: &[(u64, usize)]) -> IoVecs<'a> {
        IoVecs::new(parts.iter().map(|&(at, len)| memory.get_slice(GuestAddress(at), len).unwrap()))
    }

    #[test]
    fn scattered_buffers_are_filled_in_order_and_written_in_order() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789abcdef").unwrap();
        read_exact_at(file.as_fd(), vecs(&memory, &[(0x100, 3), (0x3000, 1), (0x10, 4)]), 2).unwrap();
        let mut back = [0; 4];
        memory.read_slice(&mut back, GuestAddress(0x10)).unwrap();
        assert_eq!(&back, b"6789");
        write_all_at(file.as_fd(), vecs(&memory, &[(0x10, 4), (0x100, 3)]), 20).unwrap();
        let mut out = [0; 7];
        file.read_exact_at(&mut out, 20).unwrap();
        assert_eq!(&out, b"6789234");
        let short = read_exact_at(file.as_fd(), vecs(&memory, &[(0, 16)]), 20);
        assert_eq!(short.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn reads_fill_buffers_one_after_the_other() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x10000)]).unwrap();
        let (wire, ours) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let mut buffers = ReadBuffers::new(memory.clone());
        // More often than vectors are kept for.
        for round in 0..800_u64 {
            while buffers.vectors.len() - buffers.start < 6 {
                let mut segments = Segments::default();
                let at = (buffers.vectors.len() as u64 * 2) % 0x1000;
                segments.push(&memory, GuestAddress(at), 1).unwrap();
                segments.push(&memory, GuestAddress(at + 1), 1).unwrap();
                assert_eq!(buffers.push(&segments).unwrap(), 2);
            }
            assert!(buffers.vectors.len() < MAX_VECTORS + 8);
            let first = buffers.vectors[buffers.start].base;
            let base = memory.get_host_address(GuestAddress(0)).unwrap().addr();
            let sent = round.to_le_bytes();
            wire.send(&sent[..4]).unwrap();
            assert_eq!(buffers.read(ours.as_fd(), 3).unwrap(), None, "a byte more than room");
            wire.send(&sent[..3]).unwrap();
            assert_eq!(buffers.read(ours.as_fd(), 6).unwrap(), Some(3));
            let mut got = [0];
            memory.read_slice(&mut got, GuestAddress((first - base) as u64)).unwrap();
            assert_eq!(got[0], sent[0]);
            buffers.take_off(3);
        }
    }

    #[test]
    fn advancing_never_splits_wrongly() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        for count in 0..=9 {
            let mut all = vecs(&memory, &[(0, 2), (16, 3), (32, 4)]);
            let first = all.vecs[0].iov_base as usize;
            all.advance(count);
            assert_eq!(all.len(), 9 - count as u64);
            let want = [0, 1, 16, 17, 18, 32, 33, 34, 35].get(count);
            assert_eq!(all.vecs.first().map(|vec| vec.iov_base as usize - first).as_ref(), want);
        }
    }
}
