use std::io;
use std::sync::Arc;

use super::Backend;
use super::engine::ImageFile;
use crate::config::CdDrive;
use crate::memory::{GuestMemory, Segments};

/// What is in a CD-ROM drive at the time of each request. It is only read.
pub(super) struct Removable(pub(super) Arc<CdDrive>);

fn no_medium() -> io::Error {
    // Of a kind that no policy has held: without a medium, trying again is no use.
    io::Error::new(io::ErrorKind::InvalidInput, "there is no medium in the drive")
}

impl Backend for Removable {
    fn sectors(&self) -> u64 {
        self.0.with_medium(|medium| medium.sectors()).unwrap_or(0)
    }

    fn read(&mut self, memory: &GuestMemory, to: &Segments, offset: u64) -> io::Result<()> {
        self.0.with_medium(|medium| medium.read(memory, to, offset)).unwrap_or_else(|| Err(no_medium()))
    }

    fn write(&mut self, _: &GuestMemory, _: &Segments, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&mut self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_zeroes(&mut self, _: u64, _: u64, _: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn locate(&mut self, _: u64, _: &Segments, _: bool) -> Option<(ImageFile, u64)> {
        None
    }

    fn grow(&mut self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn runs_alone(&self) -> bool {
        true
    }

    fn prepare_flush(&mut self) -> bool {
        false
    }

    fn flush_failed(&mut self, _: &io::Error) {}
}
