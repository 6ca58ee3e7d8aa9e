use std::path::PathBuf;

use crate::PciSlot;
use crate::name::names;

/// The longest serial number of a virtio disk, in bytes (virtio 1.2, section 5.2.6, VIRTIO_BLK_T_GET_ID).
pub const VIRTIO_SERIAL_LEN: usize = 20;

/// A disk or a CD-ROM drive. `S` is its content: a volume of a manifest, a path on the node, or an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk<S> {
    /// The name of the disk and of its volume; a DNS label.
    pub name: String,
    /// The field of the manifest that decides the bus, for error messages: `spec.domain.devices.disks[0].disk.bus`.
    pub field: String,
    /// The bus it is attached to.
    pub bus: DiskBus,
    /// The kind of device the guest sees.
    pub device: DiskDevice,
    /// The guest cannot write. Always set for a CD-ROM drive.
    pub read_only: bool,
    /// The serial number the guest reads; may be empty.
    pub serial: String,
    /// The position among the devices that firmware tries to boot from, from 1.
    pub boot_order: Option<u32>,
    /// When a write is complete.
    pub cache: CacheMode,
    /// How requests are submitted to the host; `None` leaves it to the hypervisor.
    pub io: Option<IoMode>,
    /// The response to I/O errors of the host.
    pub error_policy: ErrorPolicy,
    /// What only some manifests set.
    pub tuning: DiskTuning,
    /// The content.
    pub source: S,
}

/// Properties of a disk that have defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskTuning {
    /// The sizes of its blocks.
    pub block_size: BlockSize,
    /// A thread of its own carries out its requests.
    pub dedicated_io_thread: bool,
    /// It has a queue for each vCPU.
    pub multi_queue: bool,
    /// Its slot on the PCI bus; `None` leaves it to the hypervisor.
    pub pci_slot: Option<PciSlot>,
    /// Several VMs write to it.
    pub shareable: bool,
    /// The guest's SCSI commands are those of the block device that is its content, which must take them (SCSI pass-through).
    pub scsi_passthrough: bool,
}

/// The sizes of a disk's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockSize {
    /// 512 bytes, or what the hypervisor chooses.
    #[default]
    Default,
    /// Those of what the disk is stored on.
    Volume,
    /// These, in bytes.
    Custom {
        /// The unit of addresses.
        logical: u32,
        /// The unit that is written without reading.
        physical: u32,
        /// The unit that is discarded.
        discard_granularity: Option<u32>,
    },
}

impl BlockSize {
    /// The largest block, in bytes: QEMU's limit.
    pub const MAX: u32 = 2 << 20;

    /// Whether a disk can have a block of this size.
    pub fn is_valid(bytes: u32) -> bool {
        bytes.is_power_of_two() && (512..=Self::MAX).contains(&bytes)
    }
}

impl<S> Disk<S> {
    /// The same disk with another content.
    pub fn with_source<T>(&self, source: T) -> Disk<T> {
        Disk {
            name: self.name.clone(),
            field: self.field.clone(),
            bus: self.bus,
            device: self.device,
            read_only: self.read_only,
            serial: self.serial.clone(),
            boot_order: self.boot_order,
            cache: self.cache,
            io: self.io,
            error_policy: self.error_policy,
            tuning: self.tuning,
            source,
        }
    }

    /// Whether the guest sees a CD-ROM drive.
    pub fn is_cdrom(&self) -> bool {
        self.device == DiskDevice::CdRom
    }
}

/// The bus of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskBus {
    /// AHCI.
    Sata,
    /// virtio-scsi.
    Scsi,
    /// USB mass storage.
    Usb,
    /// virtio-blk.
    Virtio,
}

names!(DiskBus { Sata = "sata", Scsi = "scsi", Usb = "usb", Virtio = "virtio" });

/// The kind of device a disk is to the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskDevice {
    /// A CD-ROM drive; the guest can eject the medium and cannot write to it.
    CdRom,
    /// A disk.
    #[default]
    Disk,
}

names!(DiskDevice { CdRom = "cdrom", Disk = "disk" });

/// When a write is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Once the device has it. Requests bypass the page cache of the host.
    None,
    /// Once the page cache of the host has it; it is durable after a flush.
    #[default]
    WriteBack,
    /// Once it is durable.
    WriteThrough,
}

names!(CacheMode { None = "none", WriteBack = "writeback", WriteThrough = "writethrough" });

impl CacheMode {
    /// Whether requests of this mode can be submitted so: the kernel's asynchronous I/O needs an open file that bypasses
    /// the page cache, else it blocks.
    pub fn supports(self, io: Option<IoMode>) -> bool {
        io != Some(IoMode::Native) || self == Self::None
    }
}

/// How requests are submitted to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoMode {
    /// By the kernel's asynchronous I/O.
    Native,
    /// By threads that call the kernel synchronously.
    Threads,
}

names!(IoMode { Native = "native", Threads = "threads" });

/// The response to a request that the host cannot carry out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorPolicy {
    /// As [`ErrorPolicy::Stop`] if the host has no space for a write, else as [`ErrorPolicy::Report`].
    Enospace,
    /// The error is ignored: the guest sees success.
    Ignore,
    /// The guest gets an I/O error.
    Report,
    /// The guest is paused, and the request is retried until it succeeds.
    #[default]
    Stop,
}

names!(ErrorPolicy { Enospace = "enospace", Ignore = "ignore", Report = "report", Stop = "stop" });

/// The content of a disk on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskSource {
    /// A raw image or a block device.
    Raw(PathBuf),
    /// A qcow2 image that Vireo wrote.
    Qcow2 {
        /// The image.
        path: PathBuf,
        /// The raw image that unallocated clusters are read from; other disks may share it.
        backing: Option<PathBuf>,
    },
    /// A CD-ROM drive without a medium.
    NoMedium,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_parse() {
        fn check<T>(all: &[T], names: &[&str])
        where
            T: std::str::FromStr<Err = crate::UnknownName> + ToString + PartialEq + std::fmt::Debug,
        {
            assert!(names.is_sorted(), "{names:?}");
            let parsed: Vec<T> = names.iter().map(|name| name.parse().unwrap()).collect();
            assert_eq!(parsed, all);
            let printed: Vec<String> = all.iter().map(ToString::to_string).collect();
            assert_eq!(printed, names);
            assert_eq!("ide".parse::<T>().unwrap_err().supported, names);
        }
        check(DiskBus::ALL, DiskBus::NAMES);
        check(DiskDevice::ALL, DiskDevice::NAMES);
        check(CacheMode::ALL, CacheMode::NAMES);
        check(IoMode::ALL, IoMode::NAMES);
        check(ErrorPolicy::ALL, ErrorPolicy::NAMES);
    }
}
