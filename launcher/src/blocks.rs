//! The sizes of the blocks of disks, as both hypervisors have them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use vireo_vmconfig::BlockSize;

use crate::launch::Disk;

/// The blocks of disks for which no others are chosen.
const SECTOR: u32 = 512;
/// The largest block of a disk that has those of its volume, as KubeVirt limits it.
const LARGEST_OF_FILE: u32 = 32 << 10;

/// The sizes of the blocks of a file or block device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// The unit of addresses.
    pub(crate) logical: u32,
    /// The unit that is written without reading.
    pub(crate) physical: u32,
}

/// The sizes that a disk is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChosenBlocks {
    pub(crate) blocks: Blocks,
    /// The unit that is discarded, where it is chosen.
    pub(crate) discard_granularity: Option<u32>,
}

impl Default for Blocks {
    fn default() -> Self {
        Self { logical: SECTOR, physical: SECTOR }
    }
}

impl Blocks {
    /// Those of an open file: on a file system, the block size of that.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let (logical, physical) = if metadata.file_type().is_block_device() {
            (rustix::fs::ioctl_blksszget(file)?, rustix::fs::ioctl_blkpbszget(file)?)
        } else {
            let size = u32::try_from(metadata.blksize()).unwrap_or(u32::MAX);
            (size, size)
        };
        // A file system of a network may prefer more than disks have.
        let valid = |size: u32| if BlockSize::is_valid(size) { size.min(LARGEST_OF_FILE) } else { SECTOR };
        Ok(Self { logical: valid(logical), physical: valid(physical).max(valid(logical)) })
    }
}

/// The sizes that the manifest chooses for a disk, if it chooses any; `volume` are those of what it is stored on, where they
/// are known.
pub(crate) fn chosen(disk: &Disk, volume: Option<Blocks>) -> Option<ChosenBlocks> {
    match (disk.tuning.block_size, volume) {
        _ if disk.is_cdrom() => None,
        (BlockSize::Default, _) | (BlockSize::Volume, None) => None,
        (BlockSize::Volume, Some(blocks)) => Some(ChosenBlocks { blocks, discard_granularity: None }),
        (BlockSize::Custom { logical, physical, discard_granularity }, _) => {
            Some(ChosenBlocks { blocks: Blocks { logical, physical }, discard_granularity })
        }
    }
}
