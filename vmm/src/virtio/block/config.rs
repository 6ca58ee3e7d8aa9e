//! The configuration space (section 5.2.4).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_FLUSH};

use super::super::DeviceConfig;
use super::super::device::copy_from;
use super::device::SEG_MAX;
use crate::block::{MAX_RANGE_SECTORS, MAX_RANGES, MAX_ZEROED_SECTORS, SECTOR};
use crate::config::Blocks;
use crate::state::{Section, SectionError};

/// What a disk with a cache offers: the driver sends flushes, and may set the cache's mode.
pub(super) const CACHE_FEATURES: u64 = 1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_CONFIG_WCE;
/// The offset of `writeback`, the only field that a driver may write.
const WRITE_BACK: usize = 32;
const SIZE: usize = 60;

/// What the driver reads, and has set.
pub(super) struct BlockConfig {
    /// When the image was opened.
    first_sectors: u64,
    sectors: AtomicU64,
    queues: u16,
    blocks: Blocks,
    /// The disk has a cache that its driver may know of.
    has_cache: bool,
    /// A write may complete before it is on stable storage.
    write_back: AtomicBool,
    /// The driver may change that.
    is_settable: AtomicBool,
    on_change: Mutex<Option<Notify>>,
}

/// As many as there are in whole blocks.
fn whole(sectors: u64, blocks: Blocks) -> u64 {
    sectors - sectors % u64::from(sectors_of(blocks.logical())).max(1)
}

fn sectors_of(bytes: u32) -> u32 {
    u32::try_from(u64::from(bytes) / SECTOR).unwrap_or(1)
}

/// Notifies the driver and the lanes.
type Notify = Box<dyn Fn() + Send + Sync>;

impl BlockConfig {
    /// For a disk of as many sectors; a part of a block at its end is not part of the disk.
    pub(super) fn new(sectors: u64, has_cache: bool, queues: u16, blocks: Blocks) -> Self {
        let sectors = whole(sectors, blocks);
        let is_settable = AtomicBool::new(false);
        Self {
            first_sectors: sectors,
            sectors: AtomicU64::new(sectors),
            queues,
            blocks,
            has_cache,
            write_back: AtomicBool::new(has_cache),
            is_settable,
            on_change: Mutex::default(),
        }
    }

    /// The capacity.
    pub(super) fn sectors(&self) -> u64 {
        self.sectors.load(Ordering::SeqCst)
    }

    /// The image has as many sectors now. It never has fewer than before: the driver would lose what it wrote.
    pub(super) fn grow(&self, sectors: u64) {
        let sectors = whole(sectors, self.blocks);
        let before = self.sectors.fetch_max(sectors, Ordering::SeqCst);
        if before < sectors {
            tracing::info!(before, sectors, "a disk has grown");
            if let Some(notify) = self.on_change().as_ref() {
                notify();
            }
        }
    }

    fn on_change(&self) -> MutexGuard<'_, Option<Notify>> {
        self.on_change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a write that begins now may complete before it is on stable storage (section 5.2.6.2).
    pub(super) fn is_write_back(&self) -> bool {
        self.write_back.load(Ordering::SeqCst)
    }

    fn bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        let mut put = |at: usize, value: &[u8]| {
            if let Some(field) = bytes.get_mut(at..at.saturating_add(value.len())) {
                field.copy_from_slice(value);
            }
        };
        put(0, &self.sectors().to_le_bytes());
        // 8: size_max, 16: geometry: not offered.
        put(12, &SEG_MAX.to_le_bytes());
        let (logical, physical) = (self.blocks.logical(), self.blocks.physical());
        let of_physical = (physical / logical).max(1);
        put(20, &logical.to_le_bytes()); // blk_size
        put(24, &[u8::try_from(of_physical.ilog2()).unwrap_or(0), 0]); // physical_block_exp
        put(26, &u16::try_from(of_physical).unwrap_or(u16::MAX).to_le_bytes()); // min_io_size
        // 28: opt_io_size: no preference.
        put(WRITE_BACK, &[self.is_write_back().into()]);
        put(34, &self.queues.to_le_bytes()); // num_queues
        // Discard: sectors, segments, alignment.
        put(36, &MAX_RANGE_SECTORS.to_le_bytes());
        put(40, &MAX_RANGES.to_le_bytes());
        put(44, &(sectors_of(self.blocks.discard_granularity())).to_le_bytes());
        // Write zeroes: sectors, segments, may unmap.
        put(48, &MAX_ZEROED_SECTORS.to_le_bytes());
        put(52, &1_u32.to_le_bytes());
        put(56, &[1]);
        bytes
    }
}

impl DeviceConfig for BlockConfig {
    fn size(&self) -> usize {
        SIZE
    }

    fn read(&self, offset: usize, data: &mut [u8]) {
        copy_from(&self.bytes(), offset, data);
    }

    fn write(&self, offset: usize, data: &[u8]) -> bool {
        let Some(value) = WRITE_BACK.checked_sub(offset).and_then(|at| data.get(at)) else { return false };
        if !self.is_settable.load(Ordering::SeqCst) {
            return false;
        }
        self.write_back.store(*value != 0, Ordering::SeqCst);
        true
    }

    /// A driver that does not send flushes takes every write for stable (section 5.2.5.2).
    fn negotiated(&self, features: u64) {
        let flushes = self.has_cache && features & 1 << VIRTIO_BLK_F_FLUSH != 0;
        self.write_back.store(flushes, Ordering::SeqCst);
        let is_settable = flushes && features & 1 << VIRTIO_BLK_F_CONFIG_WCE != 0;
        self.is_settable.store(is_settable, Ordering::SeqCst);
    }

    fn reset(&self) {
        self.is_settable.store(false, Ordering::SeqCst);
        self.write_back.store(self.has_cache, Ordering::SeqCst);
    }

    fn on_change(&self, notify: Notify) {
        *self.on_change() = Some(notify);
    }
}

impl fmt::Debug for BlockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockConfig").field("sectors", &self.sectors()).finish_non_exhaustive()
    }
}

/// What the driver has set, as it is saved, and the size that it knows.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BlockState {
    sectors: u64,
    write_back: bool,
    is_settable: bool,
}

impl Section for BlockConfig {
    const TAG: &'static str = "virtio-blk";
    const VERSION: u16 = 1;
    type State = BlockState;

    fn save(&self) -> Result<BlockState, SectionError> {
        let is_settable = self.is_settable.load(Ordering::SeqCst);
        Ok(BlockState { sectors: self.sectors(), write_back: self.is_write_back(), is_settable })
    }

    fn load(&self, BlockState { sectors, write_back, is_settable }: BlockState) -> Result<(), SectionError> {
        if sectors > self.first_sectors {
            return Err(SectionError::Invalid("the disk is smaller than it was"));
        }
        if (write_back || is_settable) && !self.has_cache {
            return Err(SectionError::Invalid("the disk has another cache mode"));
        }
        self.write_back.store(write_back, Ordering::SeqCst);
        self.is_settable.store(is_settable, Ordering::SeqCst);
        self.sectors.store(sectors, Ordering::SeqCst);
        Ok(())
    }

    /// An image that has grown since the VM was saved.
    fn loaded(&self) {
        self.grow(self.first_sectors);
    }
}
