use std::io;
use std::sync::Arc;

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};

use super::super::{
    Chain, ChainError, Device, DeviceInfo, Finished, GuestMemory, Pending, Queues, RingError,
};
use super::request::{InvalidRequest, Limits, Operation, Range, Request};
use crate::block::{self, Backend, ImageError, MAX_RANGE_SECTORS, MAX_RANGES, SECTOR};
use crate::config::{Disk, DiskSerial, DiskStall, Stalls};

/// Section 5.
const DEVICE_ID: u16 = 2;
const QUEUE_SIZE: u16 = 256;
/// What is left of a queue's worth of buffers beside the header and the status.
const SEG_MAX: u32 = QUEUE_SIZE as u32 - 2;
/// Physical blocks of 4 KiB, as a power of two of the logical 512 bytes.
const PHYSICAL_BLOCK_EXPONENT: u8 = 3;
const PHYSICAL_BLOCK: u16 = 1 << PHYSICAL_BLOCK_EXPONENT;

const STATUS_OK: u8 = 0;
const STATUS_IOERR: u8 = 1;
const STATUS_UNSUPP: u8 = 2;

/// A disk.
pub struct Block {
    backend: Box<dyn Backend>,
    limits: Limits,
    serial: DiskSerial,
    stall: Arc<DiskStall>,
    write_through: bool,
    /// The driver knows of the cache, so that it sends flushes.
    flushes: bool,
}

impl Block {
    /// Opens the image of `disk` on file descriptors of its own.
    pub fn new(disk: &Disk) -> Result<Self, ImageError> {
        let backend = block::open(disk, disk.is_read_only())?;
        let sectors = backend.sectors();
        let limits = Limits { sectors, read_only: disk.is_read_only() };
        let write_through = disk.is_write_through();
        let stall = disk.stall().clone();
        Ok(Self { backend, limits, serial: *disk.id(), stall, write_through, flushes: false })
    }

    fn answer(
        &mut self,
        memory: &GuestMemory,
        pending: Pending,
        chain: Result<Chain, ChainError>,
    ) -> Finished {
        let request = match chain {
            Ok(chain) => Request::parse(memory, chain, self.limits),
            Err(error) => {
                tracing::debug!(%error, "invalid descriptor chain");
                None
            }
        };
        let Some(Request { status, data, operation }) = request else { return pending.finish(0) };
        let outcome = match operation {
            Ok(operation) => match self.perform(memory, operation) {
                Ok(()) => STATUS_OK,
                Err(error) => {
                    tracing::warn!(%error, "a disk request failed");
                    STATUS_IOERR
                }
            },
            Err(InvalidRequest::IoError) => STATUS_IOERR,
            Err(InvalidRequest::Unsupported) => STATUS_UNSUPP,
        };
        if let Err(error) = status.write(memory, &[outcome]) {
            tracing::debug!(%error, "a status byte could not be written");
        }
        pending.finish(u32::try_from(data).unwrap_or(u32::MAX).saturating_add(1))
    }

    fn perform(&mut self, memory: &GuestMemory, operation: Operation) -> io::Result<()> {
        let changed = match operation {
            Operation::Read { offset, to } => {
                self.backend.read(memory, &to, offset)?;
                false
            }
            Operation::Write { offset, from } => {
                self.backend.write(memory, &from, offset)?;
                true
            }
            Operation::Flush => {
                self.backend.flush()?;
                false
            }
            Operation::Id { mut to } => {
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
                    self.backend.discard(offset, len)?;
                }
                false
            }
            Operation::WriteZeroes(ranges) => {
                for Range { offset, len, unmap } in ranges {
                    self.backend.write_zeroes(offset, len, unmap)?;
                }
                true
            }
        };
        // Without FLUSH the driver takes every write for stable (section 5.2.6.2).
        if changed && (self.write_through || !self.flushes) { self.backend.flush() } else { Ok(()) }
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
        if !self.write_through {
            features |= 1 << VIRTIO_BLK_F_FLUSH;
        }
        DeviceInfo {
            name: "block",
            id: DEVICE_ID,
            class: 0x01_00_00,
            features,
            queues: vec![QUEUE_SIZE],
            config: Arc::new(config(self.limits.sectors)),
        }
    }

    fn activate(&mut self, features: u64) -> io::Result<()> {
        self.flushes = features & 1 << VIRTIO_BLK_F_FLUSH != 0;
        Ok(())
    }

    fn stalls(&self) -> Stalls {
        Stalls(vec![self.stall.clone()])
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        queues.get(queue)?.drain(|memory, pending, chain| self.answer(memory, pending, chain))
    }
}

/// The configuration space (section 5.2.4).
fn config(sectors: u64) -> Vec<u8> {
    let mut config = Vec::with_capacity(60);
    config.extend(sectors.to_le_bytes());
    config.extend(0_u32.to_le_bytes()); // size_max: not offered
    config.extend(SEG_MAX.to_le_bytes());
    config.extend([0; 4]); // geometry: not offered
    config.extend(u32::try_from(SECTOR).unwrap_or(0).to_le_bytes());
    config.extend([PHYSICAL_BLOCK_EXPONENT, 0]);
    config.extend(PHYSICAL_BLOCK.to_le_bytes()); // min_io_size
    config.extend(0_u32.to_le_bytes()); // opt_io_size: no preference
    config.extend([0, 0]); // writeback: not offered
    config.extend(1_u16.to_le_bytes()); // num_queues
    config.extend(MAX_RANGE_SECTORS.to_le_bytes()); // discard: sectors, segments, alignment
    config.extend(MAX_RANGES.to_le_bytes());
    config.extend(u32::from(PHYSICAL_BLOCK).to_le_bytes());
    config.extend(MAX_RANGE_SECTORS.to_le_bytes()); // write zeroes: sectors, segments, may unmap
    config.extend(MAX_RANGES.to_le_bytes());
    config.extend([1, 0, 0, 0]);
    config
}
