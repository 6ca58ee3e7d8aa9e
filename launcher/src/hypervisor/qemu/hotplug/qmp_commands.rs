use serde_json::{Value, json};

use super::super::args::Args;
use super::super::blockdev::{self, DiskFds, ImageFd, ImageKind};
use super::super::pci::hotplug_port;
use crate::launch::{Disk, Launch};
use vireo_vmconfig::DiskBus;

/// The id of every hotplug command: one is outstanding at a time.
pub(in super::super) const ID: &str = "plug";
/// Ports for virtio disks; they share a slot.
pub(in super::super) const PORTS: usize = 4;
/// Sets of descriptors with lower numbers are those of descriptors that QEMU inherited.
const SETS: u32 = 1 << 20;

/// Where volumes can be attached. After every other device, none of which it shall move to another slot.
pub(in super::super) fn ports(args: &mut Args, launch: &Launch) {
    if !launch.hotplug {
        return;
    }
    if launch.disks.iter().all(|disk| disk.bus != DiskBus::Scsi) {
        args.json("-device", &blockdev::scsi_controller());
    }
    for port in 0..PORTS {
        args.json("-device", &hotplug_port(&port_name(port), port));
    }
}

fn port_name(port: usize) -> String {
    format!("port{port}")
}

pub(super) fn node(number: u32) -> String {
    format!("plugged{number}")
}

pub(super) fn device(number: u32) -> String {
    format!("device-{}", node(number))
}

fn set(number: u32) -> u32 {
    SETS.saturating_add(number)
}

fn line(name: &str, arguments: &Value) -> String {
    format!("{}\n", json!({ "execute": name, "id": ID, "arguments": arguments }))
}

pub(super) fn take_file(number: u32) -> String {
    line("add-fd", &json!({ "fdset-id": set(number) }))
}

pub(super) fn add_node(disk: &Disk, number: u32, image: ImageKind) -> String {
    let fd = i32::try_from(set(number)).unwrap_or(i32::MAX);
    let files = DiskFds { image: ImageFd { fd, kind: image }, backing: None };
    line("blockdev-add", &blockdev::content(disk, &node(number), &files))
}

pub(super) fn add_device(disk: &Disk, number: u32, port: Option<usize>) -> String {
    let mut arguments = match port {
        Some(port) => json!({ "driver": "virtio-blk-pci", "bus": port_name(port) }),
        None => json!({ "driver": blockdev::scsi_driver(disk), "bus": "scsi.0" }),
    };
    blockdev::complete(&mut arguments, disk, &node(number));
    blockdev::block_size(&mut arguments, disk, None);
    line("device_add", &arguments)
}

/// The device of a drive that is there from the start, by its position in the list of disks.
pub(super) fn drive(index: usize) -> String {
    format!("device-{}", blockdev::node(index))
}

/// Opens a tray; where the guest has locked it, only by force.
pub(super) fn open_tray(drive: &str, force: bool) -> String {
    line("blockdev-open-tray", &json!({ "id": drive, "force": force }))
}

pub(super) fn insert_medium(drive: &str, number: u32) -> String {
    line("blockdev-insert-medium", &json!({ "id": drive, "node-name": node(number) }))
}

pub(super) fn remove_medium(drive: &str) -> String {
    line("blockdev-remove-medium", &json!({ "id": drive }))
}

pub(super) fn close_tray(drive: &str) -> String {
    line("blockdev-close-tray", &json!({ "id": drive }))
}

pub(super) fn remove_device(number: u32) -> String {
    line("device_del", &json!({ "id": device(number) }))
}

pub(super) fn remove_node(number: u32) -> String {
    line("blockdev-del", &json!({ "node-name": node(number) }))
}

pub(super) fn close_file(number: u32) -> String {
    line("remove-fd", &json!({ "fdset-id": set(number) }))
}
