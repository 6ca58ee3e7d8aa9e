use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use vm_memory::mmap::MmapRegionError;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryError, MmapRegion};

use crate::layout::{FLASH_END, FLASH_START};
use crate::memory::GuestMemory;

const PAGE: u64 = 4096;
/// What a PC has of its firmware below 1 MiB.
const SHADOW: u64 = 256 << 10;
const SHADOW_END: u64 = 1 << 20;

/// Why an image is rejected.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It cannot be read.
    #[error("cannot read the firmware image")]
    Read(#[source] io::Error),
    /// No image has such a size.
    #[error("a firmware image of {0} bytes: it has to be whole pages of 4 KiB, and at most 16 MiB in all")]
    Size(u64),
    /// It does not fit in the address space.
    #[error("cannot map the firmware image")]
    Map(#[source] MmapRegionError),
    /// RAM ends below 1 MiB.
    #[error("cannot copy the firmware below 1 MiB")]
    Shadow(#[source] GuestMemoryError),
}

/// An image that the guest sees where its file is mapped: what is in the host's page cache is there for every guest.
#[derive(Debug)]
pub(crate) struct Image {
    /// Its first guest-physical address.
    pub(crate) start: u64,
    /// The file, mapped for reading.
    pub(crate) region: Arc<MmapRegion>,
}

impl Image {
    /// Maps `file` so that it ends at `end`.
    pub(crate) fn map(file: &File, end: u64) -> Result<Self, ImageError> {
        let size = file.metadata().map_err(ImageError::Read)?.len();
        let start = end.checked_sub(size).filter(|start| *start >= FLASH_START);
        let start = start.filter(|_| size > 0 && size.is_multiple_of(PAGE)).ok_or(ImageError::Size(size))?;
        let bytes = usize::try_from(size).map_err(|_| ImageError::Size(size))?;
        let file = FileOffset::new(file.try_clone().map_err(ImageError::Read)?, 0);
        let region = MmapRegion::build(Some(file), bytes, libc::PROT_READ, libc::MAP_SHARED)
            .map_err(ImageError::Map)?;
        Ok(Self { start, region: Arc::new(region) })
    }

    /// The image at the top of the flash window, where vCPUs start.
    pub(crate) fn at_reset_vector(file: &File) -> Result<Self, ImageError> {
        Self::map(file, FLASH_END)
    }
}

/// Copies the end of `file` to below 1 MiB, where a BIOS runs. It is RAM there, and fresh after every reset.
pub(crate) fn shadow(file: &File, memory: &GuestMemory) -> Result<(), ImageError> {
    let size = file.metadata().map_err(ImageError::Read)?.len();
    let len = size.min(SHADOW);
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| ImageError::Size(size))?];
    file.read_exact_at(&mut bytes, size - len).map_err(ImageError::Read)?;
    memory.write_slice(&bytes, GuestAddress(SHADOW_END - len)).map_err(ImageError::Shadow)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::config::MemorySize;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn images_end_at_4_gib_and_are_whole_pages() {
        let image = Image::at_reset_vector(&file(&[1; 0x4_0000])).unwrap();
        assert_eq!((image.start, image.region.size()), (0xfffc_0000, 0x4_0000));
        for size in [0, 1000, (16 << 20) + 4096] {
            let refused = Image::at_reset_vector(&file(&vec![0; size])).unwrap_err();
            assert!(matches!(refused, ImageError::Size(_)), "{size}: {refused}");
        }
    }

    #[test]
    fn the_last_256_kib_are_below_1_mib() {
        let memory = crate::memory::create(MemorySize::from_bytes(16 << 20).unwrap(), None).unwrap();
        let mut bytes = vec![7; 0x1000];
        bytes.extend(vec![8; 0x4_0000]);
        shadow(&file(&bytes), &memory).unwrap();
        let at = |address| memory.read_obj::<u8>(GuestAddress(address)).unwrap();
        assert_eq!((at(0xb_ffff), at(0xc_0000), at(0xf_ffff), at(0x10_0000)), (0, 8, 8, 0));
        shadow(&file(&[9; 0x1000]), &memory).unwrap();
        assert_eq!((at(0xf_efff), at(0xf_f000), at(0xf_ffff)), (8, 9, 9));
    }
}
