use std::fs::File;
use std::sync::Arc;

use vireo_vmconfig::{self as vmconfig, CacheMode, DiskBus, DiskDevice, ErrorPolicy, VIRTIO_SERIAL_LEN};

use super::{Blocks, CdDrive, DiskCounters, DiskGrowth, DiskStall};

/// Where a disk's content is.
#[derive(Debug)]
#[non_exhaustive]
pub enum DiskImage {
    /// The bytes themselves: a regular file or a block device.
    Raw(File),
    /// A qcow2 image written by us, over a raw backing image (opened read-only) where there is one.
    Qcow2 {
        /// The image itself. Its header is not believed about backing files: `backing` is.
        image: File,
        /// What unallocated clusters read from.
        backing: Option<File>,
    },
    /// None at first: a CD-ROM drive whose medium is changed while the VM runs.
    Drive(Arc<CdDrive>),
}

/// How a disk is attached: the combinations of bus and device that the monitor has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attachment {
    /// virtio-blk, a PCI function of its own. Always a disk.
    #[default]
    Virtio,
    /// A port of the SATA controller.
    Sata(DiskDevice),
    /// A unit of the virtio SCSI controller.
    Scsi(DiskDevice),
}

impl Attachment {
    /// A device on a bus.
    pub fn new(bus: DiskBus, device: DiskDevice) -> Result<Self, DiskError> {
        match (bus, device) {
            (DiskBus::Virtio, DiskDevice::Disk) => Ok(Self::Virtio),
            (DiskBus::Sata, device) => Ok(Self::Sata(device)),
            (DiskBus::Scsi, device) => Ok(Self::Scsi(device)),
            (DiskBus::Usb, _) | (DiskBus::Virtio, DiskDevice::CdRom) => {
                Err(DiskError::Attachment { bus, device })
            }
        }
    }
}

/// A disk, or the image in a CD/DVD drive.
#[derive(Debug)]
pub struct Disk {
    image: DiskImage,
    attachment: Attachment,
    read_only: bool,
    serial: DiskSerial,
    write_through: bool,
    direct: bool,
    boot_order: Option<u32>,
    counters: Arc<DiskCounters>,
    errors: ErrorPolicy,
    stall: Arc<DiskStall>,
    growth: Arc<DiskGrowth>,
    queues: u16,
    blocks: Blocks,
}

/// The most queues of a disk.
pub const MAX_DISK_QUEUES: u16 = 32;

/// A disk's serial number: at most [`VIRTIO_SERIAL_LEN`] bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSerial([u8; VIRTIO_SERIAL_LEN]);

/// Why a disk is rejected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DiskError {
    /// Longer than the 20 bytes virtio has for it.
    #[error("disk serial {0:?} is longer than 20 bytes")]
    SerialTooLong(String),
    /// A combination that only QEMU has.
    #[error("the monitor has no {device} on the bus {bus}")]
    Attachment {
        /// The bus.
        bus: DiskBus,
        /// The device.
        device: DiskDevice,
    },
    /// Its blocks.
    #[error("the monitor has no such blocks")]
    Blocks(#[from] super::BlocksError),
}

impl DiskSerial {
    /// Checks the length.
    pub fn new(text: &str) -> Result<Self, DiskError> {
        let mut bytes = [0; VIRTIO_SERIAL_LEN];
        bytes
            .get_mut(..text.len())
            .ok_or_else(|| DiskError::SerialTooLong(text.to_owned()))?
            .copy_from_slice(text.as_bytes());
        Ok(Self(bytes))
    }

    /// Padded with zeros.
    pub fn as_bytes(&self) -> &[u8; VIRTIO_SERIAL_LEN] {
        &self.0
    }
}

impl Disk {
    /// A writable write-back virtio disk without a serial.
    pub fn new(image: DiskImage) -> Self {
        Self {
            image,
            attachment: Attachment::Virtio,
            read_only: false,
            serial: DiskSerial::default(),
            write_through: false,
            direct: false,
            boot_order: None,
            counters: Arc::default(),
            errors: ErrorPolicy::Report,
            stall: Arc::default(),
            growth: Arc::default(),
            queues: 1,
            blocks: Blocks::default(),
        }
    }

    /// How it is attached.
    #[must_use]
    pub fn attach(mut self, attachment: Attachment) -> Self {
        self.attachment = attachment;
        self
    }

    /// The guest may not write.
    #[must_use]
    pub fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// What the guest reads as the disk's id.
    #[must_use]
    pub fn serial(mut self, serial: DiskSerial) -> Self {
        self.serial = serial;
        self
    }

    /// Every write is on stable storage before it completes, and the guest sees no cache (no VIRTIO_BLK_F_FLUSH).
    #[must_use]
    pub fn write_through(mut self, yes: bool) -> Self {
        self.write_through = yes;
        self
    }

    /// Reads and writes bypass the host's page cache (O_DIRECT); those of a backing image do not.
    #[must_use]
    pub fn direct(mut self, yes: bool) -> Self {
        self.direct = yes;
        self
    }

    /// What becomes of requests that the host cannot carry out.
    #[must_use]
    pub fn on_error(mut self, policy: ErrorPolicy) -> Self {
        self.errors = policy;
        self
    }

    /// How many queues a virtio disk has: at least one, and [`MAX_DISK_QUEUES`] at most.
    #[must_use]
    pub fn queues(mut self, count: u16) -> Self {
        self.queues = count.clamp(1, MAX_DISK_QUEUES);
        self
    }

    /// The blocks of a virtio disk. Disks of other buses have those of their commands.
    #[must_use]
    pub fn with_blocks(mut self, blocks: Blocks) -> Self {
        self.blocks = blocks;
        self
    }

    /// Its position in the boot order, from 1. See [`crate::config::Firmware`].
    #[must_use]
    pub fn boot_order(mut self, order: Option<u32>) -> Self {
        self.boot_order = order;
        self
    }

    /// Its position in the boot order.
    pub fn boots_at(&self) -> Option<u32> {
        self.boot_order
    }

    /// Where the content is.
    pub fn image(&self) -> &DiskImage {
        &self.image
    }

    /// How it is attached.
    pub fn attachment(&self) -> Attachment {
        self.attachment
    }

    /// Its request counters, across all VMs that are built with it.
    pub fn counters(&self) -> &Arc<DiskCounters> {
        &self.counters
    }

    /// What becomes of requests that the host cannot carry out.
    pub fn answers_errors_by(&self) -> ErrorPolicy {
        self.errors
    }

    /// Its requests that are held, across all VMs that are built with it.
    pub fn stall(&self) -> &Arc<DiskStall> {
        &self.stall
    }

    /// How many queues it has.
    pub fn queue_count(&self) -> u16 {
        self.queues
    }

    /// The sizes of its blocks.
    pub fn blocks(&self) -> Blocks {
        self.blocks
    }

    /// Has it look whether its image has grown.
    pub fn growth(&self) -> &Arc<DiskGrowth> {
        &self.growth
    }

    /// Whether the guest may not write.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The id the guest reads.
    pub fn id(&self) -> &DiskSerial {
        &self.serial
    }

    /// Whether reads and writes bypass the host's page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether writes are stable at once.
    pub fn is_write_through(&self) -> bool {
        self.write_through
    }
}

impl TryFrom<vmconfig::Disk<DiskImage>> for Disk {
    type Error = DiskError;

    fn try_from(disk: vmconfig::Disk<DiskImage>) -> Result<Self, DiskError> {
        Ok(Self::new(disk.source)
            .attach(Attachment::new(disk.bus, disk.device)?)
            .read_only(disk.read_only)
            .serial(DiskSerial::new(&disk.serial)?)
            .boot_order(disk.boot_order)
            .on_error(disk.error_policy)
            .direct(disk.cache == CacheMode::None)
            .write_through(disk.cache == CacheMode::WriteThrough))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serial_is_padded_and_never_cut() {
        assert_eq!(&DiskSerial::new("abc").unwrap().as_bytes()[..4], b"abc\0");
        assert!(DiskSerial::new(&"x".repeat(20)).is_ok());
        assert!(DiskSerial::new(&"x".repeat(21)).is_err());
    }

    #[test]
    fn only_qemu_has_usb_disks_and_virtio_cdroms() {
        for &bus in DiskBus::ALL {
            for &device in DiskDevice::ALL {
                let refused = bus == DiskBus::Usb || (bus, device) == (DiskBus::Virtio, DiskDevice::CdRom);
                assert_eq!(Attachment::new(bus, device).is_err(), refused, "{device} on {bus}");
            }
        }
    }
}
