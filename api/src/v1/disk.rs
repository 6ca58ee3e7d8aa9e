use super::FeatureState;
use super::shape::shapes;

shapes! {
    /// A disk, a CD-ROM or a LUN.
    pub struct Disk {
        /// The volume it shows.
        pub name: String,
        /// A disk.
        pub disk: Option<DiskTarget>,
        /// A SCSI device with its own commands.
        pub lun: Option<LunTarget>,
        /// A CD-ROM.
        pub cdrom: Option<CdRomTarget>,
        /// From 1; shared with interfaces.
        pub boot_order: Option<u32>,
        /// What the guest reads as its serial number.
        pub serial: String,
        /// A thread of its own.
        pub dedicated_io_thread: Option<bool> = "dedicatedIOThread",
        /// `none`, `writethrough` or `writeback`.
        pub cache: String,
        /// `native` or `threads`.
        pub io: String,
        /// Told to the guest in the config drive.
        pub tag: String,
        /// Sectors.
        pub block_size: Option<BlockSize>,
        /// Several machines write to it.
        pub shareable: Option<bool>,
        /// `stop`, `ignore`, `report` or `enospace`.
        pub error_policy: Option<String>,
        /// Takes part in incremental backups.
        pub changed_block_tracking: Option<bool>,
    }

    /// A disk.
    pub struct DiskTarget {
        /// `virtio`, `sata`, `scsi` or `usb`.
        pub bus: String,
        /// The guest may not write.
        pub readonly: Option<bool>,
        /// Where on the PCI bus.
        pub pci_address: String,
    }

    /// A SCSI device with its own commands.
    pub struct LunTarget {
        /// `virtio`, `sata`, `scsi` or `usb`.
        pub bus: String,
        /// The guest may not write.
        pub readonly: Option<bool>,
        /// Persistent reservations.
        pub reservation: Option<bool>,
    }

    /// A CD-ROM.
    pub struct CdRomTarget {
        /// `sata`, `scsi` or `usb`.
        pub bus: String,
        /// True when absent.
        pub readonly: Option<bool>,
        /// `open` or `closed`.
        pub tray: String,
    }

    /// Sectors.
    pub struct BlockSize {
        /// As said here.
        pub custom: Option<CustomBlockSize>,
        /// As the volume's.
        pub match_volume: Option<FeatureState>,
    }

    /// Sectors as said here, in bytes.
    pub struct CustomBlockSize {
        /// What the guest addresses.
        pub logical: Option<u32>,
        /// What the medium writes at once.
        pub physical: Option<u32>,
        /// What can be discarded at once.
        pub discard_granularity: Option<u32>,
    }
}
