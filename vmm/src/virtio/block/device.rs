use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};

use super::super::{
    Chain, ChainError, Device, DeviceInfo, DeviceState, Finished, GuestMemory, Lane, Pending, Queues,
    RingError, Segments, VirtQueue,
};
use super::config::{BlockConfig, CACHE_FEATURES};
use super::flight::{Flight, Landed, Started};
use super::request::{InvalidRequest, Limits, Operation, Range, Request};
use crate::block::engine::ImageFile;
use crate::block::{self, Backend, ImageError};
use crate::config::{Disk, DiskCounters, DiskImage, DiskSerial, DiskStall, Stalls};
use crate::state::SectionError;

/// Section 5.
const DEVICE_ID: u16 = 2;
const QUEUE_SIZE: u16 = 256;
/// What is left of a queue's worth of buffers beside the header and the status.
pub(super) const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;

const STATUS_OK: u8 = 0;
const STATUS_IOERR: u8 = 1;
const STATUS_UNSUPP: u8 = 2;

/// How many requests are begun before the worker looks at everything else.
const BUDGET: usize = 256;

/// A disk.
pub struct Block {
    backend: Box<dyn Backend>,
    limits: Limits,
    serial: DiskSerial,
    stall: Arc<DiskStall>,
    counters: Arc<DiskCounters>,
    config: Arc<BlockConfig>,
    /// The disk has a cache that its driver may know of.
    has_cache: bool,
    /// The cache was on since the queue was last served.
    was_write_back: bool,
    parallel: Parallel,
    /// Requests wait in the queue because as many as possible are in flight.
    is_behind: bool,
    /// What was over while the function could not access memory: answered after the kick that comes when it can.
    unanswered: Vec<Landed>,
    /// When the device settled last, all that was written reached stable storage.
    is_flushed: bool,
}

/// How requests are carried out beside each other.
enum Parallel {
    /// Nothing was asked for yet.
    Unused(Vec<File>),
    Flight(Flight),
    /// The host has no means: one request at a time.
    Impossible,
}

impl Block {
    /// Opens the image of `disk` on file descriptors of its own.
    pub fn new(disk: &Disk) -> Result<Self, ImageError> {
        let backend = block::open(disk, disk.is_read_only())?;
        let sectors = backend.sectors();
        let config = Arc::new(BlockConfig::new(sectors, !disk.is_write_through()));
        if let DiskImage::Raw(file) = disk.image() {
            let file = file.try_clone().map_err(ImageError::Open)?;
            let config = config.clone();
            disk.growth().on_check(move || match block::sectors_of(&file) {
                Ok(sectors) => config.grow(sectors),
                Err(error) => tracing::warn!(%error, "the size of a disk image is unknown"),
            });
        }
        Ok(Self {
            backend,
            limits: Limits { sectors, read_only: disk.is_read_only() },
            serial: *disk.id(),
            stall: disk.stall().clone(),
            counters: disk.counters().clone(),
            config,
            has_cache: !disk.is_write_through(),
            was_write_back: false,
            parallel: Parallel::Unused(block::files(disk).map_err(ImageError::Open)?),
            is_behind: false,
            unanswered: Vec::new(),
            is_flushed: true,
        })
    }

    /// Requests beside each other are this engine's.
    #[cfg(test)]
    pub(super) fn with_engine(self, engine: Box<dyn block::engine::Engine>) -> Self {
        Self { parallel: Parallel::Flight(Flight::on(engine)), ..self }
    }

    /// What carries out requests beside each other; made when it is first needed, on the thread that uses it.
    fn flight(&mut self, memory: &GuestMemory) -> Option<&mut Flight> {
        if let Parallel::Unused(files) = &mut self.parallel {
            self.parallel = match Flight::new(std::mem::take(files), memory) {
                Ok(flight) => Parallel::Flight(flight),
                Err(error) => {
                    tracing::warn!(%error, "a disk serves one request at a time");
                    Parallel::Impossible
                }
            };
        }
        self.in_flight()
    }

    fn in_flight(&mut self) -> Option<&mut Flight> {
        match &mut self.parallel {
            Parallel::Flight(flight) => Some(flight),
            Parallel::Unused(_) | Parallel::Impossible => None,
        }
    }

    fn is_full(&mut self) -> bool {
        self.in_flight().is_some_and(|flight| flight.is_full())
    }

    fn is_idle(&mut self) -> bool {
        self.in_flight().is_none_or(|flight| flight.is_empty())
    }

    /// Takes requests from the queue as long as there are any, and room.
    fn serve(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        queue.begin()?;
        self.follow_cache_mode(queue)?;
        let unanswered = std::mem::take(&mut self.unanswered);
        self.answer_all(queue, unanswered)?;
        self.is_behind = false;
        for _ in 0..BUDGET {
            if self.is_full() {
                self.land(queue)?;
                // What was over at once has made room; where nothing was, the end of one has it go on here.
                if self.is_full() {
                    self.is_behind = true;
                    return Ok(());
                }
            }
            let Some(super::super::Request { pending, chain }) = queue.pop()? else {
                return self.land(queue);
            };
            self.accept(queue, pending, chain)?;
        }
        queue.again();
        self.land(queue)
    }

    /// A driver that switched the cache off sends no flushes any more, so that what it wrote before is flushed.
    fn follow_cache_mode(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        let before = std::mem::replace(&mut self.was_write_back, self.config.is_write_back());
        if before && !self.was_write_back {
            self.land_all(queue)?;
            self.backend.flush_now();
        }
        Ok(())
    }

    /// A driver that knows of a larger capacity may use it.
    fn follow_size(&mut self) {
        let sectors = self.config.sectors();
        if sectors == self.limits.sectors {
            return;
        }
        if sectors > self.backend.sectors()
            && let Err(error) = self.backend.grow(sectors)
        {
            tracing::error!(%error, "what a disk image has grown by cannot be used");
            return;
        }
        self.limits.sectors = sectors;
    }

    /// Begins a request, or carries it out.
    fn accept(
        &mut self,
        queue: &mut VirtQueue,
        pending: Pending,
        chain: Result<Chain, ChainError>,
    ) -> Result<(), RingError> {
        self.follow_size();
        let request = match chain {
            Ok(chain) => Request::parse(queue.memory(), chain, self.limits),
            Err(error) => {
                tracing::debug!(%error, "invalid descriptor chain");
                None
            }
        };
        let Some(Request { status, data, operation }) = request else { return queue.push(pending.finish(0)) };
        let operation = match operation {
            Ok(operation) => operation,
            Err(invalid) => {
                let status_byte = match invalid {
                    InvalidRequest::IoError => STATUS_IOERR,
                    InvalidRequest::Unsupported => STATUS_UNSUPP,
                };
                return queue.push(answer(queue.memory(), pending, &status, data, status_byte));
            }
        };
        let started = Started { pending, status, data, operation, since: Instant::now() };
        let Some(started) = self.begin(queue, started)? else { return Ok(()) };
        // Its space may be another's afterwards, or it rewrites what is beside it: nothing may be on its way there.
        let alone = match started.operation {
            Operation::Discard(_) | Operation::WriteZeroes(_) => true,
            Operation::Write { .. } => self.backend.runs_alone(),
            Operation::Read { .. } | Operation::Flush | Operation::Id { .. } => false,
        };
        if alone {
            self.land_all(queue)?;
        }
        let mut done = self.perform_beside(queue.memory(), &started.operation);
        if done.is_err() && !self.is_idle() {
            self.land_all(queue)?;
            done = self.perform(queue.memory(), &started.operation);
        }
        queue.push(finish(queue.memory(), started, done))?;
        queue.publish()
    }

    /// Carries out an operation. While others are in flight, it is not held when the host cannot carry it out: a VM
    /// with a request that is held counts as one with nothing in flight.
    fn perform_beside(&mut self, memory: &GuestMemory, operation: &Operation) -> io::Result<()> {
        let patient = self.is_idle();
        self.backend.set_patient(patient);
        let done = self.perform(memory, operation);
        self.backend.set_patient(true);
        done
    }

    /// Begins a request beside those in flight; gives it back where that cannot be, or takes longer.
    fn begin(&mut self, queue: &mut VirtQueue, started: Started) -> Result<Option<Started>, RingError> {
        let durable = !self.config.is_write_back();
        self.was_write_back |= !durable;
        let alone = self.is_idle() && !queue.has_more()?;
        let place = match &started.operation {
            Operation::Read { to, .. } if to.is_empty() => None,
            Operation::Read { offset, to } => self.backend.locate(*offset, to, false),
            Operation::Write { from, .. } if from.is_empty() => None,
            // Into the host's cache: no detour is faster.
            Operation::Write { .. } if alone && !durable && !self.backend.runs_alone() => None,
            Operation::Write { offset, from } => self.backend.locate(*offset, from, true),
            Operation::Flush if self.backend.prepare_flush() => Some((ImageFile::Image, 0)),
            Operation::Flush | Operation::Id { .. } | Operation::Discard(_) | Operation::WriteZeroes(_) => {
                None
            }
        };
        let (Some(place), Some(flight)) = (place, self.flight(queue.memory())) else {
            return Ok(Some(started));
        };
        Ok(flight.begin(started, place, durable).err())
    }

    /// Begins what was prepared, and answers what is over.
    fn land(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        let Some(flight) = self.in_flight() else { return queue.publish() };
        flight.commit().map_err(RingError::Host)?;
        let landed = flight.landed();
        self.answer_all(queue, landed)
    }

    /// Answers all that is in flight, when it is over.
    fn land_all(&mut self, queue: &mut VirtQueue) -> Result<(), RingError> {
        let Some(flight) = self.in_flight() else { return Ok(()) };
        let landed = flight.land_all().map_err(RingError::Host)?;
        self.answer_all(queue, landed)
    }

    fn answer_all(&mut self, queue: &mut VirtQueue, landed: Vec<Landed>) -> Result<(), RingError> {
        if !queue.may_serve() {
            self.unanswered.extend(landed);
            return Ok(());
        }
        let mut failed = Vec::new();
        for Landed { started, moved } in landed {
            if self.is_complete(&started, moved) {
                let Started { pending, status, data, .. } = started;
                queue.push(answer(queue.memory(), pending, &status, data, STATUS_OK))?;
            } else {
                failed.push(started);
            }
        }
        queue.publish()?;
        if failed.is_empty() {
            return Ok(());
        }
        // What serves one request at a time knows how to go on after an error; nothing else runs meanwhile, since it
        // may hold the request until the host can carry it out.
        let others = self.in_flight().map(Flight::land_all).transpose().map_err(RingError::Host)?;
        for started in failed {
            let done = self.perform(queue.memory(), &started.operation);
            queue.push(finish(queue.memory(), started, done))?;
        }
        self.answer_all(queue, others.unwrap_or_default())
    }

    /// Whether the operation of a request did all of it; counts it then.
    fn is_complete(&mut self, started: &Started, moved: io::Result<u64>) -> bool {
        let (counter, len) = match &started.operation {
            Operation::Read { to, .. } => (&self.counters.read, to.len()),
            Operation::Write { from, .. } => (&self.counters.written, from.len()),
            _ => (&self.counters.flushed, 0),
        };
        match moved {
            Ok(moved) if moved == len => {
                counter.count(len, started.since.elapsed());
                true
            }
            Ok(_) => false,
            Err(error) => {
                if matches!(started.operation, Operation::Flush) {
                    self.backend.flush_failed(&error);
                }
                false
            }
        }
    }

    /// Carries out an operation while nothing else is served.
    fn perform(&mut self, memory: &GuestMemory, operation: &Operation) -> io::Result<()> {
        let changed = match operation {
            Operation::Read { offset, to } => {
                self.backend.read(memory, to, *offset)?;
                false
            }
            Operation::Write { offset, from } => {
                self.backend.write(memory, from, *offset)?;
                true
            }
            Operation::Flush => {
                self.backend.flush()?;
                false
            }
            Operation::Id { to } => {
                let mut to = to.clone();
                let id = self.serial.as_bytes();
                let count = to.len().min(20);
                if let (Some(to), Some(id)) =
                    (to.take_front(count), id.get(..usize::try_from(count).unwrap_or(0)))
                {
                    to.write(memory, id).map_err(io::Error::other)?;
                }
                false
            }
            Operation::Discard(ranges) => {
                for Range { offset, len, .. } in ranges {
                    self.backend.discard(*offset, *len)?;
                }
                false
            }
            Operation::WriteZeroes(ranges) => {
                for Range { offset, len, unmap } in ranges {
                    self.backend.write_zeroes(*offset, *len, *unmap)?;
                }
                true
            }
        };
        if changed && !self.config.is_write_back() { self.backend.flush() } else { Ok(()) }
    }
}

impl Device for Block {
    fn info(&self) -> DeviceInfo {
        let mut features =
            1 << VIRTIO_BLK_F_SEG_MAX | 1 << VIRTIO_BLK_F_BLK_SIZE | 1 << VIRTIO_BLK_F_TOPOLOGY;
        features |= if self.limits.read_only {
            1 << VIRTIO_BLK_F_RO
        } else {
            1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES
        };
        if self.has_cache {
            features |= CACHE_FEATURES;
        }
        DeviceInfo {
            name: "block",
            id: DEVICE_ID,
            class: 0x01_00_00,
            features,
            queues: vec![QUEUE_SIZE],
            config: self.config.clone(),
            state: DeviceState::Section(self.config.clone()),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for Block {
    fn stalls(&self) -> Stalls {
        Stalls(vec![self.stall.clone()])
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        self.serve(queues.get(queue)?)
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        match &self.parallel {
            Parallel::Flight(flight) => Some(flight.source()),
            Parallel::Unused(_) | Parallel::Impossible => None,
        }
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let queue = queues.get(0)?;
        self.land(queue)?;
        if self.is_behind { self.serve(queue) } else { Ok(()) }
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.land_all(queues.get(0)?)?;
        // A VM that is saved finds on the disk what it has written, also where the host was switched off in between.
        self.is_flushed = self.limits.read_only || self.backend.flush_now();
        Ok(())
    }

    fn save(&self) -> Result<Vec<u8>, SectionError> {
        if self.is_flushed {
            Ok(Vec::new())
        } else {
            Err(SectionError::Unsavable("the host cannot flush the disk"))
        }
    }

    fn deactivate(&mut self) {
        // The driver takes its buffers back: the requests are not answered.
        self.unanswered.clear();
        self.was_write_back = false;
        if let Some(flight) = self.in_flight()
            && let Err(error) = flight.land_all()
        {
            tracing::error!(%error, "requests of a disk cannot be waited for");
            self.parallel = Parallel::Impossible;
        }
    }
}

/// Answers a request that was carried out.
fn finish(memory: &GuestMemory, started: Started, done: io::Result<()>) -> Finished {
    let outcome = match done {
        Ok(()) => STATUS_OK,
        Err(error) => {
            tracing::warn!(%error, "a disk request failed");
            STATUS_IOERR
        }
    };
    answer(memory, started.pending, &started.status, started.data, outcome)
}

/// Writes the status of a request.
fn answer(memory: &GuestMemory, pending: Pending, status: &Segments, data: u64, outcome: u8) -> Finished {
    if let Err(error) = status.write(memory, &[outcome]) {
        tracing::debug!(%error, "a status byte could not be written");
    }
    pending.finish(u32::try_from(data).unwrap_or(u32::MAX).saturating_add(1))
}
