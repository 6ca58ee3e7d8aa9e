//! What is at a port, and the ATA disk that carries out what [`super::taskfile`] understood.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fis::Shadow;
use super::identify;
use super::slot::Command;
use super::taskfile::{Operation, Protocol, SMART_SIGNATURE, Smart};
use crate::block::{self, Backend, ImageError, SECTOR};
use crate::config::{self, DiskSerial, LaneStall};
use crate::memory::{GuestMemory, Segments};
use crate::scsi::UnitState;
use crate::state::SectionError;

pub(super) const READY: u8 = 0x50;
pub(super) const FAILED: u8 = 0x01;
pub(super) const BUSY: u8 = 0x80;
pub(super) const DATA_REQUEST: u8 = 0x08;
const ABORTED: u8 = 0x04;
const NOT_FOUND: u8 = 0x10;
const UNCORRECTABLE: u8 = 0x40;
const ACTIVE: u16 = 0xff;
const NCQ_ERROR_LOG: u8 = 0x10;
/// A trim covers at most this many blocks of 64 ranges, as IDENTIFY reports.
pub(super) const TRIM_BLOCKS: u16 = 8;

/// What came of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) shadow: Shadow,
    pub(super) protocol: Protocol,
    /// Bytes.
    pub(super) transferred: u64,
}

/// What a driver sets of a drive.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum DriveState {
    /// Of a disk.
    Disk { sectors: u64, cached: bool, smart: bool, failed: Option<(u8, Shadow)> },
    /// Of a CD-ROM drive.
    CdRom(UnitState),
}

/// A drive, on its worker.
pub(super) trait Drive: Send {
    /// Where its requests may be held.
    fn stall(&self) -> &Arc<LaneStall>;
    /// The signature: register values after a reset that identify the kind of drive.
    fn ready(&self) -> Shadow;
    /// As after power-on.
    fn reset(&mut self);
    /// What was written is on stable storage, if the host can do that now.
    fn flush_now(&mut self) -> bool;
    /// What the driver has set, with the size of the medium.
    fn save(&self) -> DriveState;
    /// Takes such a state over.
    fn load(&mut self, state: DriveState) -> Result<(), SectionError>;
    /// Carries out a command.
    fn execute(&mut self, memory: &GuestMemory, command: Command) -> Outcome;
}

/// A disk.
pub(super) struct Disk {
    image: Box<dyn Backend>,
    read_only: bool,
    write_through: bool,
    serial: DiskSerial,
    stall: Arc<LaneStall>,
    /// The driver wants writes to be done when they are in the cache.
    cached: bool,
    smart: bool,
    /// The queued command that failed last, for the queued error log.
    failed: Option<(u8, Shadow)>,
}

/// Why a command failed: the error register.
struct Failure(u8);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        tracing::warn!(%error, "a disk request failed");
        Self(UNCORRECTABLE)
    }
}

impl Disk {
    pub(super) fn open(disk: &config::Disk) -> Result<Self, ImageError> {
        let block::Opened { backend: image, stall } = block::open(disk, disk.is_read_only())?;
        Ok(Self {
            image,
            read_only: disk.is_read_only(),
            write_through: disk.is_write_through(),
            serial: *disk.id(),
            stall,
            cached: !disk.is_write_through(),
            smart: true,
            failed: None,
        })
    }

    fn range(&self, lba: u64, sectors: u32) -> Result<(u64, u64), Failure> {
        let end = lba.checked_add(sectors.into()).filter(|end| *end <= self.image.sectors());
        end.ok_or(Failure(NOT_FOUND | ABORTED))?;
        Ok((lba.saturating_mul(SECTOR), u64::from(sectors) * SECTOR))
    }

    /// Transferred bytes; the count register where it reports something.
    fn perform(
        &mut self,
        memory: &GuestMemory,
        operation: Operation,
        mut data: Segments,
    ) -> Result<(u64, Option<u16>), Failure> {
        let plain = |bytes| Ok((bytes, None));
        match operation {
            Operation::Read { lba, sectors } => {
                let (offset, len) = self.range(lba, sectors)?;
                // The regions take all of it, or nothing is read.
                let to = data.take_front(len).ok_or(Failure(ABORTED))?;
                self.image.read(memory, &to, offset)?;
                plain(len)
            }
            Operation::Write { lba, sectors, stable } => {
                self.writable()?;
                let (offset, len) = self.range(lba, sectors)?;
                let from = data.take_front(len).ok_or(Failure(ABORTED))?;
                self.image.write(memory, &from, offset)?;
                if stable || !self.cached {
                    self.image.flush()?;
                }
                plain(len)
            }
            Operation::Verify { lba, sectors } => self.range(lba, sectors).and_then(|_| plain(0)),
            Operation::Flush => {
                self.image.flush()?;
                plain(0)
            }
            Operation::Identify => {
                let words = identify::disk(self.image.sectors(), &self.serial, self.cached, self.read_only);
                give(memory, &data, &words)
            }
            Operation::Trim { blocks } => self.trim(memory, data, blocks).and_then(plain),
            // Without a cache there is none to switch on.
            Operation::WriteCache(true) if self.write_through => Err(Failure(ABORTED)),
            Operation::WriteCache(on) => {
                self.cached = on;
                if !on {
                    self.image.flush()?;
                }
                plain(0)
            }
            Operation::Smart(Smart::Switch(on)) => {
                self.smart = on;
                plain(0)
            }
            Operation::Smart(_) if !self.smart => Err(Failure(ABORTED)),
            Operation::Smart(Smart::Status) => plain(0),
            Operation::Smart(Smart::Data | Smart::Thresholds) => give(memory, &data, &identify::smart()),
            Operation::ReadLog { log, page, sectors } => {
                let page = self.log(log, page, sectors).ok_or(Failure(ABORTED))?;
                give(memory, &data, &page)
            }
            Operation::PowerMode => Ok((0, Some(ACTIVE))),
            Operation::Nothing => plain(0),
        }
    }

    fn writable(&self) -> Result<(), Failure> {
        if self.read_only { Err(Failure(ABORTED | UNCORRECTABLE)) } else { Ok(()) }
    }

    /// Ranges of 6 bytes of address and 2 of length (ACS-2, section 7.10.3.2); those of length zero are none.
    fn trim(&mut self, memory: &GuestMemory, data: Segments, blocks: u16) -> Result<u64, Failure> {
        self.writable()?;
        let len = u64::from(blocks) * SECTOR;
        if blocks == 0 || blocks > TRIM_BLOCKS || data.len() < len {
            return Err(Failure(ABORTED));
        }
        let mut list = vec![0; usize::try_from(len).map_err(|_| Failure(ABORTED))?];
        data.read(memory, &mut list).map_err(|_| Failure(ABORTED))?;
        let (ranges, _) = list.as_chunks::<8>();
        let ranges = ranges.iter().map(|&[a, b, c, d, e, f, low, high]| {
            let lba = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
            self.range(lba, u16::from_le_bytes([low, high]).into())
        });
        // All are checked before anything is done.
        for (offset, len) in ranges.collect::<Result<Vec<_>, _>>()? {
            if len > 0 {
                self.image.discard(offset, len)?;
            }
        }
        Ok(len)
    }

    fn log(&mut self, log: u8, page: u16, sectors: u16) -> Option<[u8; 512]> {
        match (log, page, sectors) {
            (0, 0, 1) => Some(identify::log_directory(NCQ_ERROR_LOG)),
            (NCQ_ERROR_LOG, 0, 1) => Some(identify::ncq_error(self.failed.take())),
            _ => None,
        }
    }
}

impl Drive for Disk {
    fn stall(&self) -> &Arc<LaneStall> {
        &self.stall
    }

    fn ready(&self) -> Shadow {
        // The signature of a disk (ACS-2, section 7.9.4), and that its diagnostics passed.
        Shadow { status: READY, error: 1, lba: 1, count: 1, device: 0 }
    }

    fn reset(&mut self) {
        self.cached = !self.write_through;
        self.failed = None;
    }

    fn flush_now(&mut self) -> bool {
        self.read_only || self.image.flush_now()
    }

    fn save(&self) -> DriveState {
        let Self { cached, smart, failed, .. } = *self;
        DriveState::Disk { sectors: self.image.sectors(), cached, smart, failed }
    }

    fn load(&mut self, state: DriveState) -> Result<(), SectionError> {
        let DriveState::Disk { sectors, cached, smart, failed } = state else {
            return Err(SectionError::Invalid("it is the state of a CD-ROM drive"));
        };
        if sectors != self.image.sectors() {
            return Err(SectionError::Invalid("the disk has another size"));
        }
        self.cached = cached && !self.write_through;
        (self.smart, self.failed) = (smart, failed);
        Ok(())
    }

    fn execute(&mut self, memory: &GuestMemory, command: Command) -> Outcome {
        let Command { taskfile, packet, data } = command;
        let parsed = taskfile.parse().filter(|_| packet.is_none());
        let mut shadow = Shadow {
            status: READY,
            error: 0,
            lba: taskfile.lba,
            count: taskfile.count,
            device: taskfile.device,
        };
        let Some((operation, protocol)) = parsed else {
            tracing::debug!(command = taskfile.command, "ATA command failed");
            shadow = Shadow { status: READY | FAILED, error: ABORTED, ..shadow };
            return Outcome { shadow, protocol: Protocol::Plain, transferred: 0 };
        };
        let transferred = match self.perform(memory, operation, data) {
            Ok((bytes, count)) => {
                shadow.count = count.unwrap_or(shadow.count);
                if operation == Operation::Smart(Smart::Status) {
                    shadow.lba = SMART_SIGNATURE;
                }
                bytes
            }
            Err(Failure(error)) => {
                shadow = Shadow { status: READY | FAILED, error, ..shadow };
                if let Protocol::Queued(tag) = protocol {
                    self.failed = Some((tag, shadow));
                }
                0
            }
        };
        Outcome { shadow, protocol, transferred }
    }
}

/// Copies a sector out.
fn give(memory: &GuestMemory, to: &Segments, sector: &[u8; 512]) -> Result<(u64, Option<u16>), Failure> {
    to.write(memory, sector).map_err(|_| Failure(ABORTED))?;
    Ok((SECTOR, None))
}
