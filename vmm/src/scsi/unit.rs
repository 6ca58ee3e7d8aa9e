use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vireo_vmconfig::DiskDevice;

use super::command::Command;
use super::{Cdb, Sense, cdrom, disk, inquiry};
use crate::block::engine::ImageFile;
use crate::block::{self, Backend, ImageError, SECTOR};
use crate::config::{CdDrive, Disk, DiskCounters, DiskImage, DiskSerial, LaneStall};
use crate::memory::{GuestMemory, Segments};
use crate::state::SectionError;

/// The buffers that come with a command.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// For data to the guest.
    pub(crate) to_guest: Segments,
    /// With data from the guest.
    pub(crate) from_guest: Segments,
}

/// What came of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// Why it failed, if it did.
    pub(crate) sense: Option<Sense>,
    /// Bytes that went either way.
    pub(crate) transferred: u64,
}

/// The bytes of a read or a write.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Their offset on the medium.
    pub(super) at: u64,
    pub(crate) write: bool,
    /// They are on stable storage when it is over.
    pub(crate) durable: bool,
    pub(crate) bytes: Segments,
}

/// A transfer, and where its bytes are.
#[derive(Debug)]
pub(crate) struct Located {
    pub(crate) file: ImageFile,
    /// Of the first byte, in the file.
    pub(crate) offset: u64,
    pub(crate) transfer: Transfer,
}

/// The state of a logical unit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UnitState {
    sectors: u64,
    sense: Sense,
    tray: cdrom::Tray,
}

/// A logical unit.
pub(crate) struct Unit {
    pub(super) kind: DiskDevice,
    pub(super) image: Box<dyn Backend>,
    pub(super) read_only: bool,
    pub(super) write_through: bool,
    pub(super) serial: DiskSerial,
    stall: Arc<LaneStall>,
    counters: Arc<DiskCounters>,
    pub(super) tray: cdrom::Tray,
    /// What the medium is in, where that changes while the VM runs, and how often it had changed when the guest saw it last.
    drive: Option<(Arc<CdDrive>, u64)>,
    /// The guest is to be notified of another medium, by a unit attention.
    medium_changed: bool,
    /// Of the last command, for a transport that does not carry it by itself.
    sense: Sense,
}

impl Unit {
    /// Opens the image of `disk` on file descriptors of its own.
    pub(crate) fn new(disk: &Disk, kind: DiskDevice) -> Result<Self, ImageError> {
        let read_only = disk.is_read_only() || kind == DiskDevice::CdRom;
        let block::Opened { backend, stall } = block::open(disk, read_only)?;
        Ok(Self {
            kind,
            image: backend,
            read_only,
            write_through: disk.is_write_through(),
            serial: *disk.id(),
            stall,
            counters: disk.counters().clone(),
            tray: cdrom::Tray::default(),
            drive: match disk.image() {
                DiskImage::Drive(drive) => {
                    // The guest of before may have locked it.
                    drive.set_locked(false);
                    Some((drive.clone(), drive.changes()))
                }
                DiskImage::Raw(_) | DiskImage::Qcow2 { .. } => None,
            },
            medium_changed: false,
            sense: Sense::NONE,
        })
    }

    /// Where its requests may be held.
    pub(crate) fn stall(&self) -> &Arc<LaneStall> {
        &self.stall
    }

    /// What was written is on stable storage, if the host can do that now.
    pub(crate) fn flush_now(&mut self) -> bool {
        self.read_only || self.image.flush_now()
    }

    /// The state of the unit with its size, which does not change.
    pub(crate) fn save(&self) -> UnitState {
        UnitState { sectors: self.image.sectors(), sense: self.sense, tray: self.tray.clone() }
    }

    /// Takes such a state over.
    pub(crate) fn load(&mut self, state: UnitState) -> Result<(), SectionError> {
        if state.sectors != self.image.sectors() {
            return Err(SectionError::Invalid("the drive has another size"));
        }
        (self.sense, self.tray) = (state.sense, state.tray);
        self.set_locked(self.tray.is_locked());
        Ok(())
    }

    /// Bytes of a block.
    pub(super) fn block_size(&self) -> u64 {
        match self.kind {
            DiskDevice::Disk => SECTOR,
            DiskDevice::CdRom => 2048,
        }
    }

    /// How many whole blocks the medium has.
    pub(super) fn blocks(&self) -> u64 {
        self.image.sectors() / (self.block_size() / SECTOR)
    }

    /// What the transport or a task management function reset: nothing but what is on the way.
    pub(crate) fn reset(&mut self) {
        self.sense = Sense::NONE;
        self.set_locked(false);
    }

    /// The guest prevents the removal of the medium, or no longer does.
    pub(super) fn set_locked(&mut self, locked: bool) {
        self.tray.set_locked(locked);
        if let Some((drive, _)) = &self.drive {
            drive.set_locked(locked);
        }
    }

    /// Whether the host would like the medium back. True once for each time that it does.
    pub(super) fn take_eject_request(&self) -> bool {
        self.drive.as_ref().is_some_and(|(drive, _)| drive.take_eject_request())
    }

    /// Notices that the medium was changed.
    fn follow_drive(&mut self) {
        let Some((drive, seen)) = &mut self.drive else { return };
        let changes = drive.changes();
        if *seen == changes {
            return;
        }
        *seen = changes;
        self.medium_changed = drive.has_medium();
        self.tray.changed(self.medium_changed);
    }

    /// A unit attention, before the first command that can report it.
    fn attention(&mut self, command: Command) -> Result<Command, Sense> {
        match command {
            Command::Inquiry { .. }
            | Command::RequestSense { .. }
            | Command::ReportLuns { .. }
            | Command::EventStatus { .. } => Ok(command),
            _ if std::mem::take(&mut self.medium_changed) => Err(Sense::MEDIUM_CHANGED),
            _ => Ok(command),
        }
    }

    /// What a command moves, where its bytes are in one file as they are, so that it can be carried out beside others. The
    /// buffers come back where only [`Self::execute`] can do it.
    ///
    /// # Errors
    /// With the buffers. Nothing has changed.
    pub(crate) fn locate(&mut self, cdb: &Cdb, buffers: Buffers) -> Result<Located, Buffers> {
        // What is in a drive may be another medium at any time, and a tray may be open.
        if self.drive.is_some() || self.ready().is_err() {
            return Err(buffers);
        }
        let (lba, blocks, write) = match Command::parse(cdb) {
            Ok(Command::Read { lba, blocks }) => (lba, blocks, false),
            // One past the cache needs what was written before it to be there, too: the tables of an image.
            Ok(Command::Write { lba, blocks, stable })
                if self.kind == DiskDevice::Disk && !self.read_only && (!stable || self.write_through) =>
            {
                (lba, blocks, true)
            }
            _ => return Err(buffers),
        };
        let Ok((at, len)) = self.range(lba, blocks) else { return Err(buffers) };
        let bytes = if write { &buffers.from_guest } else { &buffers.to_guest };
        if len == 0 || bytes.len() != len {
            return Err(buffers);
        }
        let Some((file, offset)) = self.image.locate(at, bytes, write) else { return Err(buffers) };
        let Buffers { to_guest, from_guest } = buffers;
        let bytes = if write { from_guest } else { to_guest };
        let durable = write && self.write_through;
        Ok(Located { file, offset, transfer: Transfer { at, write, durable, bytes } })
    }

    /// Whether a write that is carried out by itself is as fast: it goes into the host's cache.
    pub(crate) fn writes_at_once(&self, transfer: &Transfer) -> bool {
        transfer.write && !transfer.durable && !self.image.runs_alone()
    }

    /// A transfer that was carried out beside others moved all of its bytes.
    pub(crate) fn transferred(&mut self, transfer: &Transfer, took: Duration) -> Reply {
        let counter = if transfer.write { &self.counters.written } else { &self.counters.read };
        counter.count(transfer.bytes.len(), took);
        self.reply(Ok(transfer.bytes.len()))
    }

    /// Carries out a transfer by itself, which knows how to go on after an error.
    pub(crate) fn transfer(&mut self, memory: &GuestMemory, transfer: &Transfer) -> Reply {
        let outcome = self.perform_transfer(memory, transfer);
        self.reply(outcome)
    }

    /// Answers with how many bytes were moved.
    pub(super) fn perform_transfer(
        &mut self,
        memory: &GuestMemory,
        Transfer { at, write, durable, bytes }: &Transfer,
    ) -> Result<u64, Sense> {
        let done = match *write {
            true => self.image.write(memory, bytes, *at),
            false => self.image.read(memory, bytes, *at),
        };
        let done = done.and_then(|()| if *durable { self.image.flush() } else { Ok(()) });
        done.map(|()| bytes.len()).map_err(|error| {
            tracing::warn!(%error, at, write, "a transfer failed");
            if *write { Sense::WRITE_ERROR } else { Sense::READ_ERROR }
        })
    }

    /// Carries out one command.
    pub(crate) fn execute(&mut self, memory: &GuestMemory, cdb: &Cdb, buffers: Buffers) -> Reply {
        self.follow_drive();
        let outcome = Command::parse(cdb)
            .and_then(|command| self.attention(command))
            .and_then(|command| self.perform(memory, command, buffers));
        if let Err(sense) = outcome {
            tracing::trace!(?sense, opcode = cdb[0], "SCSI command failed");
        }
        self.reply(outcome)
    }

    /// The reply to a command; keeps its sense data.
    fn reply(&mut self, outcome: Result<u64, Sense>) -> Reply {
        let sense = outcome.err();
        self.sense = sense.unwrap_or(Sense::NONE);
        Reply { sense, transferred: outcome.unwrap_or(0) }
    }

    fn perform(&mut self, memory: &GuestMemory, command: Command, buffers: Buffers) -> Result<u64, Sense> {
        let to = &buffers.to_guest;
        match command {
            Command::TestUnitReady => self.ready().map(|()| 0),
            Command::RequestSense { len } => answer(memory, to, &self.sense.fixed(), len),
            Command::Inquiry { page: None, len } => answer(memory, to, &inquiry::standard(self.kind), len),
            Command::Inquiry { page: Some(page), len } => {
                answer(memory, to, &inquiry::page(self, page).ok_or(Sense::INVALID_FIELD)?, len)
            }
            // This unit and no other.
            Command::ReportLuns { len } => {
                answer(memory, to, &[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], len)
            }
            Command::Read { lba, blocks } => self.read(memory, (lba, blocks), buffers.to_guest),
            Command::ReadCapacity => {
                self.ready()?;
                let last = u32::try_from(self.blocks().saturating_sub(1)).unwrap_or(u32::MAX);
                let size = u32::try_from(self.block_size()).unwrap_or(0);
                answer(memory, to, &[last.to_be_bytes(), size.to_be_bytes()].concat(), 8)
            }
            Command::Verify { lba, blocks } => {
                self.ready()?;
                self.range(lba, blocks).map(|_| 0)
            }
            command => match self.kind {
                DiskDevice::Disk => disk::perform(self, memory, command, buffers),
                DiskDevice::CdRom => cdrom::perform(self, memory, command, &buffers.to_guest),
            },
        }
    }

    fn read(
        &mut self,
        memory: &GuestMemory,
        (lba, blocks): (u64, u32),
        mut to: Segments,
    ) -> Result<u64, Sense> {
        self.ready()?;
        let (offset, len) = self.range(lba, blocks)?;
        let len = len.min(to.len());
        let bytes = to.take_front(len).ok_or(Sense::TRANSFER)?;
        self.perform_transfer(memory, &Transfer { at: offset, write: false, durable: false, bytes })
    }

    /// Offset and length in bytes of blocks that are on the medium.
    pub(super) fn range(&self, lba: u64, blocks: u32) -> Result<(u64, u64), Sense> {
        let end = lba.checked_add(blocks.into()).ok_or(Sense::OUT_OF_RANGE)?;
        if end > self.blocks() {
            return Err(Sense::OUT_OF_RANGE);
        }
        let size = self.block_size();
        Ok((lba.saturating_mul(size), u64::from(blocks).saturating_mul(size)))
    }

    /// Whether there is a medium.
    pub(super) fn ready(&self) -> Result<(), Sense> {
        if self.has_medium() && !self.tray.is_open() { Ok(()) } else { Err(Sense::NO_MEDIUM) }
    }

    /// Whether there is one in the drive, also where its tray is open.
    pub(super) fn has_medium(&self) -> bool {
        self.drive.as_ref().is_none_or(|(drive, _)| drive.has_medium())
    }
}

/// Copies a reply out, as far as the guest has room for it.
pub(super) fn answer(memory: &GuestMemory, to: &Segments, reply: &[u8], len: usize) -> Result<u64, Sense> {
    let room = usize::try_from(to.len()).unwrap_or(usize::MAX);
    let reply = reply.get(..len.min(room)).unwrap_or(reply);
    to.write(memory, reply).map_err(|_| Sense::TRANSFER)?;
    Ok(u64::try_from(reply.len()).unwrap_or(0))
}
