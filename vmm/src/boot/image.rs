use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::error::LoadError;
use super::file_size;

/// How much of the file is read ahead while it is streamed.
const CHUNK: usize = 128 << 10;

/// A kernel file, read by position so that its offset does not matter and is not moved.
pub(super) struct Image<'a> {
    file: &'a File,
    len: u64,
}

impl<'a> Image<'a> {
    pub(super) fn open(file: &'a File) -> Result<Self, LoadError> {
        let len = file_size(file).map_err(|err| match err.kind() {
            io::ErrorKind::IsADirectory => LoadError::NotAKernel("a directory".to_owned()),
            _ => LoadError::ReadKernel(err),
        })?;
        Ok(Self { file, len })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Fills as much of `buffer` as the file has from `offset`.
    pub(super) fn read_up_to(&self, buffer: &mut [u8], offset: u64) -> Result<usize, LoadError> {
        let wanted = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(buffer.len());
        let (head, _) = buffer.split_at_mut(wanted);
        self.file.read_exact_at(head, offset).map_err(LoadError::ReadKernel)?;
        Ok(wanted)
    }

    /// Fills `buffer` from `offset`.
    pub(super) fn read_exact(&self, buffer: &mut [u8], offset: u64) -> Result<(), LoadError> {
        let expected = offset.saturating_add(buffer.len() as u64);
        if expected > self.len {
            return Err(LoadError::Truncated { expected, actual: self.len });
        }
        self.file.read_exact_at(buffer, offset).map_err(LoadError::ReadKernel)
    }

    /// A reader of `range`, which must lie inside the file to be read to its end.
    pub(super) fn part(&self, range: Range<u64>) -> BufReader<Part<'a>> {
        let Range { start, end } = range;
        BufReader::with_capacity(CHUNK, Part { file: self.file, at: start, end })
    }

    /// The file itself, for reads straight into guest memory.
    pub(super) fn file(&self) -> &'a File {
        self.file
    }
}

/// A range of a file as a stream.
pub(super) struct Part<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let wanted = left.min(buffer.len());
        let (head, _) = buffer.split_at_mut(wanted);
        let got = self.file.read_at(head, self.at)?;
        self.at += got as u64;
        Ok(got)
    }
}
