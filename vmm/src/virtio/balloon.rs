//! The memory balloon (section 5.5): the guest's statistics, and its free pages for the host (free page reporting). The host
//! never asks for pages: a driver may put some in all the same.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};
use vm_memory::GuestAddress;

use super::device::copy_from;
use super::notifier::Notifier;
use super::{
    Chain, Device, DeviceConfig, DeviceInfo, DeviceState, GuestMemory, Lane, Pending, Queues, Request,
    RingError, Segments,
};
use crate::config::{BALLOON_PAGE, Balloon, MemoryStatistics};
use crate::memory::discard;
use crate::state::{Section, SectionError};

/// Section 5.
const DEVICE_ID: u16 = 5;
const QUEUE_SIZE: u16 = 128;
const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const STATISTICS: usize = 2;
/// The queue of free page hints would be before it, and has no number where it is not offered.
const REPORTING: usize = 3;

// Features (section 5.5.3).
const STATS_VQ: u64 = 1 << 1;
const PAGE_POISON: u64 = 1 << 4;
const PAGE_REPORTING: u64 = 1 << 5;

/// Offsets in the configuration space (section 5.5.4).
const NUM_PAGES: usize = 0;
const ACTUAL: usize = 4;
const POISON: usize = 12;
const CONFIG_SIZE: usize = 16;

/// How many reports are taken before the worker looks at everything else.
const BUDGET: usize = 16;
/// Page numbers that one request may have; drivers put in 256.
const MAX_PAGES: u64 = 64 << 10;
/// How many of them are read at a time.
const PIECE: usize = 256;
/// Statistics that one report may have; there are a dozen.
const MAX_STATISTICS: usize = 64;
/// Bytes of one: tag and value.
const STATISTIC: usize = 10;
/// What drivers report for an unknown value.
const UNKNOWN: u64 = u64::MAX;

/// A balloon.
pub struct BalloonDevice {
    handle: Balloon,
    config: Arc<BalloonConfig>,
    wanted: Arc<Notifier>,
    /// The buffer of the last report: giving it back requests the next one (section 5.5.6.3).
    kept: Option<Pending>,
    poisons: bool,
}

impl BalloonDevice {
    /// A balloon with its caller's side.
    ///
    /// # Errors
    /// Without a file descriptor.
    pub fn new(handle: &Balloon) -> io::Result<Self> {
        let wanted = Arc::new(Notifier::new()?);
        let bell = wanted.clone();
        handle.on_request(move || bell.ring());
        let config = BalloonConfig {
            handle: handle.clone(),
            actual: AtomicU32::default(),
            poison: AtomicU32::default(),
        };
        Ok(Self { handle: handle.clone(), config: Arc::new(config), wanted, kept: None, poisons: false })
    }

    /// Gives the buffer of the last report back, if the function may access memory.
    fn give_back(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let Ok(queue) = queues.get(STATISTICS) else { return Ok(()) };
        if !queue.may_serve() {
            return Ok(());
        }
        if let Some(kept) = self.kept.take() {
            queue.push(kept.finish(0))?;
            queue.publish()?;
        }
        Ok(())
    }

    fn take_statistics(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        let queue = queues.get(STATISTICS)?;
        queue.begin()?;
        for _ in 0..BUDGET {
            let Some(Request { pending, chain }) = queue.pop()? else { return queue.publish() };
            if let Ok(Chain { readable, .. }) = chain
                && let Some(statistics) = parse(queue.memory(), readable)
            {
                self.handle.report(Some(statistics));
            }
            // A driver has one buffer on the way.
            if let Some(before) = self.kept.replace(pending) {
                queue.push(before.finish(0))?;
            }
        }
        queue.again();
        queue.publish()
    }

    /// Whether pages that are given back may read as zeros: a driver that fills free pages would find something else.
    fn may_discard(&self) -> bool {
        !self.poisons || self.config.poison.load(Ordering::SeqCst) == 0
    }
}

impl Device for BalloonDevice {
    fn info(&self) -> DeviceInfo {
        let reports = !self.handle.keeps_free_pages();
        DeviceInfo {
            name: "balloon",
            id: DEVICE_ID,
            class: 0x00_ff_00,
            features: if reports { STATS_VQ | PAGE_POISON | PAGE_REPORTING } else { STATS_VQ },
            queues: vec![QUEUE_SIZE; if reports { REPORTING + 1 } else { REPORTING }],
            config: self.config.clone(),
            state: DeviceState::Section(self.config.clone()),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for BalloonDevice {
    fn activate(&mut self, features: u64) -> io::Result<()> {
        self.poisons = features & PAGE_POISON != 0;
        Ok(())
    }

    fn deactivate(&mut self) {
        // The driver has taken its buffers back.
        self.kept = None;
        self.config.set_actual(0);
        self.config.poison.store(0, Ordering::SeqCst);
        self.handle.report(None);
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        match queue {
            STATISTICS => self.take_statistics(queues),
            INFLATE => queues.get(queue)?.drain(|memory, pending, chain| {
                if let Ok(Chain { readable, .. }) = chain
                    && self.may_discard()
                {
                    discard_pages(memory, readable);
                }
                pending.finish(0)
            }),
            REPORTING => queues.get(queue)?.drain(|memory, pending, chain| {
                if let Ok(Chain { writable, .. }) = chain
                    && self.may_discard()
                {
                    writable.ranges().for_each(|(address, len)| discard(memory, address, len.into()));
                }
                pending.finish(0)
            }),
            // What is touched is there again.
            DEFLATE => queues.get(queue)?.drain(|_, pending, _| pending.finish(0)),
            _ => Err(RingError::Absent(queue)),
        }
    }

    fn settle(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.give_back(queues)
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wanted.as_fd())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.wanted.settle();
        self.give_back(queues)
    }
}

/// Gives pages back to the host whose numbers are in a buffer, neighbours together.
fn discard_pages(memory: &GuestMemory, mut numbers: Segments) {
    let mut left = (numbers.len() / 4).min(MAX_PAGES);
    let mut bytes = [0; PIECE * 4];
    let mut run: Option<(u64, u64)> = None;
    let give = |run: Option<(u64, u64)>| {
        if let Some((first, count)) = run {
            discard(memory, GuestAddress(first * BALLOON_PAGE), count * BALLOON_PAGE);
        }
    };
    while left > 0 {
        let count = left.min(PIECE as u64);
        left -= count;
        let Some(part) = numbers.take_front(count * 4) else { break };
        let Some(piece) = usize::try_from(count * 4).ok().and_then(|len| bytes.get_mut(..len)) else { break };
        if part.read(memory, piece).is_err() {
            break;
        }
        for number in piece.as_chunks::<4>().0 {
            let number = u64::from(u32::from_le_bytes(*number));
            match &mut run {
                Some((first, count)) if *first + *count == number => *count += 1,
                _ => give(run.replace((number, 1))),
            }
        }
    }
    give(run);
}

/// A report of a driver (section 5.5.6.4). Tags that are unknown are left out.
fn parse(memory: &GuestMemory, mut readable: Segments) -> Option<MemoryStatistics> {
    let mut bytes = [0; MAX_STATISTICS * STATISTIC];
    let len = readable.len().min(bytes.len() as u64);
    let report = bytes.get_mut(..usize::try_from(len).ok()?)?;
    readable.take_front(len)?.read(memory, report).ok()?;
    let mut statistics = MemoryStatistics::default();
    for [t, u, value @ ..] in report.as_chunks::<STATISTIC>().0 {
        let value = Some(u64::from_le_bytes(*value)).filter(|value| *value != UNKNOWN);
        let field = match u16::from_le_bytes([*t, *u]) {
            0 => &mut statistics.swap_in,
            1 => &mut statistics.swap_out,
            2 => &mut statistics.major_faults,
            3 => &mut statistics.minor_faults,
            4 => &mut statistics.free,
            5 => &mut statistics.total,
            6 => &mut statistics.available,
            7 => &mut statistics.caches,
            _ => continue,
        };
        *field = value;
    }
    Some(statistics)
}

/// The configuration space (section 5.5.4).
#[derive(Debug)]
struct BalloonConfig {
    handle: Balloon,
    /// Pages that the driver says are in the balloon.
    actual: AtomicU32,
    /// What the driver fills free pages with.
    poison: AtomicU32,
}

impl BalloonConfig {
    fn set_actual(&self, pages: u32) {
        self.actual.store(pages, Ordering::SeqCst);
        self.handle.set_pages(pages);
    }

    fn bytes(&self) -> [u8; CONFIG_SIZE] {
        let mut bytes = [0; CONFIG_SIZE];
        for (at, value) in [
            (NUM_PAGES, 0),
            (ACTUAL, self.actual.load(Ordering::SeqCst)),
            (POISON, self.poison.load(Ordering::SeqCst)),
        ] {
            if let Some(field) = bytes.get_mut(at..at + 4) {
                field.copy_from_slice(&u32::to_le_bytes(value));
            }
        }
        bytes
    }
}

impl DeviceConfig for BalloonConfig {
    fn size(&self) -> usize {
        CONFIG_SIZE
    }

    fn read(&self, offset: usize, data: &mut [u8]) {
        copy_from(&self.bytes(), offset, data);
    }

    fn write(&self, offset: usize, data: &[u8]) -> bool {
        // Drivers write whole fields.
        let Ok(value) = data.try_into().map(u32::from_le_bytes) else { return false };
        match offset {
            ACTUAL => self.set_actual(value),
            POISON => self.poison.store(value, Ordering::SeqCst),
            _ => {}
        }
        false
    }
}

/// What the driver has written, as it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BalloonState {
    actual: u32,
    poison: u32,
}

impl Section for BalloonConfig {
    const TAG: &'static str = "virtio-balloon";
    const VERSION: u16 = 1;
    type State = BalloonState;

    fn save(&self) -> Result<BalloonState, SectionError> {
        let [actual, poison] = [&self.actual, &self.poison].map(|field| field.load(Ordering::SeqCst));
        Ok(BalloonState { actual, poison })
    }

    fn load(&self, BalloonState { actual, poison }: BalloonState) -> Result<(), SectionError> {
        self.set_actual(actual);
        self.poison.store(poison, Ordering::SeqCst);
        Ok(())
    }
}
