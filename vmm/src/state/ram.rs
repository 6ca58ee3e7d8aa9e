//! The file of a VM's RAM: its ranges one after the other, pages of zeros as holes, then one page with the id of the save.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vm_memory::{Bytes, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

use super::file::SaveId;
use super::{LoadError, SavedVm};
use crate::config::MemorySize;
use crate::memory::GuestMemory;

const PAGE: u64 = 4096;
/// What is read and written at a time.
const CHUNK: usize = 1 << 20;

/// Writes the RAM of a paused VM into an empty file.
pub(super) fn write(memory: &GuestMemory, id: SaveId, file: &File) -> io::Result<()> {
    let size: u64 = memory.iter().map(GuestMemoryRegion::len).sum();
    file.set_len(0)?;
    file.set_len(size + PAGE)?;
    let mut buffer = vec![0; CHUNK];
    let mut start = 0;
    for region in memory.iter() {
        let mut at = 0;
        while at < region.len() {
            let count = usize::try_from(region.len() - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = buffer.get_mut(..count).unwrap_or_default();
            region.read_slice(chunk, MemoryRegionAddress(at)).map_err(io::Error::other)?;
            write_pages(file, chunk, start + at)?;
            at += u64::try_from(count).map_err(io::Error::other)?;
        }
        start += region.len();
    }
    file.write_all_at(&id, size)?;
    file.sync_all()
}

/// Writes runs of pages that are not all zeros.
pub(super) fn write_pages(file: &File, chunk: &[u8], at: u64) -> io::Result<()> {
    let mut offset = at;
    let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let (pages, rest) = chunk.as_chunks::<4096>();
    debug_assert!(rest.is_empty(), "RAM has whole pages");
    for run in pages.chunk_by(|one, next| is_zero(one) == is_zero(next)) {
        let bytes = run.as_flattened();
        if !run.first().is_some_and(|page| is_zero(page)) {
            file.write_all_at(bytes, offset)?;
        }
        offset += u64::try_from(bytes.len()).map_err(io::Error::other)?;
    }
    Ok(())
}

impl SavedVm {
    /// The RAM as it was saved, mapped privately: what the guest writes stays its own.
    pub(crate) fn map_ram(&self, size: MemorySize) -> Result<GuestMemory, LoadError> {
        let found = self.ram.metadata().map_err(LoadError::Ram)?.len();
        let expected = size.bytes() + PAGE;
        if found != expected {
            return Err(LoadError::RamSize { found, expected });
        }
        let mut id = SaveId::default();
        self.ram.read_exact_at(&mut id, size.bytes()).map_err(LoadError::Ram)?;
        if id != self.id {
            return Err(LoadError::OtherRam);
        }
        crate::memory::map_file(size, &self.ram).map_err(|error| LoadError::Ram(io::Error::other(error)))
    }
}
