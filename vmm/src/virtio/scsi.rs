//! The SCSI controller (section 5.6): a target with one unit for each drive.
//!
//! Requests are carried out one after the other, so that at the time of a task management function none is on the
//! way. Drives do not come or go: no event is ever reported.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use vireo_vmconfig::DiskDevice;

use super::{
    Chain, ChainError, Device, DeviceInfo, DeviceState, Finished, GuestMemory, Lane, Pending, Queues,
    RingError, Segments,
};
use crate::block::ImageError;
use crate::config::{Disk, Stalls};
use crate::scsi::{Buffers, Sense, Unit, UnitState};
use crate::state::SectionError;

/// Section 5.
const DEVICE_ID: u16 = 8;
const QUEUE_SIZE: u16 = 256;
const CONTROL: usize = 0;
const EVENTS: usize = 1;
/// How many targets there can be: one byte of the address.
pub const TARGETS: usize = crate::config::SCSI_TARGETS;
/// Buffers of a request beside its header and its response.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// 32 MiB in one request.
const MAX_SECTORS: u32 = 0xffff;
const COMMANDS: u32 = 128;
const SENSE_SIZE: u32 = 96;
const CDB_SIZE: u32 = 32;
const EVENT_SIZE: u32 = 16;
/// Of a request: address, id, attributes and command block.
const REQUEST: u64 = 51;
const RESPONSE: u64 = 12 + SENSE_SIZE as u64;

// Responses (section 5.6.6.1).
const OK: u8 = 0;
const BAD_TARGET: u8 = 3;
const FAILURE: u8 = 9;
const REJECTED: u8 = 11;
const CHECK_CONDITION: u8 = 2;
const GOOD: u8 = 0;

// Of the control queue (sections 5.6.6.2 and 5.6.6.3).
const TASK_MANAGEMENT: u32 = 0;
const QUERY: u32 = 1;
const SUBSCRIBE: u32 = 2;
const RESETS: [u32; 3] = [4, 5, 6];
const ABORTS: [u32; 5] = [0, 1, 2, 7, 8];

/// The controller.
pub struct Scsi {
    units: Vec<Unit>,
    /// When it settled last, all that was written reached stable storage.
    are_flushed: bool,
}

/// What a driver addresses.
enum Addressed {
    Unit(usize),
    /// A target that is there, and no unit of it.
    NoUnit,
    NoTarget,
}

impl Scsi {
    /// Opens the images of the drives, at most [`TARGETS`]; their index is their target. The number of the drive that
    /// cannot be used comes with the error.
    pub fn new(drives: &[(&Disk, DiskDevice)]) -> Result<Self, (usize, ImageError)> {
        let unit = |(number, (disk, device)): (usize, &(&Disk, DiskDevice))| {
            Unit::new(disk, *device).map_err(|error| (number, error))
        };
        let units = drives.iter().take(TARGETS).enumerate().map(unit).collect::<Result<_, _>>()?;
        Ok(Self { units, are_flushed: true })
    }

    /// Section 5.6.6.1: 1, target, and the unit in one of the two single-level formats.
    fn addressed(&self, lun: [u8; 8]) -> Addressed {
        let target = usize::from(lun[1]);
        match lun {
            [1, ..] if target >= self.units.len() => Addressed::NoTarget,
            [1, _, 0 | 0x40, 0, ..] => Addressed::Unit(target),
            [1, ..] => Addressed::NoUnit,
            _ => Addressed::NoTarget,
        }
    }

    fn request(
        &mut self,
        memory: &GuestMemory,
        pending: Pending,
        chain: Result<Chain, ChainError>,
    ) -> Finished {
        let Ok(Chain { mut readable, mut writable }) = chain else { return pending.finish(0) };
        let (Some(header), Some(response)) = (readable.take_front(REQUEST), writable.take_front(RESPONSE))
        else {
            tracing::debug!("a SCSI request without room for header and response");
            return pending.finish(0);
        };
        let mut bytes = [0; 51];
        let into_guest = writable.len();
        let expected = into_guest.max(readable.len());
        let (sense, transferred, code) = match header.read(memory, &mut bytes) {
            Err(_) => (None, 0, FAILURE),
            Ok(()) => match self.addressed(first(&bytes)) {
                Addressed::NoTarget => (None, 0, BAD_TARGET),
                Addressed::NoUnit => (Some(Sense::NO_SUCH_UNIT), 0, OK),
                Addressed::Unit(unit) => {
                    let mut cdb = [0; 16];
                    cdb.iter_mut().zip(bytes.iter().skip(19)).for_each(|(to, from)| *to = *from);
                    let buffers = Buffers { to_guest: writable, from_guest: readable };
                    match self.units.get_mut(unit) {
                        None => (None, 0, BAD_TARGET),
                        Some(unit) => {
                            let reply = unit.execute(memory, &cdb, buffers);
                            (reply.sense, reply.transferred, OK)
                        }
                    }
                }
            },
        };
        let residual = u32::try_from(expected.saturating_sub(transferred)).unwrap_or(u32::MAX);
        if let Err(error) = response.write(memory, &answer(sense, residual, code)) {
            tracing::debug!(%error, "a SCSI response could not be written");
        }
        let written = RESPONSE.saturating_add(transferred.min(into_guest));
        pending.finish(u32::try_from(written).unwrap_or(u32::MAX))
    }

    fn control(
        &mut self,
        memory: &GuestMemory,
        pending: Pending,
        chain: Result<Chain, ChainError>,
    ) -> Finished {
        let Ok(Chain { readable, writable }) = chain else { return pending.finish(0) };
        let reply = self.control_reply(memory, &readable);
        let written = match writable.write(memory, &reply) {
            Ok(()) => u32::try_from(reply.len()).unwrap_or(0),
            Err(error) => {
                tracing::debug!(%error, "a SCSI control response could not be written");
                0
            }
        };
        pending.finish(written)
    }

    fn control_reply(&mut self, memory: &GuestMemory, request: &Segments) -> Vec<u8> {
        let mut bytes = [0; 16];
        if request.read(memory, &mut bytes).is_err() {
            return vec![FAILURE];
        }
        let [a, b, c, d, e, f, g, h, lun @ ..] = bytes;
        match u32::from_le_bytes([a, b, c, d]) {
            TASK_MANAGEMENT => vec![self.manage(u32::from_le_bytes([e, f, g, h]), lun)],
            // No asynchronous notification is ever given.
            QUERY | SUBSCRIBE => vec![0, 0, 0, 0, OK],
            _ => vec![FAILURE],
        }
    }

    fn manage(&mut self, function: u32, lun: [u8; 8]) -> u8 {
        match self.addressed(lun) {
            Addressed::NoTarget => BAD_TARGET,
            Addressed::NoUnit => REJECTED,
            Addressed::Unit(_) if ABORTS.contains(&function) => OK,
            Addressed::Unit(unit) if RESETS.contains(&function) => {
                self.units.get_mut(unit).into_iter().for_each(Unit::reset);
                OK
            }
            Addressed::Unit(_) => REJECTED,
        }
    }
}

impl Device for Scsi {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "scsi",
            id: DEVICE_ID,
            class: 0x01_00_00,
            features: 0,
            queues: vec![QUEUE_SIZE; 3],
            config: Arc::new(config(self.units.len())),
            state: DeviceState::None,
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for Scsi {
    fn settle(&mut self, _queues: &mut Queues) -> Result<(), RingError> {
        self.are_flushed = true;
        for unit in &mut self.units {
            self.are_flushed &= unit.flush_now();
        }
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>, SectionError> {
        if !self.are_flushed {
            return Err(SectionError::Unsavable("the host cannot flush a disk"));
        }
        let units: Vec<_> = self.units.iter().map(Unit::save).collect();
        postcard::to_allocvec(&units).map_err(SectionError::Encoding)
    }

    fn load(&mut self, state: &[u8]) -> Result<(), SectionError> {
        let units: Vec<UnitState> = postcard::from_bytes(state).map_err(SectionError::Encoding)?;
        if units.len() != self.units.len() {
            return Err(SectionError::Invalid("it has another number of drives"));
        }
        self.units.iter_mut().zip(units).try_for_each(|(unit, state)| unit.load(state))
    }

    fn stalls(&self) -> Stalls {
        Stalls(self.units.iter().map(|unit| unit.stall().clone()).collect())
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        match queue {
            CONTROL => {
                queues.get(queue)?.drain(|memory, pending, chain| self.control(memory, pending, chain))
            }
            // Buffers for events stay with us.
            EVENTS => Ok(()),
            _ => queues.get(queue)?.drain(|memory, pending, chain| self.request(memory, pending, chain)),
        }
    }
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

/// The response of a request: length of the sense data, residual, status and response, sense data.
fn answer(sense: Option<Sense>, residual: u32, code: u8) -> Vec<u8> {
    let fixed = sense.map(Sense::fixed);
    let len = u32::try_from(fixed.map_or(0, |sense| sense.len())).unwrap_or(0);
    let status = if sense.is_some() { CHECK_CONDITION } else { GOOD };
    let mut bytes = [&len.to_le_bytes()[..], &residual.to_le_bytes(), &[0, 0, status, code]].concat();
    bytes.extend(fixed.unwrap_or_default());
    bytes
}

/// The configuration space (section 5.6.4).
fn config(targets: usize) -> Vec<u8> {
    let last = u16::try_from(targets.saturating_sub(1)).unwrap_or(u16::MAX);
    let words = [1, SEG_MAX, MAX_SECTORS, COMMANDS, EVENT_SIZE, SENSE_SIZE, CDB_SIZE];
    let mut config: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    config.extend([0, 0]);
    config.extend(last.to_le_bytes());
    config.extend([0; 4]);
    config
}
