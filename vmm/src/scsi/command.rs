use super::{Cdb, Sense};

/// A command block that makes sense by itself. Lengths are in bytes, addresses in blocks of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    TestUnitReady,
    RequestSense {
        len: usize,
    },
    Inquiry {
        page: Option<u8>,
        len: usize,
    },
    ModeSense {
        page: u8,
        control: u8,
        ten: bool,
        len: usize,
    },
    StartStop {
        start: bool,
        eject: bool,
    },
    PreventRemoval(bool),
    ReadCapacity,
    ReadCapacity16 {
        len: usize,
    },
    ReportLuns {
        len: usize,
    },
    Read {
        lba: u64,
        blocks: u32,
    },
    Write {
        lba: u64,
        blocks: u32,
        stable: bool,
    },
    Verify {
        lba: u64,
        blocks: u32,
    },
    Synchronize,
    Unmap {
        len: usize,
    },
    /// Without `data` the block to write is zeros.
    WriteSame {
        lba: u64,
        blocks: u32,
        unmap: bool,
        data: bool,
    },
    ReadToc {
        format: u8,
        msf: bool,
        start: u8,
        len: usize,
    },
    GetConfiguration {
        kind: u8,
        start: u16,
        len: usize,
    },
    EventStatus {
        polled: bool,
        classes: u8,
        len: usize,
    },
    DiscInformation {
        len: usize,
    },
    MechanismStatus {
        len: usize,
    },
    SetSpeed,
}

impl Command {
    pub(super) fn parse(cdb: &Cdb) -> Result<Self, Sense> {
        let short = usize::from(cdb[4]);
        let ten = usize::from(u16::from_be_bytes([cdb[7], cdb[8]]));
        Ok(match cdb[0] {
            0x00 => Self::TestUnitReady,
            0x03 => Self::RequestSense { len: short },
            0x08 => Self::Read { lba: lba6(cdb), blocks: blocks6(cdb) },
            0x0a => Self::Write { lba: lba6(cdb), blocks: blocks6(cdb), stable: false },
            0x12 => Self::inquiry(cdb)?,
            0x1a => Self::mode_sense(cdb, false, short)?,
            0x1b => Self::StartStop { start: cdb[4] & 1 != 0, eject: cdb[4] & 2 != 0 },
            0x1e => Self::PreventRemoval(cdb[4] & 1 != 0),
            0x25 => Self::ReadCapacity,
            0x28 => Self::Read { lba: lba10(cdb), blocks: blocks10(cdb) },
            0x2a => Self::Write { lba: lba10(cdb), blocks: blocks10(cdb), stable: cdb[1] & 8 != 0 },
            0x2b => Self::Verify { lba: lba10(cdb), blocks: 0 },
            0x2f if cdb[1] & 6 == 0 => Self::Verify { lba: lba10(cdb), blocks: blocks10(cdb) },
            0x35 | 0x91 => Self::Synchronize,
            0x41 => Self::write_same(lba10(cdb), blocks10(cdb), cdb[1] & !1)?,
            0x42 => Self::Unmap { len: ten },
            0x43 => Self::ReadToc { format: toc_format(cdb), msf: cdb[1] & 2 != 0, start: cdb[6], len: ten },
            0x46 => {
                let start = u16::from_be_bytes([cdb[2], cdb[3]]);
                Self::GetConfiguration { kind: cdb[1] & 3, start, len: ten }
            }
            0x4a => Self::EventStatus { polled: cdb[1] & 1 != 0, classes: cdb[4], len: ten },
            0x51 if cdb[1] & 7 == 0 => Self::DiscInformation { len: ten },
            0x5a => Self::mode_sense(cdb, true, ten)?,
            0x88 => Self::Read { lba: lba16(cdb), blocks: blocks16(cdb) },
            0x8a => Self::Write { lba: lba16(cdb), blocks: blocks16(cdb), stable: cdb[1] & 8 != 0 },
            0x8f if cdb[1] & 6 == 0 => Self::Verify { lba: lba16(cdb), blocks: blocks16(cdb) },
            0x93 => Self::write_same(lba16(cdb), blocks16(cdb), cdb[1])?,
            0x9e if cdb[1] & 0x1f == 0x10 => Self::ReadCapacity16 { len: long(cdb, 10) },
            0xa0 => Self::ReportLuns { len: long(cdb, 6) },
            0xa8 => Self::Read { lba: lba10(cdb), blocks: blocks12(cdb) },
            0xaa => Self::Write { lba: lba10(cdb), blocks: blocks12(cdb), stable: cdb[1] & 8 != 0 },
            0xbb => Self::SetSpeed,
            0xbd => Self::MechanismStatus { len: usize::from(u16::from_be_bytes([cdb[8], cdb[9]])) },
            0x2f | 0x51 | 0x8f => return Err(Sense::INVALID_FIELD),
            _ => return Err(Sense::INVALID_OPCODE),
        })
    }

    fn inquiry(cdb: &Cdb) -> Result<Self, Sense> {
        let len = usize::from(u16::from_be_bytes([cdb[3], cdb[4]]));
        match (cdb[1] & 1 != 0, cdb[2]) {
            (true, page) => Ok(Self::Inquiry { page: Some(page), len }),
            (false, 0) => Ok(Self::Inquiry { page: None, len }),
            (false, _) => Err(Sense::INVALID_FIELD),
        }
    }

    fn mode_sense(cdb: &Cdb, ten: bool, len: usize) -> Result<Self, Sense> {
        // No page here has sub-pages; 0xff requests all of them.
        match cdb[3] {
            0 | 0xff => Ok(Self::ModeSense { page: cdb[2] & 0x3f, control: cdb[2] >> 6, ten, len }),
            _ => Err(Sense::INVALID_FIELD),
        }
    }

    fn write_same(lba: u64, blocks: u32, flags: u8) -> Result<Self, Sense> {
        // ANCHOR and the protection bits are not offered.
        if flags & 0xf6 != 0 {
            return Err(Sense::INVALID_FIELD);
        }
        Ok(Self::WriteSame { lba, blocks, unmap: flags & 8 != 0, data: flags & 1 == 0 })
    }
}

fn word(cdb: &Cdb, at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|i| cdb.get(at + i).copied().unwrap_or(0)))
}

fn long(cdb: &Cdb, at: usize) -> usize {
    usize::try_from(word(cdb, at)).unwrap_or(usize::MAX)
}

fn lba6(cdb: &Cdb) -> u64 {
    u64::from(word(cdb, 0) & 0x1f_ffff)
}

fn blocks6(cdb: &Cdb) -> u32 {
    if cdb[4] == 0 { 256 } else { cdb[4].into() }
}

fn lba10(cdb: &Cdb) -> u64 {
    word(cdb, 2).into()
}

fn blocks10(cdb: &Cdb) -> u32 {
    u16::from_be_bytes([cdb[7], cdb[8]]).into()
}

fn blocks12(cdb: &Cdb) -> u32 {
    word(cdb, 6)
}

fn lba16(cdb: &Cdb) -> u64 {
    u64::from(word(cdb, 2)) << 32 | u64::from(word(cdb, 6))
}

fn blocks16(cdb: &Cdb) -> u32 {
    word(cdb, 10)
}

/// Old hosts put the format into the control byte.
fn toc_format(cdb: &Cdb) -> u8 {
    match cdb[2] & 0xf {
        0 => cdb[9] >> 6,
        format => format,
    }
}
