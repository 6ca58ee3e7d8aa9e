//! Volumes and NICs that are attached to the monitor's VM while it runs, and detached: disks and NICs in slots, and media of CD-ROM
//! drives.
//!
//! One at a time: the next waits until the guest has released the one that is detached, or has had its time.

use std::future::pending;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tracing::info;
use vireo_proto::launcher::{Fault, PluggedVolume};
use vireo_vmconfig::DiskBus;
use vireo_vmm::Controls;
use vireo_vmm::config::DiskGrowth;
use vireo_vmm::hotplug::{Hotplug, HotplugError};

use super::super::guest::{
    HotplugAction, HotplugRequest, NicChange, UNPLUG_TIMEOUT, VolumeAction, nic_stays, plugged_volume,
    still_attached,
};
use super::super::target::FixedDisks;
use super::command_loop::Links;
use super::disk_growth::{self, GrowingDisks};
use super::media::Media;
use super::stall::StallingDisks;
use super::stats::{self, PluggedCounters};
use crate::fault::{Code, chain, fault, fault_at};
use crate::host::{DiskFiles, NicFiles};
use crate::hypervisor::Event;
use crate::launch::{Disk, Interface, Launch};
use crate::plan;

type Reply = oneshot::Sender<Option<Fault>>;

/// The hotplug slots of a VM, and the slots whose disks the guest has released.
pub(super) fn slots() -> (Hotplug, mpsc::UnboundedReceiver<u8>) {
    let (sender, released) = mpsc::unbounded_channel();
    // The receiver is gone when the VM has ended.
    let slots = Hotplug::new(move |slot| {
        let _ = sender.send(slot);
    });
    (slots, released)
}

/// The attached volumes and NICs of a VM.
pub(super) struct Devices {
    launch: Arc<Launch>,
    slots: Hotplug,
    media: Media,
    events: mpsc::UnboundedSender<Event>,
    followed: Followed,
    attached: Vec<Volume>,
    /// Of all NICs.
    links: Links,
    /// The names of attached NICs and their slots.
    nics: Vec<(String, u8)>,
    waiting: Option<Waiting>,
}

/// What is known of all disks of a VM, to which those of attached volumes belong.
pub(super) struct Followed {
    pub(super) stalling: StallingDisks,
    pub(super) growing: GrowingDisks,
    pub(super) counters: PluggedCounters,
}

struct Volume {
    status: PluggedVolume,
    slot: u8,
    /// Its number among the disks whose requests may be held.
    stall: usize,
    growth: Arc<DiskGrowth>,
}

/// For the guest to release a device.
struct Waiting {
    slot: u8,
    reply: Reply,
    deadline: Instant,
}

impl Devices {
    pub(super) fn new(
        launch: &Arc<Launch>,
        (slots, media): (Hotplug, Media),
        events: mpsc::UnboundedSender<Event>,
        followed: Followed,
        links: Links,
    ) -> Self {
        let launch = launch.clone();
        let (attached, nics) = (Vec::new(), Vec::new());
        Self { launch, slots, media, events, followed, attached, links, nics, waiting: None }
    }

    /// Executes requests until the VM thread has ended.
    pub(super) async fn run(
        mut self,
        mut requests: mpsc::Receiver<HotplugRequest>,
        mut released: mpsc::UnboundedReceiver<u8>,
        mut current: watch::Receiver<Option<Controls>>,
    ) {
        loop {
            let deadline = self.waiting.as_ref().map(|waiting| waiting.deadline);
            tokio::select! {
                // A slot is used again only after what was in it is known to be gone.
                biased;
                Some(slot) = released.recv() => self.released(slot).await,
                Some(request) = requests.recv(), if self.waiting.is_none() => self.begin(request).await,
                () = reached(deadline) => self.overdue(),
                () = self.media.ejected() => self.publish(),
                changed = current.changed() => if changed.is_err() {
                    // Those of the last guest have workers that may take their time to end.
                    let slots = self.slots.clone();
                    let _ = spawn_blocking(move || slots.close_released()).await;
                    return;
                },
            }
        }
    }

    async fn begin(&mut self, HotplugRequest { action, reply }: HotplugRequest) {
        match action {
            HotplugAction::Volume(VolumeAction::Attach(disk, files)) => {
                let outcome = match disk.is_cdrom() {
                    true => self.media.insert(&disk, files).await,
                    false => self.attach(&disk, files).await,
                };
                if outcome.is_ok() {
                    self.publish();
                }
                answer(reply, outcome.err());
            }
            HotplugAction::Volume(VolumeAction::Detach(name)) if self.media.has(&name) => {
                let outcome = self.media.eject(&name).await;
                if outcome.is_ok() {
                    self.publish();
                }
                answer(reply, outcome.err());
            }
            HotplugAction::Volume(VolumeAction::Detach(name)) => {
                let volume = self.attached.iter().find(|volume| volume.status.name == name);
                self.detach(volume.map(|volume| volume.slot), reply).await;
            }
            HotplugAction::AttachNic(nic, files) => {
                let outcome = self.attach_nic(&nic, files).await;
                let change = match outcome {
                    Ok(()) => NicChange::Attached(nic.name),
                    Err(_) => NicChange::Gone(nic.name),
                };
                self.emit(Event::Nic(change));
                answer(reply, outcome.err());
            }
            HotplugAction::DetachNic(name) => {
                let nic = self.nics.iter().find(|(known, _)| *known == name);
                self.detach(nic.map(|(_, slot)| *slot), reply).await;
            }
        }
    }

    /// Has the guest release what is in a slot, if there is anything.
    async fn detach(&mut self, slot: Option<u8>, reply: Reply) {
        let Some(slot) = slot else { return answer(reply, None) };
        let deadline = Instant::now() + UNPLUG_TIMEOUT;
        // A VM that is being built reads the images of its disks meanwhile.
        let slots = self.slots.clone();
        match spawn_blocking(move || slots.detach(slot)).await {
            Ok(Ok(())) => self.waiting = Some(Waiting { slot, reply, deadline }),
            // The guest has released it by itself, which is reported next.
            Ok(Err(_)) => answer(reply, None),
            Err(_) => answer(reply, Some(fault(Code::Internal, "detaching the device broke off"))),
        }
    }

    async fn attach_nic(&mut self, nic: &Interface, files: NicFiles) -> Result<(), Fault> {
        let rejected = |code, detail: String| fault_at(code, &nic.field, detail);
        if !self.launch.hotplug {
            return Err(rejected(Code::Unsupported, "the VM was started without hotplug slots".to_owned()));
        }
        let device = plan::net(nic, files.queues, files.vhost);
        let device = device.ok_or_else(|| rejected(Code::Invalid, "its tap has no queue".to_owned()))?;
        let link = device.link().clone();
        let slots = self.slots.clone();
        // The kernel is asked what the tap can do.
        let slot = spawn_blocking(move || slots.attach(device)).await;
        let slot = slot.map_err(|_| fault(Code::Internal, "attaching the NIC broke off"))?;
        let slot = slot.map_err(|error| rejected(code(&error), chain(&error)))?;
        self.links.add(nic.name.clone(), link);
        self.nics.push((nic.name.clone(), slot));
        info!(nic = nic.name, slot, "attached");
        Ok(())
    }

    async fn attach(&mut self, disk: &Disk, files: DiskFiles) -> Result<(), Fault> {
        let rejected = |code, detail: String| fault_at(code, &disk.field, detail);
        // The caller may not have waited for the answer.
        if self.attached.iter().any(|volume| volume.status.name == disk.name) {
            return Ok(());
        }
        if !self.launch.hotplug {
            return Err(rejected(Code::Unsupported, "the VM was started without hotplug slots".to_owned()));
        }
        if !matches!(disk.bus, DiskBus::Scsi | DiskBus::Virtio) {
            return Err(rejected(Code::Unsupported, "volumes are attached on scsi and virtio".to_owned()));
        }
        if disk.tuning.scsi_passthrough {
            let detail = "a lun is attached to VMs on qemu, and this one runs on native: attach it as a disk";
            return Err(rejected(Code::Unsupported, detail.to_owned()));
        }
        let device = plan::attached_disk(&self.launch, disk, files)?;
        let (growth, counters) = (device.growth().clone(), device.counters().clone());
        let stall = self.followed.stalling.add(disk.name.clone(), device.stall());
        let slots = self.slots.clone();
        // The image is read.
        let slot = spawn_blocking(move || slots.attach(device)).await;
        let slot = slot.map_err(|_| fault(Code::Internal, "attaching the volume broke off"));
        let slot = slot.and_then(|slot| slot.map_err(|error| rejected(code(&error), chain(&error))));
        let slot = slot.inspect_err(|_| self.followed.stalling.remove(stall))?;
        disk_growth::lock(&self.followed.growing).push(growth.clone());
        stats::lock(&self.followed.counters).push((disk.name.clone(), counters));
        let known: Vec<&str> = self.attached.iter().map(|volume| volume.status.target.as_str()).collect();
        let target = FixedDisks::of(&self.launch).target(disk, &known);
        self.attached.push(Volume { status: plugged_volume(disk, target), slot, stall, growth });
        info!(volume = disk.name, slot, "attached");
        Ok(())
    }

    /// The guest has released what was in a slot, by request or by itself.
    async fn released(&mut self, slot: u8) {
        let slots = self.slots.clone();
        // Requests in flight are waited for; the files are closed.
        if spawn_blocking(move || slots.close_released()).await.is_err() {
            tracing::error!("closing a device broke off");
        }
        if let Some(at) = self.attached.iter().position(|volume| volume.slot == slot) {
            let volume = self.attached.remove(at);
            disk_growth::lock(&self.followed.growing).retain(|growth| !Arc::ptr_eq(growth, &volume.growth));
            stats::lock(&self.followed.counters).retain(|(name, _)| *name != volume.status.name);
            self.followed.stalling.remove(volume.stall);
            info!(volume = volume.status.name, slot, "detached");
            self.publish();
        }
        if let Some(at) = self.nics.iter().position(|(_, of)| *of == slot) {
            let (name, _) = self.nics.remove(at);
            self.links.remove(&name);
            info!(nic = name, slot, "detached");
            self.emit(Event::Nic(NicChange::Gone(name)));
        }
        if let Some(waiting) = self.waiting.take_if(|waiting| waiting.slot == slot) {
            answer(waiting.reply, None);
        }
    }

    /// The guest has had its time. It may still release the device, and does when it is reset.
    fn overdue(&mut self) {
        let Some(Waiting { slot, reply, .. }) = self.waiting.take() else { return };
        let how = "has not released it yet";
        let volume = self.attached.iter().find(|volume| volume.slot == slot);
        let nic = self.nics.iter().find(|(_, of)| *of == slot);
        let stays = volume.map(|volume| still_attached(&volume.status, how));
        answer(reply, stays.or_else(|| nic.map(|(name, _)| nic_stays(name, how))));
    }

    fn publish(&self) {
        let attached = self.attached.iter().map(|volume| volume.status.clone());
        self.emit(Event::Plugged(attached.chain(self.media.volumes()).collect()));
    }

    fn emit(&self, event: Event) {
        // The receiver may be gone.
        let _ = self.events.send(event);
    }
}

fn code(error: &HotplugError) -> Code {
    match error {
        HotplugError::NoVm | HotplugError::Full | HotplugError::Absent(_) => Code::Conflict,
        HotplugError::Bus => Code::Unsupported,
        HotplugError::Image(_) | HotplugError::Net(_) => Code::HostResource,
        HotplugError::Device(_) | HotplugError::Root(_) => Code::Hypervisor,
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

fn answer(reply: Reply, fault: Option<Fault>) {
    // The caller may be gone.
    let _ = reply.send(fault);
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::DiskSource;

    use super::super::stall;
    use super::*;
    use crate::launch::sample;

    fn devices(hotplug: bool) -> (Devices, mpsc::UnboundedReceiver<Event>) {
        let (events, receiver) = mpsc::unbounded_channel();
        let launch = Arc::new(Launch { hotplug, ..sample::kernel_boot() });
        let (_, stalling, _) = stall::listen([]);
        let followed = Followed { stalling, growing: Arc::default(), counters: Arc::default() };
        let links = Links::default();
        let devices = Devices::new(&launch, (slots().0, Media::default()), events, followed, links);
        (devices, receiver)
    }

    async fn answer_to(devices: &mut Devices, action: HotplugAction) -> Option<Fault> {
        let (reply, answer) = oneshot::channel();
        devices.begin(HotplugRequest { action, reply }).await;
        answer.await.unwrap()
    }

    fn attach(bus: DiskBus, serial: &str) -> HotplugAction {
        let disk = sample::kernel_boot().disks.first().expect("a disk").clone();
        let source = DiskSource::Raw("/data.img".into());
        let disk = Disk { bus, source, serial: serial.to_owned(), name: "data".to_owned(), ..disk };
        let files = DiskFiles { image: tempfile::tempfile().unwrap(), backing: None };
        HotplugAction::Volume(VolumeAction::Attach(Box::new(disk), files))
    }

    #[tokio::test]
    async fn what_is_not_attached_leaves_nothing_behind() {
        let long = "x".repeat(21);
        for (hotplug, bus, serial, code) in [
            (false, DiskBus::Virtio, "", Code::Unsupported),
            (true, DiskBus::Sata, "", Code::Unsupported),
            (true, DiskBus::Scsi, long.as_str(), Code::Unsupported),
            // No VM was built with these slots.
            (true, DiskBus::Scsi, "", Code::Conflict),
        ] {
            let (mut devices, mut events) = devices(hotplug);
            let fault = answer_to(&mut devices, attach(bus, serial)).await.expect("a fault");
            assert_eq!(fault.code(), code, "{fault:?}");
            assert!(devices.attached.is_empty() && disk_growth::lock(&devices.followed.growing).is_empty());
            assert!(stats::lock(&devices.followed.counters).is_empty());
            assert!(events.try_recv().is_err());
            let detach = HotplugAction::Volume(VolumeAction::Detach("data".to_owned()));
            assert_eq!(answer_to(&mut devices, detach).await, None, "it is out already");
        }
    }

    #[tokio::test]
    async fn a_lun_is_not_attached() {
        let (mut devices, _events) = devices(true);
        let HotplugAction::Volume(VolumeAction::Attach(mut disk, files)) = attach(DiskBus::Scsi, "") else {
            panic!("a disk")
        };
        disk.tuning.scsi_passthrough = true;
        let action = HotplugAction::Volume(VolumeAction::Attach(disk, files));
        let fault = answer_to(&mut devices, action).await.expect("a fault");
        assert!(fault.detail.contains("this one runs on native"), "{fault:?}");
    }

    #[tokio::test]
    async fn a_volume_is_attached_once() {
        let (mut devices, mut events) = devices(true);
        let status = PluggedVolume { name: "data".into(), target: "sda".into(), path: "/data.img".into() };
        devices.attached.push(Volume { status, slot: 4, stall: 0, growth: Arc::default() });
        // No VM was built: another one would be a fault.
        assert_eq!(answer_to(&mut devices, attach(DiskBus::Scsi, "")).await, None);
        assert_eq!(devices.attached.len(), 1);
        assert!(matches!(events.try_recv(), Ok(Event::Plugged(all)) if all.len() == 1));
    }

    #[tokio::test]
    async fn a_guest_that_does_not_release_a_volume_is_reported() {
        let (mut devices, mut events) = devices(true);
        let status = PluggedVolume { name: "data".into(), target: "sda".into(), path: "/data.img".into() };
        devices.attached.push(Volume { status, slot: 4, stall: 0, growth: Arc::default() });
        let (reply, answer) = oneshot::channel();
        devices.waiting = Some(Waiting { slot: 4, reply, deadline: Instant::now() });
        devices.overdue();
        let fault = answer.await.unwrap().expect("a fault");
        assert_eq!(fault.code(), Code::Conflict);
        assert_eq!(
            fault.detail,
            "volume data stays attached: the guest has not released it yet; is its system up?"
        );
        assert!(devices.waiting.is_none() && devices.attached.len() == 1);
        // Later it does.
        devices.released(4).await;
        assert_eq!(events.recv().await, Some(Event::Plugged(Vec::new())));
    }
}
