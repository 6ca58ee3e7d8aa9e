use std::fs::File;
use std::sync::Arc;

use super::{DiskCounters, DiskStall, ErrorPolicy};

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
}

/// What a drive on a SATA or SCSI bus is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// A disk.
    #[default]
    Disk,
    /// A CD/DVD drive with the image in it. Never written; the guest may eject it.
    CdRom,
}

/// How a disk is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskBus {
    /// virtio-blk, a PCI function of its own.
    #[default]
    Virtio,
    /// A port of the SATA controller.
    Sata(Medium),
    /// A unit of the virtio SCSI controller.
    Scsi(Medium),
}

/// A disk, or the image in a CD/DVD drive.
#[derive(Debug)]
pub struct Disk {
    image: DiskImage,
    bus: DiskBus,
    read_only: bool,
    serial: DiskSerial,
    write_through: bool,
    boot_order: Option<u32>,
    counters: Arc<DiskCounters>,
    errors: ErrorPolicy,
    stall: Arc<DiskStall>,
}

/// A disk's serial number: at most 20 bytes (virtio 1.2, section 5.2.6, VIRTIO_BLK_T_GET_ID).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSerial([u8; 20]);

/// Why a disk is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DiskError {
    /// Longer than the 20 bytes virtio has for it.
    #[error("disk serial {0:?} is longer than 20 bytes")]
    SerialTooLong(String),
}

impl DiskSerial {
    /// Checks the length.
    pub fn new(text: &str) -> Result<Self, DiskError> {
        let mut bytes = [0; 20];
        bytes
            .get_mut(..text.len())
            .ok_or_else(|| DiskError::SerialTooLong(text.to_owned()))?
            .copy_from_slice(text.as_bytes());
        Ok(Self(bytes))
    }

    /// Padded with zeros.
    pub fn as_bytes(&self) -> &[u8; 20] {
        &self.0
    }
}

impl Disk {
    /// A writable write-back virtio disk without a serial.
    pub fn new(image: DiskImage) -> Self {
        Self {
            image,
            bus: DiskBus::Virtio,
            read_only: false,
            serial: DiskSerial::default(),
            write_through: false,
            boot_order: None,
            counters: Arc::default(),
            errors: ErrorPolicy::default(),
            stall: Arc::default(),
        }
    }

    /// How it is attached.
    #[must_use]
    pub fn on(mut self, bus: DiskBus) -> Self {
        self.bus = bus;
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

    /// Every write is on stable storage before it completes, and the guest is told so (no VIRTIO_BLK_F_FLUSH cache).
    #[must_use]
    pub fn write_through(mut self, yes: bool) -> Self {
        self.write_through = yes;
        self
    }

    /// What becomes of requests that the host cannot carry out.
    #[must_use]
    pub fn on_error(mut self, policy: ErrorPolicy) -> Self {
        self.errors = policy;
        self
    }

    /// Firmware tries it at this place, from 1. See [`crate::config::Firmware`].
    #[must_use]
    pub fn boot_order(mut self, order: Option<u32>) -> Self {
        self.boot_order = order;
        self
    }

    /// Its place among what firmware tries.
    pub fn boots_at(&self) -> Option<u32> {
        self.boot_order
    }

    /// Where the content is.
    pub fn image(&self) -> &DiskImage {
        &self.image
    }

    /// How it is attached.
    pub fn bus(&self) -> DiskBus {
        self.bus
    }

    /// What is asked of it, across all machines that are built with it.
    pub fn counters(&self) -> &Arc<DiskCounters> {
        &self.counters
    }

    /// What becomes of requests that the host cannot carry out.
    pub fn answers_errors_by(&self) -> ErrorPolicy {
        self.errors
    }

    /// Its requests that are held, across all machines that are built with it.
    pub fn stall(&self) -> &Arc<DiskStall> {
        &self.stall
    }

    /// Whether the guest may not write.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The id the guest reads.
    pub fn id(&self) -> &DiskSerial {
        &self.serial
    }

    /// Whether writes are stable at once.
    pub fn is_write_through(&self) -> bool {
        self.write_through
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
}
