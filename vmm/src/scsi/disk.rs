//! What only disks do (SBC-3).

use std::io;

use super::Sense;
use super::command::Command;
use super::unit::{Buffers, Transfer, Unit, answer};
use crate::block::{MAX_RANGE_SECTORS, MAX_RANGES, MAX_ZEROED_SECTORS};
use crate::memory::{GuestMemory, Segments};

const UNMAP_HEADER: u64 = 8;
const UNMAP_RANGE: usize = 16;
const CACHING: u8 = 0x08;
const ALL_PAGES: u8 = 0x3f;
const CHANGEABLE: u8 = 1;

pub(super) fn perform(
    unit: &mut Unit,
    memory: &GuestMemory,
    command: Command,
    buffers: Buffers,
) -> Result<u64, Sense> {
    let Buffers { to_guest: to, from_guest: from } = buffers;
    match command {
        Command::ModeSense { page, control, ten, len } => {
            let reply = mode_sense(unit, page, control, ten).ok_or(Sense::INVALID_FIELD)?;
            answer(memory, &to, &reply, len)
        }
        Command::ReadCapacity16 { len } => answer(memory, &to, &capacity16(unit), len),
        Command::Write { lba, blocks, stable } => write(unit, memory, (lba, blocks, stable), from),
        Command::Synchronize => stored(unit.image.flush()).map(|()| 0),
        Command::Unmap { len } => unmap(unit, memory, &from, len),
        Command::WriteSame { lba, blocks, unmap, data } => {
            if data && !is_zero(memory, &from)? {
                return Err(Sense::INVALID_FIELD);
            }
            writable(unit)?;
            if blocks > MAX_ZEROED_SECTORS {
                return Err(Sense::INVALID_FIELD);
            }
            let (offset, len) = unit.range(lba, blocks)?;
            stored(unit.image.write_zeroes(offset, len, unmap))?;
            if unit.write_through {
                stored(unit.image.flush())?;
            }
            Ok(from.len().min(unit.block_size()))
        }
        // Starting, stopping and locking mean nothing to a disk that is a file.
        Command::StartStop { .. } | Command::PreventRemoval(_) => Ok(0),
        _ => Err(Sense::INVALID_OPCODE),
    }
}

fn write(
    unit: &mut Unit,
    memory: &GuestMemory,
    (lba, blocks, stable): (u64, u32, bool),
    mut from: Segments,
) -> Result<u64, Sense> {
    writable(unit)?;
    let (offset, len) = unit.range(lba, blocks)?;
    let have = from.len().min(len);
    // Whole blocks: what is missing of the last one would be written as something.
    let len = have - have % unit.block_size();
    let bytes = from.take_front(len).ok_or(Sense::TRANSFER)?;
    let durable = stable || unit.write_through;
    unit.perform_transfer(memory, &Transfer { at: offset, write: true, durable, bytes })
}

/// The ranges of UNMAP (SBC-3, section 5.28.2).
fn unmap(unit: &mut Unit, memory: &GuestMemory, from: &Segments, len: usize) -> Result<u64, Sense> {
    writable(unit)?;
    let have = from.len().min(u64::try_from(len).unwrap_or(u64::MAX));
    if have == 0 {
        return Ok(0);
    }
    let most = UNMAP_HEADER + u64::from(MAX_RANGES) * 16;
    if have < UNMAP_HEADER {
        return Err(Sense::PARAMETER_LENGTH);
    }
    let mut list = vec![0; usize::try_from(have.min(most)).map_err(|_| Sense::PARAMETER_LENGTH)?];
    from.read(memory, &mut list).map_err(|_| Sense::TRANSFER)?;
    let (header, ranges) = list.split_at(8);
    let bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if bytes / UNMAP_RANGE > usize::try_from(MAX_RANGES).unwrap_or(0) {
        return Err(Sense::INVALID_PARAMETER);
    }
    let ranges = ranges.get(..bytes - bytes % UNMAP_RANGE).ok_or(Sense::PARAMETER_LENGTH)?;
    let (ranges, _) = ranges.as_chunks::<UNMAP_RANGE>();
    // All are checked before anything is done.
    let ranges = ranges.iter().map(|range| {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = *range;
        let blocks = u32::from_be_bytes([i, j, k, l]);
        if blocks > MAX_RANGE_SECTORS {
            return Err(Sense::INVALID_PARAMETER);
        }
        unit.range(u64::from_be_bytes([a, b, c, d, e, f, g, h]), blocks)
    });
    for (offset, len) in ranges.collect::<Result<Vec<_>, _>>()? {
        stored(unit.image.discard(offset, len))?;
    }
    Ok(have)
}

fn is_zero(memory: &GuestMemory, from: &Segments) -> Result<bool, Sense> {
    let mut block = [0; 512];
    from.read(memory, &mut block).map_err(|_| Sense::TRANSFER)?;
    Ok(block == [0; 512])
}

fn writable(unit: &Unit) -> Result<(), Sense> {
    if unit.read_only { Err(Sense::WRITE_PROTECTED) } else { Ok(()) }
}

fn stored(outcome: io::Result<()>) -> Result<(), Sense> {
    outcome.map_err(|error| {
        tracing::warn!(%error, "a disk cannot be written");
        Sense::WRITE_ERROR
    })
}

fn capacity16(unit: &Unit) -> [u8; 32] {
    let mut reply = [0; 32];
    reply[..8].copy_from_slice(&unit.blocks().saturating_sub(1).to_be_bytes());
    reply[8..12].copy_from_slice(&u32::try_from(unit.block_size()).unwrap_or(0).to_be_bytes());
    // Physical blocks of 4 KiB.
    reply[13] = 3;
    // LBPME: the guest may unmap.
    reply[14] = u8::from(!unit.read_only) << 7;
    reply
}

/// Mode parameters: the caching page is the only one (SBC-3, section 6.4.5).
fn mode_sense(unit: &Unit, page: u8, control: u8, ten: bool) -> Option<Vec<u8>> {
    if !matches!(page, CACHING | ALL_PAGES) {
        return None;
    }
    let mut caching = [0; 20];
    caching[0] = CACHING;
    caching[1] = 18;
    if control != CHANGEABLE {
        // WCE: there is a write cache.
        caching[2] = u8::from(!unit.write_through) << 2;
    }
    // WP, and DPOFUA: writes past the cache are understood.
    let device = u8::from(unit.read_only) << 7 | 1 << 4;
    Some(with_mode_header(device, ten, &caching))
}

/// Mode pages behind the header of either form, without block descriptors (SPC-4, section 7.5.5).
pub(super) fn with_mode_header(device: u8, ten: bool, pages: &[u8]) -> Vec<u8> {
    let len = pages.len();
    let header = if ten {
        let [high, low] = u16::try_from(len + 6).unwrap_or(0).to_be_bytes();
        vec![high, low, 0, device, 0, 0, 0, 0]
    } else {
        vec![u8::try_from(len + 3).unwrap_or(0), 0, device, 0]
    };
    [&header, pages].concat()
}
