//! A CD/DVD drive: SCSI commands in ATA packets (ATA8-ACS, section 7.21).

use std::sync::Arc;

use vireo_vmconfig::DiskDevice;

use super::drive::{Drive, DriveState, FAILED, Outcome, READY};
use super::fis::Shadow;
use super::identify;
use super::slot::Command;
use super::taskfile::{Protocol, Taskfile};
use crate::block::ImageError;
use crate::config::{Disk, DiskSerial, LaneStall};
use crate::memory::{GuestMemory, Segments};
use crate::scsi::{Buffers, Unit};
use crate::state::SectionError;

const PACKET: u8 = 0xa0;
const IDENTIFY_PACKET: u8 = 0xa1;
const DEVICE_RESET: u8 = 0x08;
const SET_FEATURES: u8 = 0xef;
const SET_TRANSFER_MODE: u16 = 0x03;
/// Standby and idle immediate, power mode.
const POWER: [u8; 4] = [0xe0, 0xe1, 0xe5, 0xe6];
const ABORTED: u8 = 0x04;
/// The count register: the command is complete.
const COMPLETE: u16 = 3;
/// LBA and count registers of the packet device signature.
const SIGNATURE: (u64, u16) = (0xeb_1401, 1);

/// The drive.
pub(super) struct CdRom {
    unit: Unit,
    serial: DiskSerial,
}

impl CdRom {
    pub(super) fn open(disk: &Disk) -> Result<Self, ImageError> {
        Ok(Self { unit: Unit::new(disk, DiskDevice::CdRom)?, serial: *disk.id() })
    }

    fn packet(&mut self, memory: &GuestMemory, cdb: &[u8; 16], to_guest: Segments) -> (Shadow, u64) {
        let mut cdb = *cdb;
        // Packets have 12 bytes; the rest of the field is unused.
        cdb.iter_mut().skip(12).for_each(|byte| *byte = 0);
        let reply = self.unit.execute(memory, &cdb, Buffers { to_guest, ..Buffers::default() });
        let shadow = match reply.sense {
            None => Shadow { status: READY, count: COMPLETE, ..Shadow::default() },
            Some(sense) => Shadow {
                status: READY | FAILED,
                error: sense.key << 4 | ABORTED,
                count: COMPLETE,
                ..Shadow::default()
            },
        };
        (shadow, reply.transferred)
    }
}

impl Drive for CdRom {
    fn stall(&self) -> &Arc<LaneStall> {
        self.unit.stall()
    }

    fn ready(&self) -> Shadow {
        let (lba, count) = SIGNATURE;
        Shadow { status: 0, error: 1, lba, count, device: 0 }
    }

    fn reset(&mut self) {
        self.unit.reset();
    }

    fn flush_now(&mut self) -> bool {
        self.unit.flush_now()
    }

    fn save(&self) -> DriveState {
        DriveState::CdRom(self.unit.save())
    }

    fn load(&mut self, state: DriveState) -> Result<(), SectionError> {
        match state {
            DriveState::CdRom(unit) => self.unit.load(unit),
            DriveState::Disk { .. } => Err(SectionError::Invalid("it is the state of a disk")),
        }
    }

    fn execute(&mut self, memory: &GuestMemory, command: Command) -> Outcome {
        let Command { taskfile, packet, data } = command;
        let plain = |shadow, transferred| Outcome { shadow, protocol: Protocol::Plain, transferred };
        let good = Shadow { status: READY, device: taskfile.device, ..Shadow::default() };
        match (taskfile, packet) {
            (Taskfile { command: PACKET, .. }, Some(cdb)) => {
                let (shadow, transferred) = self.packet(memory, &cdb, data);
                plain(shadow, transferred)
            }
            (Taskfile { command: IDENTIFY_PACKET, .. }, None) => {
                match data.write(memory, &identify::cdrom(&self.serial)) {
                    Ok(()) => Outcome { shadow: good, protocol: Protocol::PioIn, transferred: 512 },
                    Err(_) => plain(aborted(self.ready(), false), 0),
                }
            }
            (Taskfile { command: DEVICE_RESET, .. }, None) => {
                self.reset();
                plain(self.ready(), 0)
            }
            (Taskfile { command: SET_FEATURES, features: SET_TRANSFER_MODE, .. }, None) => plain(good, 0),
            (Taskfile { command, .. }, None) if POWER.contains(&command) => {
                plain(Shadow { count: 0xff, ..good }, 0)
            }
            // IDENTIFY and READ SECTORS leave the signature: so a driver knows.
            (Taskfile { command, .. }, _) => plain(aborted(self.ready(), matches!(command, 0xec | 0x20)), 0),
        }
    }
}

fn aborted(signature: Shadow, show: bool) -> Shadow {
    let registers = if show { signature } else { Shadow::default() };
    Shadow { status: READY | FAILED, error: ABORTED, ..registers }
}
