use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::engine::ImageFile;
use super::{Backend, GuestMemory, ImageError, Segments, Stable, whole_sectors};
use crate::sys::vectored;

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A regular file or a block device, through the host's page cache.
pub(super) struct Raw {
    file: File,
    sectors: u64,
    stable: Stable,
}

impl Raw {
    pub(super) fn open(file: &File) -> Result<Self, ImageError> {
        let mut file = file.try_clone().map_err(ImageError::Open)?;
        // The size of a block device is only found by going to its end.
        let bytes = file.seek(SeekFrom::End(0)).map_err(ImageError::Open)?;
        Ok(Self { sectors: whole_sectors(bytes)?, file, stable: Stable::default() })
    }

    /// Whether the file system could do it.
    fn allocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> io::Result<bool> {
        match fallocate(&self.file, mode | FallocateFlags::KEEP_SIZE, offset, len) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Backend for Raw {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&mut self, memory: &GuestMemory, to: &Segments, offset: u64) -> io::Result<()> {
        vectored::read_exact_at(self.file.as_fd(), to.io_vecs(memory)?, offset)
    }

    fn write(&mut self, memory: &GuestMemory, from: &Segments, offset: u64) -> io::Result<()> {
        vectored::write_all_at(self.file.as_fd(), from.io_vecs(memory)?, offset)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stable.flush(|| self.file.sync_data())
    }

    fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        if len > 0 {
            self.allocate(FallocateFlags::PUNCH_HOLE, offset, len)?;
        }
        Ok(())
    }

    fn write_zeroes(&mut self, mut offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let mode = if unmap { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
        if len == 0 || self.allocate(mode, offset, len)? {
            return Ok(());
        }
        let end = offset.saturating_add(len);
        while offset < end {
            let step = usize::try_from(end - offset).unwrap_or(usize::MAX).min(ZEROS.len());
            let zeros = ZEROS.get(..step).unwrap_or(&ZEROS);
            self.file.write_all_at(zeros, offset)?;
            offset = offset.saturating_add(u64::try_from(zeros.len()).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    fn locate(&mut self, offset: u64, _: &Segments, _: bool) -> Option<(ImageFile, u64)> {
        Some((ImageFile::Image, offset))
    }

    fn grow(&mut self, sectors: u64) -> io::Result<()> {
        self.sectors = sectors;
        Ok(())
    }

    fn runs_alone(&self) -> bool {
        false
    }

    fn prepare_flush(&mut self) -> bool {
        self.stable.is_intact()
    }

    fn flush_failed(&mut self, error: &io::Error) {
        self.stable.failed(error);
    }

    fn open_beside(&self) -> io::Result<Option<Box<dyn Backend>>> {
        let file = self.file.try_clone()?;
        Ok(Some(Box::new(Self { file, sectors: self.sectors, stable: self.stable.clone() })))
    }
}
