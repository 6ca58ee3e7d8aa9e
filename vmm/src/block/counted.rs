use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::Backend;
use super::engine::ImageFile;
use crate::config::DiskCounters;
use crate::memory::{GuestMemory, Segments};

/// A backend that counts its requests.
pub(super) struct Counted {
    pub(super) backend: Box<dyn Backend>,
    pub(super) counters: Arc<DiskCounters>,
}

impl Backend for Counted {
    fn sectors(&self) -> u64 {
        self.backend.sectors()
    }

    fn read(&mut self, memory: &GuestMemory, to: &Segments, offset: u64) -> io::Result<()> {
        let begin = Instant::now();
        let done = self.backend.read(memory, to, offset);
        self.counters.read.count(to.len(), begin.elapsed());
        done
    }

    fn write(&mut self, memory: &GuestMemory, from: &Segments, offset: u64) -> io::Result<()> {
        let begin = Instant::now();
        let done = self.backend.write(memory, from, offset);
        self.counters.written.count(from.len(), begin.elapsed());
        done
    }

    fn flush(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let done = self.backend.flush();
        self.counters.flushed.count(0, begin.elapsed());
        done
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.backend.discard(offset, len)
    }

    fn write_zeroes(&mut self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        self.backend.write_zeroes(offset, len, unmap)
    }

    fn locate(&mut self, offset: u64, buffers: &Segments, write: bool) -> Option<(ImageFile, u64)> {
        self.backend.locate(offset, buffers, write)
    }

    fn grow(&mut self, sectors: u64) -> io::Result<()> {
        self.backend.grow(sectors)
    }

    fn runs_alone(&self) -> bool {
        self.backend.runs_alone()
    }

    fn set_patient(&mut self, yes: bool) {
        self.backend.set_patient(yes);
    }

    fn prepare_flush(&mut self) -> bool {
        self.backend.prepare_flush()
    }

    fn flush_failed(&mut self, error: &io::Error) {
        self.backend.flush_failed(error);
    }

    fn open_beside(&self) -> io::Result<Option<Box<dyn Backend>>> {
        self.backend.open_beside()
    }
}
