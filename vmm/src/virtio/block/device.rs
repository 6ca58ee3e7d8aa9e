use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};

use super::super::queue::TURN;
use super::super::{
    Chain, ChainError, Device, DeviceInfo, DeviceState, Finished, GuestMemory, Lane, Pending, Queues,
    RingError, Segments,
};
use super::config::{BlockConfig, CACHE_FEATURES};
use super::flight::{Landed, Parallel, Started};
use super::request::{InvalidRequest, Limits, Operation, Range, Request};
use crate::block::engine::{FileOperation, ImageFile};
use crate::block::{self, Backend, ImageError, Opened};
use crate::config::{Disk, DiskCounters, DiskImage, DiskSerial, LaneStall, Stalls};
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

/// The most lanes of a disk: each has a thread, and what it takes to carry out requests beside each other.
const MAX_LANES: usize = 8;

/// A disk.
pub struct Block {
    /// At least one.
    lanes: Vec<BlockLane>,
    read_only: bool,
    config: Arc<BlockConfig>,
    /// The disk has a cache that its driver may know of.
    has_cache: bool,
    queues: u16,
}

/// What serves some of a disk's queues.
struct BlockLane {
    /// Which lane it is, and of how many: queues go to lanes in turn.
    place: (usize, usize),
    backend: Box<dyn Backend>,
    limits: Limits,
    /// A size of the image that the backend could not take over.
    refused_sectors: u64,
    serial: DiskSerial,
    stall: Arc<LaneStall>,
    counters: Arc<DiskCounters>,
    config: Arc<BlockConfig>,
    /// The cache was on since the queues were last served.
    was_write_back: bool,
    parallel: Parallel,
    /// Queues in which requests wait because as many as possible are in flight; the first has its turn next.
    behind: VecDeque<usize>,
    /// What was over while the function could not access memory: answered after the kick that comes when it can.
    unanswered: Vec<Landed>,
    /// When the lane settled last, all that was written reached stable storage.
    is_flushed: bool,
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Accepted {
    /// It is in flight, or was not worth beginning.
    Begun,
    /// It is over, which may have taken a while.
    CarriedOut,
}

impl Block {
    /// Opens the image of `disk` on file descriptors of its own, once for each of its lanes: as many as there are queues,
    /// or one where the image can only be used by one.
    pub fn new(disk: &Disk) -> Result<Self, ImageError> {
        let read_only = disk.is_read_only();
        let first = block::open(disk, read_only)?;
        let sectors = first.backend.sectors();
        let blocks = disk.blocks();
        let config = BlockConfig::new(sectors, !disk.is_write_through(), disk.queue_count(), blocks);
        let config = Arc::new(config);
        if config.sectors() == 0 {
            return Err(ImageError::Small(blocks.logical()));
        }
        if let DiskImage::Raw(file) = disk.image() {
            let file = file.try_clone().map_err(ImageError::Open)?;
            let config = config.clone();
            disk.growth().on_check(move || match block::sectors_of(&file) {
                Ok(sectors) => config.grow(sectors),
                Err(error) => tracing::warn!(%error, "the size of a disk image is unknown"),
            });
        }
        let mut all = vec![first];
        while all.len() < usize::from(disk.queue_count()).min(MAX_LANES) {
            let Some(beside) =
                all.first().map(|first| block::open_beside(disk, first)).transpose()?.flatten()
            else {
                break;
            };
            all.push(beside);
        }
        let count = all.len();
        let lane = |(index, Opened { backend, stall })| {
            Ok(BlockLane {
                place: (index, count),
                backend,
                limits: Limits { sectors: config.sectors(), read_only, block: blocks.logical() },
                refused_sectors: config.sectors(),
                serial: *disk.id(),
                stall,
                counters: disk.counters().clone(),
                config: config.clone(),
                was_write_back: false,
                parallel: Parallel::new(block::files(disk).map_err(ImageError::Open)?),
                behind: VecDeque::new(),
                unanswered: Vec::new(),
                is_flushed: true,
            })
        };
        let lanes = all.into_iter().enumerate().map(lane).collect::<Result<_, _>>()?;
        Ok(Self { lanes, read_only, config, has_cache: !disk.is_write_through(), queues: disk.queue_count() })
    }

    /// Has one lane for each of these engines, which carry out the requests beside each other.
    #[cfg(test)]
    pub(super) fn with_engines(mut self, engines: Vec<Box<dyn block::engine::Engine>>) -> Self {
        let count = engines.len();
        self.lanes.truncate(count);
        assert_eq!(self.lanes.len(), count, "as many lanes");
        for (lane, engine) in self.lanes.iter_mut().zip(engines) {
            lane.parallel = Parallel::on(engine);
            lane.place.1 = count;
        }
        self
    }
}

impl BlockLane {
    /// Takes requests from a queue as long as there are any, and room.
    fn serve(&mut self, queues: &mut Queues, queue: usize) -> Result<(), RingError> {
        queues.get(queue)?.begin()?;
        self.follow_cache_mode(queues)?;
        let unanswered = std::mem::take(&mut self.unanswered);
        self.answer_all(queues, unanswered)?;
        self.behind.retain(|behind| *behind != queue);
        let begun = Instant::now();
        for _ in 0..BUDGET {
            if self.parallel.is_full() {
                self.land(queues)?;
                // What was over at once has made room; where nothing was, the end of one has it go on here.
                if self.parallel.is_full() {
                    self.behind.push_back(queue);
                    return Ok(());
                }
            }
            let Some(super::super::Request { pending, chain }) = queues.get(queue)?.pop()? else {
                return self.land(queues);
            };
            if self.accept((queues, queue), pending, chain)? == Accepted::CarriedOut
                && begun.elapsed() >= TURN
            {
                break;
            }
        }
        queues.get(queue)?.again();
        self.land(queues)
    }

    /// Serves the queues that are behind, while there is room: what made it may have been landed for another queue. One
    /// whose requests still do not all fit comes last afterwards.
    fn catch_up(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        for _ in 0..self.behind.len() {
            if self.parallel.is_full() {
                break;
            }
            if let Some(queue) = self.behind.pop_front() {
                self.serve(queues, queue)?;
            }
        }
        Ok(())
    }

    /// A driver that switched the cache off sends no flushes any more, so that what it wrote before is flushed.
    fn follow_cache_mode(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let before = std::mem::replace(&mut self.was_write_back, self.config.is_write_back());
        if before && !self.was_write_back {
            self.land_all(queues)?;
            // Where the host cannot, it is tried again with the next requests.
            self.was_write_back = !self.backend.flush_now();
        }
        Ok(())
    }

    /// A driver that knows of a larger capacity may use it.
    fn follow_size(&mut self) {
        let sectors = self.config.sectors();
        if sectors == self.limits.sectors || sectors == self.refused_sectors {
            return;
        }
        if sectors > self.backend.sectors()
            && let Err(error) = self.backend.grow(sectors)
        {
            self.refused_sectors = sectors;
            tracing::error!(%error, "what a disk image has grown by cannot be used");
            return;
        }
        self.limits.sectors = sectors;
    }

    /// Begins a request, or carries it out.
    fn accept(
        &mut self,
        (queues, index): (&mut Queues, usize),
        pending: Pending,
        chain: Result<Chain, ChainError>,
    ) -> Result<Accepted, RingError> {
        self.follow_size();
        let queue = queues.get(index)?;
        let request = match chain {
            Ok(chain) => Request::parse(queue.memory(), chain, self.limits),
            Err(error) => {
                tracing::debug!(%error, "invalid descriptor chain");
                None
            }
        };
        let Some(Request { status, data, operation }) = request else {
            return queue.push(pending.finish(0)).map(|()| Accepted::Begun);
        };
        let operation = match operation {
            Ok(operation) => operation,
            Err(invalid) => {
                let status_byte = match invalid {
                    InvalidRequest::IoError => STATUS_IOERR,
                    InvalidRequest::Unsupported => STATUS_UNSUPP,
                };
                return queue
                    .push(answer(queue.memory(), pending, &status, data, status_byte))
                    .map(|()| Accepted::Begun);
            }
        };
        let started = Started { queue: index, pending, status, data, operation, since: Instant::now() };
        let alone = self.parallel.is_idle() && !queue.has_more()?;
        let Some(started) = self.begin(queue.memory(), started, alone) else { return Ok(Accepted::Begun) };
        // Its space may be another's afterwards, or it rewrites what is beside it: nothing may be on its way there.
        let alone = match started.operation {
            Operation::Discard(_) | Operation::WriteZeroes(_) => true,
            Operation::Write { .. } => self.backend.runs_alone(),
            Operation::Read { .. } | Operation::Flush | Operation::Id { .. } => false,
        };
        if alone {
            self.land_all(queues)?;
        }
        let mut done = self.perform_beside(queues.get(index)?.memory(), &started.operation);
        if done.is_err() && !self.parallel.is_idle() {
            self.land_all(queues)?;
            done = self.perform(queues.get(index)?.memory(), &started.operation);
        }
        let queue = queues.get(index)?;
        queue.push(finish(queue.memory(), started, done))?;
        queue.publish()?;
        Ok(Accepted::CarriedOut)
    }

    /// Carries out an operation. While others are in flight, it is not held when the host cannot carry it out: a VM
    /// with a request that is held counts as one with nothing in flight.
    fn perform_beside(&mut self, memory: &GuestMemory, operation: &Operation) -> io::Result<()> {
        let patient = self.parallel.is_idle();
        self.backend.set_patient(patient);
        let done = self.perform(memory, operation);
        self.backend.set_patient(true);
        done
    }

    /// Begins a request beside those in flight; gives it back where that cannot be, or takes longer. `alone`: none is in
    /// flight, and no other one waits in its queue.
    fn begin(&mut self, memory: &GuestMemory, started: Started, alone: bool) -> Option<Started> {
        let durable = !self.config.is_write_back();
        self.was_write_back |= !durable;
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
        let Some((file, offset)) = place else { return Some(started) };
        let begun =
            self.parallel.begin(started, (file.index(), memory), |started| match &started.operation {
                Operation::Read { to, .. } => FileOperation::Read { offset, to },
                Operation::Write { from, .. } => FileOperation::Write { offset, from, durable },
                _ => FileOperation::Sync,
            });
        begun.err()
    }

    /// Begins what was prepared, and answers what is over.
    fn land(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let landed = self.parallel.landed().map_err(RingError::Host)?;
        if landed.is_empty() { queues.publish() } else { self.answer_all(queues, landed) }
    }

    /// Answers all that is in flight, when it is over.
    fn land_all(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let landed = self.parallel.land_all().map_err(RingError::Host)?;
        self.answer_all(queues, landed)
    }

    /// Answers requests that are over, each in its queue.
    fn answer_all(&mut self, queues: &mut Queues, landed: Vec<Landed>) -> Result<(), RingError> {
        if !queues.may_serve() {
            self.unanswered.extend(landed);
            return Ok(());
        }
        let mut failed = Vec::new();
        for Landed { request: started, moved } in landed {
            if self.is_complete(&started, moved) {
                let Started { queue, pending, status, data, .. } = started;
                let queue = queues.get(queue)?;
                queue.push(answer(queue.memory(), pending, &status, data, STATUS_OK))?;
            } else {
                failed.push(started);
            }
        }
        queues.publish()?;
        if failed.is_empty() {
            return Ok(());
        }
        // What serves one request at a time knows how to go on after an error; nothing else runs meanwhile, since it
        // may hold the request until the host can carry it out.
        let others = self.parallel.land_all().map_err(RingError::Host)?;
        for started in failed {
            let queue = queues.get(started.queue)?;
            let done = self.perform(queue.memory(), &started.operation);
            queue.push(finish(queue.memory(), started, done))?;
        }
        self.answer_all(queues, others)
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
        features |= if self.read_only {
            1 << VIRTIO_BLK_F_RO
        } else {
            1 << VIRTIO_BLK_F_DISCARD | 1 << VIRTIO_BLK_F_WRITE_ZEROES
        };
        if self.has_cache {
            features |= CACHE_FEATURES;
        }
        if self.queues > 1 {
            features |= 1 << VIRTIO_BLK_F_MQ;
        }
        DeviceInfo {
            name: "block",
            id: DEVICE_ID,
            class: 0x01_00_00,
            features,
            queues: vec![QUEUE_SIZE; usize::from(self.queues)],
            config: self.config.clone(),
            state: DeviceState::Section(self.config.clone()),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        self.lanes.into_iter().map(|lane| Box::new(lane) as Box<dyn Lane>).collect()
    }
}

impl Lane for BlockLane {
    fn serves(&self, queue: usize, _features: u64) -> bool {
        let (index, count) = self.place;
        queue.checked_rem(count) == Some(index)
    }

    fn stalls(&self) -> Stalls {
        Stalls(vec![self.stall.clone()])
    }

    fn gives_way(&self) -> bool {
        true
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        self.serve(queues, queue)?;
        self.catch_up(queues)
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        self.parallel.source()
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.land(queues)?;
        self.catch_up(queues)
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.land_all(queues)?;
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
        self.behind.clear();
        self.was_write_back = false;
        self.parallel.abandon();
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
