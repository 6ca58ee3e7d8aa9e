use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt as _;

use serde_json::{Value, json};

use super::args::Args;
use super::io_thread::Threads;
use super::pci::Layout;
use crate::blocks::{Blocks, ChosenBlocks, chosen};
use crate::launch::{Disk, Launch};
use vireo_vmconfig::{BootSource, CacheMode, DiskBus, DiskSource, ErrorPolicy, IoMode};

/// Ports of the AHCI controller that every q35 machine has; further controllers have as many.
pub(super) const AHCI_PORTS: usize = 6;
/// The blocks of AHCI disks.
const SECTOR: u32 = 512;
/// How many disks get a boot index where the manifest sets no boot order. SeaBIOS has room for 16 drives, takes them in
/// the order of their slots, and leaves out those without a boot index.
const TRIED_DISKS: usize = 16;

/// A disk's descriptors as QEMU inherits them.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskFds {
    /// The image.
    pub image: ImageFd,
    /// What it is an overlay on.
    pub backing: Option<ImageFd>,
}

/// One inherited descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageFd {
    /// Its number.
    pub fd: i32,
    /// What it is open on.
    pub kind: ImageKind,
}

/// What QEMU must know of an open file or block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ImageKind {
    /// A block device rather than a file.
    pub block_device: bool,
    /// The sizes of its blocks.
    pub blocks: Blocks,
}

impl ImageKind {
    /// That of an open file or block device.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        Ok(Self { blocks: Blocks::of(file)?, ..Self::of_plugged(file)? })
    }

    /// The same for a volume that is plugged in: its blocks are sectors. A launcher whose guest runs may not ask for others.
    pub(super) fn of_plugged(file: &File) -> io::Result<Self> {
        let block_device = file.metadata()?.file_type().is_block_device();
        Ok(Self { block_device, blocks: Blocks::default() })
    }
}

/// Every disk: its content, then its device on its bus.
pub(super) fn disks(args: &mut Args, launch: &Launch, files: &[Option<DiskFds>], layout: Layout) {
    if launch.disks.iter().any(|disk| disk.bus == DiskBus::Scsi) {
        args.json("-device", &scsi_controller());
    }
    if launch.disks.iter().any(|disk| disk.bus == DiskBus::Usb) {
        args.json("-device", &json!({ "driver": "qemu-xhci", "id": "usb" }));
    }
    let mut threads = Threads::create(args, launch);
    let (mut sata, mut virtio) = (0, 0);
    for (index, (disk, fds)) in launch.disks.iter().zip(files).enumerate() {
        let node = node(index);
        for image in fds.iter().flat_map(|fds| [Some(fds.image), fds.backing]).flatten() {
            // The set has the number of the descriptor: nothing to look up, nothing to collide.
            args.option("-add-fd", format!("fd={fd},set={fd}", fd = image.fd));
        }
        if let Some(fds) = fds {
            args.json("-blockdev", &content(disk, &node, fds));
        }
        let mut device = match disk.bus {
            DiskBus::Virtio => {
                let mut device = json!({ "driver": "virtio-blk-pci" });
                layout.assign(&mut device, virtio);
                virtio += 1;
                threads.assign(args, &mut device, disk, index);
                if disk.tuning.multi_queue {
                    device["num-queues"] = json!(launch.cpu.count());
                }
                device
            }
            DiskBus::Sata => {
                let (controller, port) = (sata / AHCI_PORTS, sata % AHCI_PORTS);
                sata += 1;
                sata_drive(args, disk, controller, port)
            }
            DiskBus::Scsi => json!({ "driver": scsi_driver(disk), "bus": "scsi.0" }),
            DiskBus::Usb => {
                let bridge = format!("usb-{node}");
                args.json("-device", &json!({ "driver": "usb-bot", "id": bridge, "bus": "usb.0" }));
                json!({ "driver": scsi_driver(disk), "bus": format!("{bridge}.0"), "lun": 0 })
            }
        };
        complete(&mut device, disk, &node);
        block_size(&mut device, disk, fds.map(|fds| fds.image.kind.blocks));
        if let Some(order) = boot_index(launch, disk, index) {
            device["bootindex"] = json!(order);
        }
        args.device(device, disk.tuning.pci_slot);
    }
}

/// The block node of a disk.
pub(super) fn node(index: usize) -> String {
    format!("disk{index}")
}

/// What all SCSI disks hang on.
pub(super) fn scsi_controller() -> Value {
    json!({ "driver": "virtio-scsi-pci", "id": "scsi" })
}

pub(super) fn scsi_driver(disk: &Disk) -> &'static str {
    match disk.tuning.scsi_passthrough {
        true => "scsi-block",
        false if disk.is_cdrom() => "scsi-cd",
        false => "scsi-hd",
    }
}

fn sata_drive(args: &mut Args, disk: &Disk, controller: usize, port: usize) -> Value {
    let driver = if disk.is_cdrom() { "ide-cd" } else { "ide-hd" };
    // The VM's own controller is called ide.
    let bus = if controller == 0 { format!("ide.{port}") } else { format!("ahci{controller}.{port}") };
    if controller > 0 && port == 0 {
        args.json("-device", &json!({ "driver": "ich9-ahci", "id": format!("ahci{controller}") }));
    }
    json!({ "driver": driver, "bus": bus })
}

/// What devices of all buses have in common.
pub(super) fn complete(device: &mut Value, disk: &Disk, node: &str) {
    device["id"] = json!(format!("device-{node}"));
    if disk.source != DiskSource::NoMedium {
        device["drive"] = json!(node);
        let (reads, writes) = match disk.error_policy {
            ErrorPolicy::Stop => ("stop", "stop"),
            ErrorPolicy::Report => ("report", "report"),
            ErrorPolicy::Ignore => ("ignore", "ignore"),
            ErrorPolicy::Enospace => ("report", "enospc"),
        };
        device["rerror"] = json!(reads);
        device["werror"] = json!(writes);
        if disk.tuning.shareable {
            device["share-rw"] = json!(true);
        }
    }
    if !disk.serial.is_empty() {
        device["serial"] = json!(disk.serial);
    }
    // A CD drive has no cache to speak of, and no property for one; that of a SCSI device of the host is its own.
    if !disk.tuning.scsi_passthrough && (!disk.is_cdrom() || disk.bus == DiskBus::Virtio) {
        device["write-cache"] = json!(if disk.cache == CacheMode::WriteThrough { "off" } else { "on" });
    }
}

/// Those of the volume where it is known.
pub(super) fn block_size(device: &mut Value, disk: &Disk, volume: Option<Blocks>) {
    let Some(ChosenBlocks { blocks, discard_granularity }) = chosen(disk, volume) else { return };
    // AHCI disks have sectors of 512 bytes.
    let logical = if disk.bus == DiskBus::Sata { SECTOR } else { blocks.logical };
    device["logical_block_size"] = json!(logical);
    device["physical_block_size"] = json!(blocks.physical);
    if let Some(granularity) = discard_granularity {
        device["discard_granularity"] = json!(granularity);
    }
}

/// The boot order of the manifest; where it sets none, firmware tries the disks in their order.
fn boot_index(launch: &Launch, disk: &Disk, index: usize) -> Option<u64> {
    let no_boot_order = launch.disks.iter().all(|disk| disk.boot_order.is_none())
        && launch.interfaces.iter().all(|interface| interface.boot_order.is_none());
    let firmware = !matches!(launch.boot, BootSource::Kernel(_));
    let in_order = (no_boot_order && firmware && index < TRIED_DISKS).then(|| index as u64 + 1);
    disk.boot_order.map(u64::from).or(in_order)
}

/// The block graph of one disk. The backing image is the one of the launch message, not that of the overlay's header.
pub(super) fn content(disk: &Disk, node: &str, fds: &DiskFds) -> Value {
    let file = |image: ImageFd, read_only: bool| {
        let mut file = json!({
            "driver": if image.kind.block_device { "host_device" } else { "file" },
            "filename": format!("/dev/fdset/{}", image.fd),
            "read-only": read_only,
            // The launcher holds the lock, on the same open file.
            "locking": "off",
            "discard": "unmap",
            "cache": { "direct": disk.cache == CacheMode::None },
        });
        match disk.io {
            Some(IoMode::Native) => file["aio"] = json!("native"),
            Some(IoMode::Threads) => file["aio"] = json!("threads"),
            None => {}
        }
        file
    };
    let mut top = json!({
        "node-name": node,
        "read-only": disk.read_only,
        "discard": "unmap",
        "cache": { "direct": disk.cache == CacheMode::None },
        "file": file(fds.image, disk.read_only),
    });
    match (&disk.source, fds.backing) {
        // An empty drive has no block node.
        (DiskSource::Raw(_) | DiskSource::NoMedium, _) => top["driver"] = json!("raw"),
        (DiskSource::Qcow2 { .. }, backing) => {
            top["driver"] = json!("qcow2");
            top["backing"] = backing.map_or(
                Value::Null,
                |image| json!({ "driver": "raw", "read-only": true, "file": file(image, true) }),
            );
        }
    }
    top
}
