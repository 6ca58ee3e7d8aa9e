use super::FeatureState;
use super::shape::shapes;

shapes! {
    /// A disk of the guest. Its type is one of `disk`, `lun` and `cdrom`; `disk` is the default.
    pub struct Disk {
        /// Name of the disk: it matches the name of a volume.
        pub name: String,
        /// Attaches the volume as a disk.
        pub disk: Option<DiskTarget>,
        /// Attaches the volume as a LUN: a SCSI device to which the guest sends commands of its own.
        pub lun: Option<LunTarget>,
        /// Attaches the volume as a CD-ROM.
        pub cdrom: Option<CdRomTarget>,
        /// Position in the boot order, greater than 0. Disks and interfaces with a boot order are tried from the
        /// smallest value, and no two of them share one; those without come last.
        pub boot_order: Option<u32>,
        /// Serial number that the guest reads.
        pub serial: String,
        /// Whether the disk uses an IOThread of its own. Defaults to false.
        pub dedicated_io_thread: Option<bool> = "dedicatedIOThread",
        /// Cache mode of the disk: `none`, `writethrough` or `writeback`.
        pub cache: String,
        /// I/O mode of the disk: `native` or `threads`.
        pub io: String,
        /// Tag that is published to the guest with the address of the disk, in the metadata of a cloud-init config
        /// drive.
        pub tag: String,
        /// Block size that the guest sees.
        pub block_size: Option<BlockSize>,
        /// Whether the disk is shared by more than one VMI.
        pub shareable: Option<bool>,
        /// What happens when the disk reports an I/O error: `stop`, `ignore`, `report` or `enospace`.
        pub error_policy: Option<String>,
        /// Whether changed blocks of the disk are tracked, for incremental backups.
        pub changed_block_tracking: Option<bool>,
    }

    /// Attaches a volume as a disk.
    pub struct DiskTarget {
        /// Bus of the disk: `virtio`, `sata`, `scsi` or `usb`.
        pub bus: String,
        /// Whether the guest can only read the disk. Defaults to false.
        pub readonly: Option<bool>,
        /// PCI address of a virtio disk, such as `0000:81:01.0`.
        pub pci_address: String,
    }

    /// Attaches a volume as a LUN.
    pub struct LunTarget {
        /// Bus of the LUN: `virtio`, `sata` or `scsi`.
        pub bus: String,
        /// Whether the guest can only read the LUN. Defaults to false.
        pub readonly: Option<bool>,
        /// Whether the guest can use SCSI persistent reservations.
        pub reservation: Option<bool>,
    }

    /// Attaches a volume as a CD-ROM.
    pub struct CdRomTarget {
        /// Bus of the CD-ROM: `sata`, `scsi` or `usb`.
        pub bus: String,
        /// Whether the guest can only read the CD-ROM. Defaults to true.
        pub readonly: Option<bool>,
        /// Whether the tray is `open` or `closed`. Defaults to `closed`.
        pub tray: String,
    }

    /// Block size of a disk: one of its members must be set.
    pub struct BlockSize {
        /// Block sizes in bytes.
        pub custom: Option<CustomBlockSize>,
        /// Uses the block sizes of the underlying volume.
        pub match_volume: Option<FeatureState>,
    }

    /// Block sizes of a disk, in bytes.
    pub struct CustomBlockSize {
        /// Logical block size: the unit in which the guest addresses the disk.
        pub logical: Option<u32>,
        /// Physical block size: the unit that the disk writes without a read-modify-write.
        pub physical: Option<u32>,
        /// Smallest amount of data that can be discarded in a single operation.
        pub discard_granularity: Option<u32>,
    }
}
