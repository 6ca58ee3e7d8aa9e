//! ATA commands of a driver (ACS-2, section 7), before they are checked against the disk.

/// A register FIS to the device (SATA 3.0, section 10.3.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taskfile {
    /// It is a command, not a change of the control register.
    pub(super) is_command: bool,
    pub(super) command: u8,
    pub(super) features: u16,
    /// 48 bits.
    pub(super) lba: u64,
    pub(super) count: u16,
    pub(super) device: u8,
    control: u8,
}

/// How data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// At once, or without data.
    Plain,
    /// To the host through PIO: the status is in the PIO setup FIS.
    PioIn,
    /// Queued, with this tag.
    Queued(u8),
}

/// A command that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read {
        lba: u64,
        sectors: u32,
    },
    Write {
        lba: u64,
        sectors: u32,
        stable: bool,
    },
    Verify {
        lba: u64,
        sectors: u32,
    },
    Flush,
    Identify,
    /// Data set management: this many blocks of ranges to trim.
    Trim {
        blocks: u16,
    },
    WriteCache(bool),
    Smart(Smart),
    /// General-purpose log: its number and page, and how many sectors of it.
    ReadLog {
        log: u8,
        page: u16,
        sectors: u16,
    },
    /// CHECK POWER MODE: always active.
    PowerMode,
    /// Nothing is to be done for it.
    Nothing,
}

/// Self-monitoring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Smart {
    Data,
    Thresholds,
    Status,
    Switch(bool),
}

/// The signature in the LBA registers of SMART commands.
pub(super) const SMART_SIGNATURE: u64 = 0xc2_4f00;
const LBA_MODE: u8 = 1 << 6;
const QUEUED_STABLE: u8 = 1 << 7;

impl Taskfile {
    pub(super) fn from_fis(fis: &[u8; 20]) -> Self {
        let word = |low, high| u16::from_le_bytes([low, high]);
        Self {
            is_command: fis[1] & 0x80 != 0,
            command: fis[2],
            features: word(fis[3], fis[11]),
            lba: u64::from_le_bytes([fis[4], fis[5], fis[6], fis[8], fis[9], fis[10], 0, 0]),
            count: word(fis[12], fis[13]),
            device: fis[7],
            control: fis[15],
        }
    }

    /// Whether the control register requests a reset.
    pub(super) fn is_software_reset(self) -> bool {
        self.control & 4 != 0
    }

    /// The command for a disk; `None` if there is none such, or a part of it that makes no sense.
    pub(super) fn parse(self) -> Option<(Operation, Protocol)> {
        use Operation as O;
        use Protocol::{PioIn, Plain, Queued};
        let [_, features_high] = self.features.to_le_bytes();
        let [feature, _] = self.features.to_le_bytes();
        let tag = self.count.to_le_bytes()[0] >> 3;
        Some(match self.command {
            0x20 | 0xc4 => (self.read(self.short()?), PioIn),
            0x24 | 0x29 => (self.read(self.long()?), PioIn),
            0xc8 => (self.read(self.short()?), Plain),
            0x25 => (self.read(self.long()?), Plain),
            0x60 => (self.read(self.queued()?), Queued(tag)),
            0x30 | 0xc5 | 0xca => (self.write(self.short()?, false), Plain),
            0x34 | 0x35 | 0x39 => (self.write(self.long()?, false), Plain),
            0x3d | 0xce => (self.write(self.long()?, true), Plain),
            0x61 => (self.write(self.queued()?, self.device & QUEUED_STABLE != 0), Queued(tag)),
            0x40 => (self.verify(self.short()?), Plain),
            0x42 => (self.verify(self.long()?), Plain),
            0xe7 | 0xea => (O::Flush, Plain),
            0xec => (O::Identify, PioIn),
            0x06 if feature == 1 && features_high == 0 => (O::Trim { blocks: self.count }, Plain),
            0xef => (self.set_features(feature)?, Plain),
            0xb0 if self.lba & 0xff_ff00 == SMART_SIGNATURE => self.smart(feature)?,
            0x2f => (self.log(), PioIn),
            0x47 => (self.log(), Plain),
            0xe5 => (O::PowerMode, Plain),
            // Idle and standby, immediate or not; SET MULTIPLE of what is offered; recalibrate.
            0xe0..=0xe3 | 0x10 => (O::Nothing, Plain),
            0xc6 if matches!(self.count & 0xff, 1 | 2 | 4 | 8 | 16) => (O::Nothing, Plain),
            _ => return None,
        })
    }

    fn read(self, (lba, sectors): (u64, u32)) -> Operation {
        Operation::Read { lba, sectors }
    }

    fn write(self, (lba, sectors): (u64, u32), stable: bool) -> Operation {
        Operation::Write { lba, sectors, stable }
    }

    fn verify(self, (lba, sectors): (u64, u32)) -> Operation {
        Operation::Verify { lba, sectors }
    }

    /// 28 bits of address and 8 of count. Cylinders, heads and sectors are not served.
    fn short(self) -> Option<(u64, u32)> {
        let lba = self.lba & 0xff_ffff | u64::from(self.device & 0xf) << 24;
        let sectors = if self.count & 0xff == 0 { 256 } else { u32::from(self.count & 0xff) };
        (self.device & LBA_MODE != 0).then_some((lba, sectors))
    }

    /// 48 bits of address and 16 of count.
    fn long(self) -> Option<(u64, u32)> {
        (self.device & LBA_MODE != 0).then_some((self.lba, or_all(self.count)))
    }

    fn queued(self) -> Option<(u64, u32)> {
        (self.device & LBA_MODE != 0).then_some((self.lba, or_all(self.features)))
    }

    fn set_features(self, feature: u8) -> Option<Operation> {
        match feature {
            0x02 => Some(Operation::WriteCache(true)),
            0x82 => Some(Operation::WriteCache(false)),
            // Transfer mode, and look-ahead: all the same here.
            0x03 | 0x55 | 0xaa => Some(Operation::Nothing),
            _ => None,
        }
    }

    fn smart(self, feature: u8) -> Option<(Operation, Protocol)> {
        let (smart, protocol) = match feature {
            0xd0 => (Smart::Data, Protocol::PioIn),
            0xd1 => (Smart::Thresholds, Protocol::PioIn),
            // Saving attributes: there are none to be saved.
            0xd2 | 0xd8 => (Smart::Switch(true), Protocol::Plain),
            0xd9 => (Smart::Switch(false), Protocol::Plain),
            0xda => (Smart::Status, Protocol::Plain),
            _ => return None,
        };
        Some((Operation::Smart(smart), protocol))
    }

    fn log(self) -> Operation {
        let [log, page_low, _, _, page_high, ..] = self.lba.to_le_bytes();
        Operation::ReadLog { log, page: u16::from_le_bytes([page_low, page_high]), sectors: self.count }
    }
}

fn or_all(count: u16) -> u32 {
    if count == 0 { 0x1_0000 } else { count.into() }
}
