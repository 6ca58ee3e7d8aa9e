//! Hotplug of volumes: the QMP command that follows each response and event.
//!
//! One at a time. In: the image's descriptor, the block node over it, the device on the node. Out: the device, whose
//! removal the guest must confirm, then the node and the descriptor. A failed attachment is rolled back.
//!
//! A medium goes into a CD-ROM drive that is there from the start, through its tray, and leaves it that way.

mod qmp_commands;

use std::fs::File;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::warn;
use vireo_proto::launcher::{Fault, PluggedVolume};

use super::super::growth::GrowingImages;
use super::super::guest::{UNPLUG_TIMEOUT, VolumeAction, drive_locked, plugged_volume, still_attached};
use super::super::target::{FixedDisks, empty_drives};
use super::blockdev::ImageKind;
use super::process::set_direct_io;
use crate::fault::{Code, fault, fault_at};
use crate::launch::{Disk, Launch};
pub(super) use qmp_commands::{ID, PORTS, ports};
use vireo_vmconfig::{CacheMode, DiskBus};

/// Limit of attached volumes.
const MAX_VOLUMES: usize = 32;

/// A QMP line, with the descriptor to pass along.
#[derive(Debug)]
pub(super) struct QmpCommand {
    pub(super) line: String,
    pub(super) file: Option<File>,
}

impl From<String> for QmpCommand {
    fn from(line: String) -> Self {
        Self { line, file: None }
    }
}

/// A volume that is attached, or on its way.
#[derive(Clone, Debug)]
struct Volume {
    status: PluggedVolume,
    bus: DiskBus,
    /// Part of the names of its QEMU objects; never reused.
    number: u32,
    /// The port of a virtio device.
    port: Option<usize>,
    /// What its image is open on.
    image: ImageKind,
    /// The drive that a medium is for.
    drive: Option<Drive>,
    /// QEMU has no device of it any more.
    device_gone: bool,
}

/// A CD-ROM drive that has no medium at the start.
#[derive(Clone, Debug)]
struct Drive {
    /// The name of its disk.
    name: String,
    /// The name of its QEMU device.
    device: String,
    /// Its name in the status of volumes.
    target: String,
}

/// The command that QEMU was sent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    TakeFile,
    AddNode,
    AddDevice,
    /// For a medium, which follows.
    OpenEmptyTray,
    InsertMedium,
    CloseTray,
    /// For the medium in it, which the guest may prevent.
    OpenTray,
    RemoveMedium,
    CloseEmptyTray,
    RemoveDevice,
    /// Waiting for the guest to release the device.
    Wait(Instant),
    RemoveNode,
    CloseFile,
}

/// One volume's way in or out.
#[derive(Debug)]
struct Operation {
    volume: Volume,
    stage: Stage,
    /// On the way in.
    disk: Option<Box<Disk>>,
    reply: Option<oneshot::Sender<Option<Fault>>>,
    /// What went wrong on the way in.
    fault: Option<Fault>,
}

/// All volumes that are attached to a VM.
#[derive(Debug)]
pub(super) struct Hotplug {
    /// Absent: nothing can be attached.
    ports: Option<usize>,
    fixed: FixedDisks,
    drives: Vec<Drive>,
    volumes: Vec<Volume>,
    operation: Option<Operation>,
    count: u32,
    take_changes: bool,
    growing: GrowingImages,
}

impl Hotplug {
    /// `growing` gets the images of the attached volumes.
    pub(super) fn of(launch: &Launch, growing: GrowingImages) -> Self {
        let drives = empty_drives(launch).map(|(index, disk, target)| Drive {
            name: disk.name.clone(),
            device: qmp_commands::drive(index),
            target,
        });
        Self {
            drives: drives.collect(),
            ports: launch.hotplug.then_some(qmp_commands::PORTS),
            fixed: FixedDisks::of(launch),
            volumes: Vec::new(),
            operation: None,
            count: 0,
            take_changes: false,
            growing,
        }
    }

    /// The images that may grow.
    pub(super) fn growing(&self) -> &GrowingImages {
        &self.growing
    }

    /// Whether it could begin with another volume.
    pub(super) fn is_idle(&self) -> bool {
        self.operation.is_none()
    }

    /// When it is to be called [`Self::overdue`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.operation.as_ref()?.stage {
            Stage::Wait(until) => Some(until),
            _ => None,
        }
    }

    /// The attached volumes, if they changed since the last call.
    pub(super) fn take_changes(&mut self) -> Option<Vec<PluggedVolume>> {
        std::mem::take(&mut self.take_changes)
            .then(|| self.volumes.iter().map(|volume| volume.status.clone()).collect())
    }

    /// The devices of the attached volumes, and their names. Media are in devices that are there from the start.
    pub(super) fn devices(&self) -> Vec<(String, String)> {
        let own = self.volumes.iter().filter(|volume| volume.drive.is_none());
        own.map(|volume| (qmp_commands::device(volume.number), volume.status.name.clone())).collect()
    }

    /// Begins to attach or detach a volume.
    pub(super) fn begin(
        &mut self,
        action: VolumeAction,
        reply: oneshot::Sender<Option<Fault>>,
    ) -> Option<QmpCommand> {
        match action {
            // The caller may not have waited for the answer.
            VolumeAction::Attach(disk, _)
                if self.volumes.iter().any(|volume| volume.status.name == disk.name) =>
            {
                answer(reply, None);
                None
            }
            VolumeAction::Attach(disk, files) => match self.attach(&disk, &files.image) {
                Ok(volume) => {
                    let line = qmp_commands::take_file(volume.number);
                    let node = qmp_commands::node(volume.number);
                    if let Err(error) = self.growing.add(node, &disk, &files.image) {
                        warn!(volume = disk.name, %error, "the guest does not learn of a volume that grows");
                    }
                    self.start(volume, Stage::TakeFile, Some(disk), Some(reply));
                    Some(QmpCommand { line, file: Some(files.image) })
                }
                Err(fault) => {
                    answer(reply, Some(fault));
                    None
                }
            },
            VolumeAction::Detach(name) => {
                let Some(volume) = self.volumes.iter().find(|volume| volume.status.name == name).cloned()
                else {
                    answer(reply, None);
                    return None;
                };
                let (stage, line) = match &volume.drive {
                    Some(drive) => (Stage::OpenTray, qmp_commands::open_tray(&drive.device, false)),
                    None => (Stage::RemoveDevice, qmp_commands::remove_device(volume.number)),
                };
                self.start(volume, stage, None, Some(reply));
                Some(line.into())
            }
        }
    }

    fn start(
        &mut self,
        volume: Volume,
        stage: Stage,
        disk: Option<Box<Disk>>,
        reply: Option<oneshot::Sender<Option<Fault>>>,
    ) {
        self.operation = Some(Operation { volume, stage, disk, reply, fault: None });
    }

    /// Allocates a port and names for a disk.
    fn attach(&mut self, disk: &Disk, image: &File) -> Result<Volume, Fault> {
        let reject = |code, detail: &str| Err(fault_at(code, &disk.field, detail));
        let drive = self.drives.iter().find(|drive| drive.name == disk.name).cloned();
        if disk.is_cdrom() && drive.is_none() {
            return reject(Code::Unsupported, "the VM was started without this drive");
        }
        if self.volumes.len() >= MAX_VOLUMES {
            return reject(Code::Conflict, "too many attached volumes: detach one first");
        }
        let taken = |port: &usize| self.volumes.iter().any(|volume| volume.port == Some(*port));
        let port = match (disk.bus, self.ports) {
            _ if drive.is_some() => None,
            (_, None) => {
                return reject(Code::Unsupported, "the VM was started without ports for hotplugged volumes");
            }
            (DiskBus::Virtio, Some(ports)) => {
                let Some(port) = (0..ports).find(|port| !taken(port)) else {
                    return reject(
                        Code::Conflict,
                        "no port is free for another virtio disk: use the bus scsi",
                    );
                };
                Some(port)
            }
            (DiskBus::Scsi, _) => None,
            (DiskBus::Sata | DiskBus::Usb, _) => {
                return reject(Code::Unsupported, "volumes are attached on scsi and virtio");
            }
        };
        if disk.cache == CacheMode::None
            && let Err(error) = set_direct_io(image)
        {
            let detail = format!("volume {} cannot pass the host's cache by: {error}", disk.name);
            return reject(Code::HostResource, &detail);
        }
        let known: Vec<&str> = self.volumes.iter().map(|volume| volume.status.target.as_str()).collect();
        let target = match &drive {
            Some(drive) => drive.target.clone(),
            None => self.fixed.target(disk, &known),
        };
        let image = match ImageKind::of_plugged(image) {
            Ok(kind) if disk.tuning.scsi_passthrough && !kind.block_device => {
                let detail = format!("volume {} is a file, and a lun needs a block device", disk.name);
                return reject(Code::HostResource, &detail);
            }
            Ok(kind) => kind,
            Err(error) => {
                return reject(Code::HostResource, &format!("volume {}: {error}", disk.name));
            }
        };
        self.count += 1;
        let status = plugged_volume(disk, target);
        Ok(Volume { status, bus: disk.bus, number: self.count, port, image, drive, device_gone: false })
    }

    /// QEMU has answered the last command.
    pub(super) fn answered(&mut self, answer: Result<(), &str>) -> Option<QmpCommand> {
        let operation = self.operation.take()?;
        let number = operation.volume.number;
        match (operation.stage, answer) {
            (Stage::TakeFile, Ok(())) => {
                let image = operation.volume.image;
                let line = operation.disk.as_deref().map(|disk| qmp_commands::add_node(disk, number, image));
                self.advance(operation, Stage::AddNode, line?)
            }
            (Stage::AddNode, Ok(())) => match &operation.volume.drive {
                Some(drive) => {
                    // An empty drive may be locked, too.
                    let line = qmp_commands::open_tray(&drive.device, true);
                    self.advance(operation, Stage::OpenEmptyTray, line)
                }
                None => {
                    let port = operation.volume.port;
                    let line =
                        operation.disk.as_deref().map(|disk| qmp_commands::add_device(disk, number, port));
                    self.advance(operation, Stage::AddDevice, line?)
                }
            },
            (Stage::OpenEmptyTray, Ok(())) => {
                let line = qmp_commands::insert_medium(&operation.volume.drive.as_ref()?.device, number);
                self.advance(operation, Stage::InsertMedium, line)
            }
            (Stage::InsertMedium, Ok(())) => {
                let line = qmp_commands::close_tray(&operation.volume.drive.as_ref()?.device);
                self.advance(operation, Stage::CloseTray, line)
            }
            (Stage::RemoveMedium, Ok(())) => {
                let line = qmp_commands::close_tray(&operation.volume.drive.as_ref()?.device);
                self.advance(operation, Stage::CloseEmptyTray, line)
            }
            (Stage::InsertMedium, Err(why)) => {
                let fault = Some(qemu_error(&operation, why));
                let line = qmp_commands::close_tray(&operation.volume.drive.as_ref()?.device);
                self.advance(Operation { fault, ..operation }, Stage::CloseEmptyTray, line)
            }
            (Stage::CloseTray, _) => {
                self.volumes.push(operation.volume.clone());
                self.end(operation, None)
            }
            // It succeeds also where the guest has locked the tray, which stays closed until the guest opens it.
            (Stage::OpenTray, Ok(())) => {
                let line = qmp_commands::remove_medium(&operation.volume.drive.as_ref()?.device);
                self.advance(operation, Stage::RemoveMedium, line)
            }
            // QEMU has no class for that error.
            (Stage::RemoveMedium, Err(why)) if why.contains("is not open") => {
                let fault = drive_locked(&operation.volume.status);
                self.end(operation, Some(fault))
            }
            (Stage::OpenTray | Stage::RemoveMedium, Err(why)) => {
                let fault = qemu_error(&operation, why);
                self.end(operation, Some(fault))
            }
            (Stage::AddDevice, Ok(())) => {
                self.volumes.push(operation.volume.clone());
                self.end(operation, None)
            }
            (Stage::TakeFile, Err(why)) => {
                self.growing.remove(&qmp_commands::node(number));
                let fault = qemu_error(&operation, why);
                self.end(operation, Some(fault))
            }
            (Stage::AddNode, Err(why)) => {
                let fault = Some(qemu_error(&operation, why));
                self.advance(
                    Operation { fault, ..operation },
                    Stage::CloseFile,
                    qmp_commands::close_file(number),
                )
            }
            (Stage::AddDevice | Stage::OpenEmptyTray, Err(why)) => {
                let fault = Some(qemu_error(&operation, why));
                self.advance(
                    Operation { fault, ..operation },
                    Stage::RemoveNode,
                    qmp_commands::remove_node(number),
                )
            }
            (Stage::RemoveDevice, Ok(())) if !operation.volume.device_gone => self.wait(operation),
            (Stage::RemoveDevice, Err(why)) if why.contains("process of unplug") => self.wait(operation),
            (Stage::RemoveDevice, Err(why))
                if !why.contains("not found") && !operation.volume.device_gone =>
            {
                let fault = qemu_error(&operation, why);
                self.end(operation, Some(fault))
            }
            (Stage::RemoveDevice | Stage::CloseEmptyTray, _) => {
                self.advance(operation, Stage::RemoveNode, qmp_commands::remove_node(number))
            }
            // The next request to detach the volume retries.
            (Stage::RemoveNode, Err(why)) if operation.fault.is_none() => {
                let fault = qemu_error(&operation, why);
                self.end(operation, Some(fault))
            }
            (Stage::RemoveNode, _) => {
                self.advance(operation, Stage::CloseFile, qmp_commands::close_file(number))
            }
            (Stage::CloseFile, _) => {
                self.growing.remove(&qmp_commands::node(number));
                self.volumes.retain(|volume| volume.number != number);
                let fault = operation.fault.clone();
                self.end(operation, fault)
            }
            // No command is outstanding.
            (Stage::Wait(_), _) => {
                self.operation = Some(operation);
                None
            }
        }
    }

    fn advance(&mut self, operation: Operation, stage: Stage, line: String) -> Option<QmpCommand> {
        self.operation = Some(Operation { stage, ..operation });
        Some(line.into())
    }

    fn wait(&mut self, operation: Operation) -> Option<QmpCommand> {
        self.operation = Some(Operation { stage: Stage::Wait(Instant::now() + UNPLUG_TIMEOUT), ..operation });
        None
    }

    fn end(&mut self, operation: Operation, fault: Option<Fault>) -> Option<QmpCommand> {
        self.take_changes = true;
        if let Some(reply) = operation.reply {
            answer(reply, fault);
        }
        self.clean_up()
    }

    /// Removes what is left of a volume that the guest let go of by itself.
    fn clean_up(&mut self) -> Option<QmpCommand> {
        let volume = self.volumes.iter_mut().find(|volume| volume.device_gone)?;
        // Once: a request to detach the volume retries a failure.
        volume.device_gone = false;
        let volume = volume.clone();
        let line = qmp_commands::remove_node(volume.number);
        self.start(volume, Stage::RemoveNode, None, None);
        Some(line.into())
    }

    /// The volume that is shown by a block node.
    pub(super) fn name_of(&self, node: &str) -> Option<String> {
        let on_its_way = self.operation.as_ref().map(|operation| &operation.volume);
        let mut volumes = self.volumes.iter().chain(on_its_way);
        volumes
            .find(|volume| qmp_commands::node(volume.number) == node)
            .map(|volume| volume.status.name.clone())
    }

    /// QEMU has no device of this name any more.
    pub(super) fn deleted(&mut self, device: &str) -> Option<QmpCommand> {
        let matches = |volume: &Volume| qmp_commands::device(volume.number) == device;
        match self.operation.take_if(|operation| matches(&operation.volume)) {
            Some(mut operation) => match operation.stage {
                Stage::Wait(_) => {
                    let line = qmp_commands::remove_node(operation.volume.number);
                    self.advance(operation, Stage::RemoveNode, line)
                }
                _ => {
                    operation.volume.device_gone = true;
                    self.operation = Some(operation);
                    None
                }
            },
            None => {
                let volume = self.volumes.iter_mut().find(|volume| matches(volume))?;
                volume.device_gone = true;
                if self.is_idle() { self.clean_up() } else { None }
            }
        }
    }

    /// The guest does not let go of a device.
    pub(super) fn unplug_rejected(&mut self, device: &str) -> Option<QmpCommand> {
        let waits = |operation: &mut Operation| {
            matches!(operation.stage, Stage::Wait(_))
                && qmp_commands::device(operation.volume.number) == device
        };
        let operation = self.operation.take_if(waits)?;
        let fault = still_attached(&operation.volume.status, "rejects its removal");
        self.end(operation, Some(fault))
    }

    /// The guest has had its time to let go of a device.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<QmpCommand> {
        let operation = self
            .operation
            .take_if(|operation| matches!(operation.stage, Stage::Wait(until) if now >= until))?;
        let fault = still_attached(&operation.volume.status, "has not released it yet");
        self.end(operation, Some(fault))
    }
}

fn qemu_error(operation: &Operation, why: &str) -> Fault {
    let bus = operation.volume.bus;
    fault(
        Code::Hypervisor,
        format!("volume {} on the bus {bus}: QEMU rejects it: {why}", operation.volume.status.name),
    )
}

fn answer(reply: oneshot::Sender<Option<Fault>>, fault: Option<Fault>) {
    // The caller may be gone.
    let _ = reply.send(fault);
}

#[cfg(test)]
mod tests;
