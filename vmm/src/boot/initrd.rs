use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::error::LoadError;
use super::file_size;
use super::ram::{HIGH_START, Ram};

const PAGE: u64 = 4096;

/// The highest pages below `max` (inclusive) and the end of low RAM that hold the initrd.
pub(super) fn place(ram: &Ram, initrd: Option<&File>, max: u64) -> Result<Option<Range<u64>>, LoadError> {
    let Some(file) = initrd else { return Ok(None) };
    let size = file_size(file).map_err(LoadError::ReadInitrd)?;
    if size == 0 {
        return Err(LoadError::InitrdEmpty);
    }
    let end = ram.low_end().min(max.saturating_add(1));
    let start = end.checked_sub(size).map(|start| start & !(PAGE - 1)).filter(|start| *start >= HIGH_START);
    match start {
        Some(start) => Ok(Some(start..start + size)),
        None => Err(LoadError::InitrdTooLarge { size, room: end.saturating_sub(HIGH_START) }),
    }
}

/// Reads the whole file to its address.
pub(super) fn read(
    memory: &GuestMemoryMmap,
    initrd: Option<&File>,
    range: Option<&Range<u64>>,
) -> Result<(), LoadError> {
    let (Some(file), Some(range)) = (initrd, range) else { return Ok(()) };
    let mut file = file.try_clone().map_err(LoadError::ReadInitrd)?;
    file.seek(SeekFrom::Start(0)).map_err(LoadError::ReadInitrd)?;
    let size = usize::try_from(range.end - range.start)
        .map_err(|_| LoadError::InitrdTooLarge { size: range.end - range.start, room: 0 })?;
    memory
        .read_exact_volatile_from(GuestAddress(range.start), &mut file, size)
        .map_err(|err| LoadError::ReadInitrd(std::io::Error::other(err)))
}
