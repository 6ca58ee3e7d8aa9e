//! The SCSI controller (section 5.6): a target with one unit for each drive.
//!
//! Reads and writes of disks are carried out beside each other, everything else one after the other while none of them is on
//! the way; so is what a task management function asks for. Drives do not come or go: no event is ever reported.

#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use vireo_vmconfig::DiskDevice;

use super::queue::TURN;
use super::{
    Chain, ChainError, Device, DeviceInfo, DeviceState, Finished, GuestMemory, Lane, Pending, Queues,
    Request, RingError, Segments,
};
use crate::block::engine::FileOperation;
use crate::block::flight::{Landed, Parallel};
use crate::block::{self, ImageError};
use crate::config::{Disk, Stalls};
use crate::scsi::{Buffers, Located, Reply, Sense, Transfer, Unit, UnitState};
use crate::state::SectionError;

/// Section 5.
const DEVICE_ID: u16 = 8;
const QUEUE_SIZE: u16 = 256;
const CONTROL: usize = 0;
const EVENTS: usize = 1;
const REQUESTS: usize = 2;
/// How many requests are begun before the worker looks at everything else.
const BUDGET: usize = 256;
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
    /// The first of each unit's files, among those of the engine.
    first_files: Vec<usize>,
    parallel: Parallel<Started>,
    /// Requests wait in the queue because as many as possible are in flight.
    is_behind: bool,
    /// What was over while the function could not access memory: answered after the kick that comes when it can.
    unanswered: Vec<Landed<Started>>,
    /// When it settled last, all that was written reached stable storage.
    are_flushed: bool,
}

/// A request that was begun.
#[derive(Debug)]
struct Started {
    pending: Pending,
    unit: usize,
    transfer: Transfer,
    answer: Answer,
    since: Instant,
}

/// Where a request is answered.
#[derive(Debug)]
struct Answer {
    response: Segments,
    /// How many bytes the guest expects to be moved.
    expected: u64,
    /// How many it has room for.
    into_guest: u64,
}

/// What was taken from the request queue.
enum Taken {
    /// It is in flight.
    Begun,
    /// It is over.
    Over(Finished),
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
        let (mut files, mut first_files) = (Vec::new(), Vec::new());
        for (number, (disk, _)) in drives.iter().take(TARGETS).enumerate() {
            first_files.push(files.len());
            files.extend(block::files(disk).map_err(|error| (number, ImageError::Open(error)))?);
        }
        Ok(Self {
            units,
            first_files,
            parallel: Parallel::new(files),
            is_behind: false,
            unanswered: Vec::new(),
            are_flushed: true,
        })
    }

    /// Reads and writes beside each other are this engine's.
    #[cfg(test)]
    fn with_engine(self, engine: Box<dyn block::engine::Engine>) -> Self {
        Self { parallel: Parallel::on(engine), ..self }
    }

    /// Takes requests as long as there are any, and room.
    fn serve(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        queues.get(REQUESTS)?.begin()?;
        let unanswered = std::mem::take(&mut self.unanswered);
        self.answer_all(queues, unanswered)?;
        self.is_behind = false;
        let end = Instant::now() + TURN;
        for _ in 0..BUDGET {
            if self.parallel.is_full() {
                self.land(queues)?;
                // What was over at once has made room; where nothing was, the end of one has it go on here.
                if self.parallel.is_full() {
                    self.is_behind = true;
                    return Ok(());
                }
            }
            let Some(Request { pending, chain }) = queues.get(REQUESTS)?.pop()? else {
                return self.land(queues);
            };
            if let Taken::Over(finished) = self.request(queues, pending, chain)? {
                let queue = queues.get(REQUESTS)?;
                queue.push(finished)?;
                queue.publish()?;
                if Instant::now() >= end {
                    break;
                }
            }
        }
        queues.get(REQUESTS)?.again();
        self.land(queues)
    }

    /// Begins what was prepared, and answers what is over.
    fn land(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let landed = self.parallel.landed().map_err(RingError::Host)?;
        self.answer_all(queues, landed)
    }

    /// Answers all that is in flight, when it is over.
    fn land_all(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let landed = self.parallel.land_all().map_err(RingError::Host)?;
        self.answer_all(queues, landed)
    }

    /// Answers requests that are over.
    fn answer_all(&mut self, queues: &mut Queues, landed: Vec<Landed<Started>>) -> Result<(), RingError> {
        if landed.is_empty() {
            return Ok(());
        }
        if !queues.may_serve() {
            self.unanswered.extend(landed);
            return Ok(());
        }
        let queue = queues.get(REQUESTS)?;
        let mut failed = Vec::new();
        for Landed { request: started, moved } in landed {
            let Started { pending, unit, transfer, answer, since } = started;
            match (moved, self.units.get_mut(unit)) {
                (Ok(moved), Some(unit)) if moved == transfer.bytes.len() => {
                    let reply = unit.transferred(&transfer, since.elapsed());
                    queue.push(answer.finish(queue.memory(), pending, reply, OK))?;
                }
                _ => failed.push(Started { pending, unit, transfer, answer, since }),
            }
        }
        queue.publish()?;
        if failed.is_empty() {
            return Ok(());
        }
        // Nothing else runs meanwhile: the drive may hold the request until the host can carry it out.
        let others = self.parallel.land_all().map_err(RingError::Host)?;
        for Started { pending, unit, transfer, answer, .. } in failed {
            let queue = queues.get(REQUESTS)?;
            let finished = match self.units.get_mut(unit) {
                Some(unit) => {
                    let reply = unit.transfer(queue.memory(), &transfer);
                    answer.finish(queue.memory(), pending, reply, OK)
                }
                None => pending.finish(0),
            };
            queue.push(finished)?;
        }
        queues.get(REQUESTS)?.publish()?;
        self.answer_all(queues, others)
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

    /// Begins a request, or carries it out.
    fn request(
        &mut self,
        queues: &mut Queues,
        pending: Pending,
        chain: Result<Chain, ChainError>,
    ) -> Result<Taken, RingError> {
        let queue = queues.get(REQUESTS)?;
        let memory = queue.memory().clone();
        let Ok(Chain { mut readable, mut writable }) = chain else {
            return Ok(Taken::Over(pending.finish(0)));
        };
        let (Some(header), Some(response)) = (readable.take_front(REQUEST), writable.take_front(RESPONSE))
        else {
            tracing::debug!("a SCSI request without room for header and response");
            return Ok(Taken::Over(pending.finish(0)));
        };
        let into_guest = writable.len();
        let answer = Answer { response, expected: into_guest.max(readable.len()), into_guest };
        let mut bytes = [0; 51];
        let (unit, sense, code) =
            match header.read(&memory, &mut bytes).map(|()| self.addressed(first(&bytes))) {
                Err(_) => (None, None, FAILURE),
                Ok(Addressed::NoTarget) => (None, None, BAD_TARGET),
                Ok(Addressed::NoUnit) => (None, Some(Sense::NO_SUCH_UNIT), OK),
                Ok(Addressed::Unit(unit)) => (Some(unit), None, OK),
            };
        let refused = Reply { sense, transferred: 0 };
        let Some(unit) = unit else {
            return Ok(Taken::Over(answer.finish(&memory, pending, refused, code)));
        };
        let mut cdb = [0; 16];
        cdb.iter_mut().zip(bytes.iter().skip(19)).for_each(|(to, from)| *to = *from);
        let buffers = Buffers { to_guest: writable, from_guest: readable };
        let alone = self.parallel.is_idle() && !queues.get(REQUESTS)?.has_more()?;
        let Some(target) = self.units.get_mut(unit) else {
            return Ok(Taken::Over(answer.finish(&memory, pending, refused, BAD_TARGET)));
        };
        let buffers = match target.locate(&cdb, buffers) {
            Err(buffers) => buffers,
            // No detour is faster.
            Ok(located) if alone && target.writes_at_once(&located.transfer) => {
                let reply = target.transfer(&memory, &located.transfer);
                return Ok(Taken::Over(answer.finish(&memory, pending, reply, OK)));
            }
            Ok(Located { file, offset, transfer }) => {
                let first = self.first_files.get(unit).copied().unwrap_or(usize::MAX);
                let started = Started { pending, unit, transfer, answer, since: Instant::now() };
                return self.begin(queues, started, first.saturating_add(file.index()), offset);
            }
        };
        self.land_all(queues)?;
        let reply = self.units.get_mut(unit).map_or(refused, |unit| unit.execute(&memory, &cdb, buffers));
        Ok(Taken::Over(answer.finish(&memory, pending, reply, OK)))
    }

    /// Begins a transfer beside others, or carries it out while there is none.
    fn begin(
        &mut self,
        queues: &mut Queues,
        started: Started,
        file: usize,
        offset: u64,
    ) -> Result<Taken, RingError> {
        let memory = queues.get(REQUESTS)?.memory().clone();
        let begun =
            self.parallel.begin(started, (file, &memory), |Started { transfer, .. }| match transfer.write {
                true => FileOperation::Write { offset, from: &transfer.bytes, durable: transfer.durable },
                false => FileOperation::Read { offset, to: &transfer.bytes },
            });
        let Err(Started { pending, unit, transfer, answer, .. }) = begun else { return Ok(Taken::Begun) };
        self.land_all(queues)?;
        let reply = match self.units.get_mut(unit) {
            Some(unit) => unit.transfer(&memory, &transfer),
            None => Reply { sense: None, transferred: 0 },
        };
        Ok(Taken::Over(answer.finish(&memory, pending, reply, OK)))
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
    fn gives_way(&self) -> bool {
        true
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.land_all(queues)?;
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
                // What may be asked for is over.
                if queues.get(REQUESTS).is_ok() {
                    self.land_all(queues)?;
                }
                queues.get(queue)?.drain(|memory, pending, chain| self.control(memory, pending, chain))
            }
            // Buffers for events stay with us.
            EVENTS => Ok(()),
            _ => self.serve(queues),
        }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.parallel.source()
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.land(queues)?;
        if self.is_behind && !self.parallel.is_full() { self.serve(queues) } else { Ok(()) }
    }

    fn deactivate(&mut self) {
        // The driver takes its buffers back: the requests are not answered.
        self.unanswered.clear();
        self.is_behind = false;
        self.parallel.abandon();
    }
}

impl Answer {
    /// Writes the response.
    fn finish(self, memory: &GuestMemory, pending: Pending, reply: Reply, code: u8) -> Finished {
        let Reply { sense, transferred } = reply;
        let residual = u32::try_from(self.expected.saturating_sub(transferred)).unwrap_or(u32::MAX);
        if let Err(error) = self.response.write(memory, &answer(sense, residual, code)) {
            tracing::debug!(%error, "a SCSI response could not be written");
        }
        let written = RESPONSE.saturating_add(transferred.min(self.into_guest));
        pending.finish(u32::try_from(written).unwrap_or(u32::MAX))
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
