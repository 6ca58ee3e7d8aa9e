//! Volumes plugged into a machine that runs, and out of it: what to say to QEMU next, for everything it says.
//!
//! One at a time. In: the image's descriptor, the block node over it, the device on the node. Out: the device, whose
//! end the guest has a say in, then the node and the descriptor. What fails on the way in is taken back.

mod names;
mod words;

use std::fs::File;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use vireo_proto::launcher::{Fault, PluggedVolume};

use super::process::pass_by_cache;
use crate::fault::{Code, fault, fault_at};
use crate::hypervisor::{Plug, Plugging};
use crate::launch::{Disk, Launch};
use names::target;
use vireo_vmconfig::{CacheMode, DiskBus, DiskSource};
pub(super) use words::{ID, places};

/// More than anybody plugs in.
const MOST: usize = 32;
/// How long a guest gets to let go of a volume.
const PATIENCE: Duration = Duration::from_secs(15);

/// A line for QEMU, with the descriptor that goes along.
#[derive(Debug)]
pub(super) struct Saying {
    pub(super) line: String,
    pub(super) file: Option<File>,
}

impl From<String> for Saying {
    fn from(line: String) -> Self {
        Self { line, file: None }
    }
}

/// A volume that is plugged in, or on its way.
#[derive(Clone, Debug)]
struct Volume {
    told: PluggedVolume,
    bus: DiskBus,
    /// Tells what QEMU calls its parts; never used twice.
    number: u32,
    /// The port of a virtio device.
    port: Option<usize>,
    /// QEMU has no device of it any more.
    gone: bool,
}

/// What QEMU was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    TakeFile,
    AddNode,
    AddDevice,
    RemoveDevice,
    /// The guest was asked to let go of it.
    Wait(Instant),
    RemoveNode,
    CloseFile,
}

/// One volume's way in or out.
#[derive(Debug)]
struct Work {
    volume: Volume,
    stage: Stage,
    /// On the way in.
    disk: Option<Box<Disk>>,
    reply: Option<oneshot::Sender<Option<Fault>>>,
    /// What went wrong on the way in.
    fault: Option<Fault>,
}

/// All volumes that are plugged into a machine.
#[derive(Debug)]
pub(super) struct Plugs {
    /// Absent: nothing can be plugged in.
    ports: Option<usize>,
    /// Disks that are there from the start: those that Linux calls vd, and the others.
    fixed: (usize, usize),
    volumes: Vec<Volume>,
    work: Option<Work>,
    count: u32,
    news: bool,
}

impl Plugs {
    pub(super) fn of(launch: &Launch) -> Self {
        let virtio = launch.disks.iter().filter(|disk| disk.bus == DiskBus::Virtio).count();
        // CD drives have names of their own.
        let others =
            launch.disks.iter().filter(|disk| disk.bus != DiskBus::Virtio && !disk.is_cdrom()).count();
        Self {
            ports: launch.hotplug.then_some(words::PORTS),
            fixed: (virtio, others),
            volumes: Vec::new(),
            work: None,
            count: 0,
            news: false,
        }
    }

    /// Whether it could begin with another volume.
    pub(super) fn is_idle(&self) -> bool {
        self.work.is_none()
    }

    /// When it is to be called [`Self::overdue`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.work.as_ref()?.stage {
            Stage::Wait(until) => Some(until),
            _ => None,
        }
    }

    /// What is plugged in, if that changed since it was asked last.
    pub(super) fn news(&mut self) -> Option<Vec<PluggedVolume>> {
        std::mem::take(&mut self.news)
            .then(|| self.volumes.iter().map(|volume| volume.told.clone()).collect())
    }

    /// Begins to plug a volume in or out.
    pub(super) fn begin(&mut self, Plugging { plug, reply }: Plugging) -> Option<Saying> {
        match plug {
            Plug::In(disk, files) => match self.place(&disk, &files.image) {
                Ok(volume) => {
                    let line = words::take_file(volume.number);
                    self.start(volume, Stage::TakeFile, Some(disk), Some(reply));
                    Some(Saying { line, file: Some(files.image) })
                }
                Err(fault) => {
                    answer(reply, Some(fault));
                    None
                }
            },
            Plug::Out(name) => {
                let Some(volume) = self.volumes.iter().find(|volume| volume.told.name == name).cloned()
                else {
                    answer(reply, None);
                    return None;
                };
                let line = words::remove_device(volume.number);
                self.start(volume, Stage::RemoveDevice, None, Some(reply));
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
        self.work = Some(Work { volume, stage, disk, reply, fault: None });
    }

    /// Finds room for a disk.
    fn place(&mut self, disk: &Disk, image: &File) -> Result<Volume, Fault> {
        let refused = |code, detail: &str| Err(fault_at(code, &disk.field, detail));
        let Some(ports) = self.ports else {
            return refused(Code::Unsupported, "the machine was started without a place to plug volumes in");
        };
        if self.volumes.len() >= MOST {
            return refused(Code::Conflict, "no more volumes can be plugged in: plug one out");
        }
        let taken = |port: &usize| self.volumes.iter().any(|volume| volume.port == Some(*port));
        let port = match disk.bus {
            DiskBus::Virtio => {
                let Some(port) = (0..ports).find(|port| !taken(port)) else {
                    return refused(
                        Code::Conflict,
                        "no port is free for another virtio disk: use the bus scsi",
                    );
                };
                Some(port)
            }
            DiskBus::Scsi => None,
            DiskBus::Sata | DiskBus::Usb => {
                return refused(Code::Unsupported, "volumes are plugged in on scsi and virtio");
            }
        };
        if disk.cache == CacheMode::None
            && let Err(error) = pass_by_cache(image)
        {
            let detail = format!("volume {} cannot pass the host's cache by: {error}", disk.name);
            return refused(Code::HostResource, &detail);
        }
        let (prefix, fixed) = if port.is_some() { ("vd", self.fixed.0) } else { ("sd", self.fixed.1) };
        let known: Vec<&str> = self.volumes.iter().map(|volume| volume.told.target.as_str()).collect();
        let path = match &disk.source {
            DiskSource::Raw(path) | DiskSource::Qcow2 { path, .. } => path.to_string_lossy().into_owned(),
            DiskSource::NoMedium => String::new(),
        };
        self.count += 1;
        let told = PluggedVolume { name: disk.name.clone(), target: target(prefix, fixed, &known), path };
        Ok(Volume { told, bus: disk.bus, number: self.count, port, gone: false })
    }

    /// QEMU has answered what was said last.
    pub(super) fn answered(&mut self, answer: Result<(), &str>) -> Option<Saying> {
        let work = self.work.take()?;
        let number = work.volume.number;
        match (work.stage, answer) {
            (Stage::TakeFile, Ok(())) => {
                let line = work.disk.as_deref().map(|disk| words::add_node(disk, number));
                self.go_on(work, Stage::AddNode, line?)
            }
            (Stage::AddNode, Ok(())) => {
                let line = work.disk.as_deref().map(|disk| words::add_device(disk, number, work.volume.port));
                self.go_on(work, Stage::AddDevice, line?)
            }
            (Stage::AddDevice, Ok(())) => {
                self.volumes.push(work.volume.clone());
                self.end(work, None)
            }
            (Stage::TakeFile, Err(why)) => {
                let fault = refusal(&work, why);
                self.end(work, Some(fault))
            }
            (Stage::AddNode, Err(why)) => {
                let fault = Some(refusal(&work, why));
                self.go_on(Work { fault, ..work }, Stage::CloseFile, words::close_file(number))
            }
            (Stage::AddDevice, Err(why)) => {
                let fault = Some(refusal(&work, why));
                self.go_on(Work { fault, ..work }, Stage::RemoveNode, words::remove_node(number))
            }
            (Stage::RemoveDevice, Ok(())) if !work.volume.gone => self.wait(work),
            (Stage::RemoveDevice, Err(why)) if why.contains("process of unplug") => self.wait(work),
            (Stage::RemoveDevice, Err(why)) if !why.contains("not found") && !work.volume.gone => {
                let fault = refusal(&work, why);
                self.end(work, Some(fault))
            }
            (Stage::RemoveDevice, _) => self.go_on(work, Stage::RemoveNode, words::remove_node(number)),
            // What it still holds is tried again by the next that plugs it out.
            (Stage::RemoveNode, Err(why)) if work.fault.is_none() => {
                let fault = refusal(&work, why);
                self.end(work, Some(fault))
            }
            (Stage::RemoveNode, _) => self.go_on(work, Stage::CloseFile, words::close_file(number)),
            (Stage::CloseFile, _) => {
                self.volumes.retain(|volume| volume.number != number);
                let fault = work.fault.clone();
                self.end(work, fault)
            }
            // Nothing was said that this could answer.
            (Stage::Wait(_), _) => {
                self.work = Some(work);
                None
            }
        }
    }

    fn go_on(&mut self, work: Work, stage: Stage, line: String) -> Option<Saying> {
        self.work = Some(Work { stage, ..work });
        Some(line.into())
    }

    fn wait(&mut self, work: Work) -> Option<Saying> {
        self.work = Some(Work { stage: Stage::Wait(Instant::now() + PATIENCE), ..work });
        None
    }

    fn end(&mut self, work: Work, fault: Option<Fault>) -> Option<Saying> {
        self.news = true;
        if let Some(reply) = work.reply {
            answer(reply, fault);
        }
        self.tidy()
    }

    /// Removes what is left of a volume that the guest let go of by itself.
    fn tidy(&mut self) -> Option<Saying> {
        let volume = self.volumes.iter_mut().find(|volume| volume.gone)?;
        // Once: what fails is tried again by whoever plugs it out.
        volume.gone = false;
        let volume = volume.clone();
        let line = words::remove_node(volume.number);
        self.start(volume, Stage::RemoveNode, None, None);
        Some(line.into())
    }

    /// The volume that is shown by a block node.
    pub(super) fn name_of(&self, node: &str) -> Option<String> {
        let on_its_way = self.work.as_ref().map(|work| &work.volume);
        let mut volumes = self.volumes.iter().chain(on_its_way);
        volumes.find(|volume| words::node(volume.number) == node).map(|volume| volume.told.name.clone())
    }

    /// QEMU has no device of this name any more.
    pub(super) fn deleted(&mut self, device: &str) -> Option<Saying> {
        let is_it = |volume: &Volume| words::device(volume.number) == device;
        match self.work.take_if(|work| is_it(&work.volume)) {
            Some(mut work) => match work.stage {
                Stage::Wait(_) => {
                    let line = words::remove_node(work.volume.number);
                    self.go_on(work, Stage::RemoveNode, line)
                }
                _ => {
                    work.volume.gone = true;
                    self.work = Some(work);
                    None
                }
            },
            None => {
                let volume = self.volumes.iter_mut().find(|volume| is_it(volume))?;
                volume.gone = true;
                if self.is_idle() { self.tidy() } else { None }
            }
        }
    }

    /// The guest does not let go of a device.
    pub(super) fn kept(&mut self, device: &str) -> Option<Saying> {
        let waits = |work: &mut Work| {
            matches!(work.stage, Stage::Wait(_)) && words::device(work.volume.number) == device
        };
        let work = self.work.take_if(waits)?;
        let fault = keeps(&work.volume, "refuses to let go of it");
        self.end(work, Some(fault))
    }

    /// The guest has had its time to let go of a device.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<Saying> {
        let work = self.work.take_if(|work| matches!(work.stage, Stage::Wait(until) if now >= until))?;
        let fault = keeps(&work.volume, "has not let go of it yet");
        self.end(work, Some(fault))
    }
}

fn keeps(volume: &Volume, how: &str) -> Fault {
    let detail = format!("volume {} stays plugged in: the guest {how}; is its system up?", volume.told.name);
    fault(Code::Conflict, detail)
}

fn refusal(work: &Work, why: &str) -> Fault {
    let bus = work.volume.bus;
    fault(Code::Hypervisor, format!("volume {} on the bus {bus}: QEMU refuses: {why}", work.volume.told.name))
}

fn answer(reply: oneshot::Sender<Option<Fault>>, fault: Option<Fault>) {
    // The caller may have hung up.
    let _ = reply.send(fault);
}

#[cfg(test)]
mod tests;
