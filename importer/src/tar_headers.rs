//! Bounds what the tar crate reads at once: it keeps a long name and the extensions of a file (PAX) in memory, whatever
//! length their headers have.

use std::cell::Cell;
use std::io::{self, Read, Seek, SeekFrom};
use std::rc::Rc;

/// The most bytes of all headers of a file, with its name. Names have 4096 bytes at most.
pub(crate) const HEADERS_LIMIT: u64 = 1 << 20;
/// The unit of archives.
const BLOCK: u64 = 512;

/// A reader of an archive that fails where the headers of a file are too long.
pub(crate) struct HeaderLimit<R> {
    inner: R,
    left: Budget,
}

/// How much may be read until it is set again.
#[derive(Clone)]
pub(crate) struct Budget(Rc<Cell<u64>>);

impl Budget {
    /// Lets headers be read, after the content of a file that is stored in `content` bytes.
    pub(crate) fn next_file(&self, content: u64) {
        let padded = content.div_ceil(BLOCK).saturating_mul(BLOCK);
        self.0.set(padded.saturating_add(HEADERS_LIMIT));
    }

    /// Whether it was used up.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.0.get() == 0
    }
}

impl<R> HeaderLimit<R> {
    pub(crate) fn new(inner: R) -> (Self, Budget) {
        let left = Budget(Rc::new(Cell::new(HEADERS_LIMIT)));
        (Self { inner, left: left.clone() }, left)
    }
}

impl<R: Read> Read for HeaderLimit<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.left.0.get();
        if left == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
        let read = self.inner.read(into.get_mut(..most).unwrap_or_default())?;
        self.left.0.set(left.saturating_sub(read as u64));
        Ok(read)
    }
}

impl<R: Seek> Seek for HeaderLimit<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

/// How many bytes of the archive the content of an entry takes.
pub(crate) fn stored_size<R: Read>(entry: &tar::Entry<'_, R>) -> io::Result<u64> {
    match entry.header().entry_type() {
        // Its size is that without holes removed.
        tar::EntryType::GNUSparse => entry.header().entry_size(),
        _ => Ok(entry.size()),
    }
}
