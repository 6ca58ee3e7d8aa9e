//! A command slot: header, command FIS, packet and the regions of its data (AHCI 1.3.1, sections 4.2.2 and 4.2.3),
//! read once.

use vm_memory::{Bytes, GuestAddress};

use super::taskfile::Taskfile;
use crate::memory::{GuestMemory, OutsideMemory, Segments};
use crate::scsi::Cdb;

const HEADER: u64 = 32;
const PACKET_AT: u64 = 0x40;
const REGIONS_AT: u64 = 0x80;
/// The longest transfer of a command: 65536 sectors.
const LONGEST: u64 = 0x1_0000 * 512;
/// Entries read from a region table at once.
const BATCH: usize = 64;

/// A command as it was in the slot.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) taskfile: Taskfile,
    /// Of an ATAPI command.
    pub(super) packet: Option<Cdb>,
    /// Where its data goes or comes from.
    pub(super) data: Segments,
}

/// The header of `slot` in the list at `list`.
fn header_at(list: u64, slot: u8) -> Option<GuestAddress> {
    Some(GuestAddress(list.checked_add(HEADER * u64::from(slot))?))
}

impl Command {
    /// Reads the slot. Anything that is not in RAM is an error of the bus (section 6.1.1).
    pub(super) fn read(memory: &GuestMemory, list: u64, slot: u8) -> Result<Self, OutsideMemory> {
        let mut header = [0; 16];
        memory.read_slice(&mut header, header_at(list, slot).ok_or(OutsideMemory)?).map_err(outside)?;
        let [flags, _, count_low, count_high, ..] = header;
        let [.., a, b, c, d, e, f, g, h] = header;
        let table = u64::from_le_bytes([a & 0x80, b, c, d, e, f, g, h]);
        let at = |offset| table.checked_add(offset).map(GuestAddress).ok_or(OutsideMemory);

        let mut fis = [0; 20];
        memory.read_slice(&mut fis, at(0)?).map_err(outside)?;
        let packet = match flags & 1 << 5 {
            0 => None,
            _ => {
                let mut packet = [0; 16];
                memory.read_slice(&mut packet, at(PACKET_AT)?).map_err(outside)?;
                Some(packet)
            }
        };
        let count = usize::from(u16::from_le_bytes([count_low, count_high]));
        let data = regions(memory, at(REGIONS_AT)?, count)?;
        Ok(Self { taskfile: Taskfile::from_fis(&fis), packet, data })
    }
}

/// Writes the number of transferred bytes to the slot's command header.
pub(super) fn set_transferred(memory: &GuestMemory, list: u64, slot: u8, bytes: u64) {
    let at = header_at(list, slot).and_then(|header| header.0.checked_add(4));
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    if let Some(at) = at
        && let Err(error) = memory.write_slice(&bytes.to_le_bytes(), GuestAddress(at))
    {
        tracing::debug!(%error, "a command header cannot be written");
    }
}

/// The regions, as far as any command can use them.
fn regions(memory: &GuestMemory, table: GuestAddress, count: usize) -> Result<Segments, OutsideMemory> {
    let mut all = Segments::default();
    let (mut at, mut left, mut total) = (table.0, count, 0_u64);
    while left > 0 && total < LONGEST {
        let mut batch = [0; 16 * BATCH];
        let now = left.min(BATCH);
        let bytes = batch.get_mut(..16 * now).ok_or(OutsideMemory)?;
        memory.read_slice(bytes, GuestAddress(at)).map_err(outside)?;
        let (entries, _) = bytes.as_chunks::<16>();
        for [a, b, c, d, e, f, g, h, .., i, j, k, _] in entries {
            // Even addresses and even lengths; bits 21-0 are one less than the length.
            let address = u64::from_le_bytes([a & !1, *b, *c, *d, *e, *f, *g, *h]);
            let len = (u32::from_le_bytes([*i | 1, *j, *k & 0x3f, 0])) + 1;
            if total < LONGEST {
                all.push(memory, GuestAddress(address), len)?;
                total += u64::from(len);
            }
        }
        left -= now;
        at = at.checked_add(16 * u64::try_from(now).unwrap_or(0)).ok_or(OutsideMemory)?;
    }
    Ok(all)
}

fn outside(_: vm_memory::GuestMemoryError) -> OutsideMemory {
    OutsideMemory
}
