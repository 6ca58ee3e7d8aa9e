//! Entry point for what QEMU says: a QEMU that a guest has taken over is as hostile as its guest.

use std::fs::File;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::sync::oneshot;
use tokio::time::Instant;
use vireo_proto::launcher::DiskFailure;
use vireo_vmconfig::DiskBus;

use super::exit::ExitReason;
use super::hotplug::{self, Hotplug};
use super::nics::{self, NicHotplug};
use super::qmp::{self, Event, Message};
use super::soft_reboot::SoftReboot;
use super::stall::Stall;
use super::stats::{self, Next, StatsQuery};
use crate::host::{DiskFiles, NicFiles};
use crate::hypervisor::VolumeAction;
use crate::hypervisor::growth::GrowingImages;
use crate::launch::{Launch, sample};

/// The state that messages of QEMU change.
struct Vm {
    hotplug: Hotplug,
    nics: NicHotplug,
    stall: Stall,
    soft_reboot: SoftReboot,
    exit: ExitReason,
    stats: Option<StatsQuery>,
    now: Instant,
}

/// Lines of QEMU, and between them what users ask for, in lines that begin with `!` and the letter of a request.
pub fn qmp(script: &[u8]) {
    let launch = Launch { hotplug: true, nic_hotplug: true, ..sample::kernel_boot() };
    let mut vm = Vm {
        hotplug: Hotplug::of(&launch, GrowingImages::default()),
        nics: NicHotplug::of(&launch),
        stall: Stall::new(false),
        soft_reboot: SoftReboot::default(),
        exit: ExitReason::default(),
        stats: None,
        now: Instant::now(),
    };
    let text = String::from_utf8_lossy(script);
    for line in text.lines() {
        match line.as_bytes() {
            [b'!', request, name @ ..] => vm.request(&launch, *request, name),
            _ => {
                if let Ok(message) = qmp::parse(line) {
                    vm.message(message);
                }
            }
        }
        vm.now += Duration::from_millis(500);
        let _ = vm.hotplug.take_changes();
        let _ = vm.nics.take_changes();
    }
    let _ = vm.exit.to_end(None, "");
}

impl Vm {
    fn request(&mut self, launch: &Launch, request: u8, name: &[u8]) {
        let name = String::from_utf8_lossy(name).into_owned();
        match request {
            b'a' if self.hotplug.is_idle() => {
                let Some(disk) = launch.disks.first() else { return };
                let bus = if name.len().is_multiple_of(2) { DiskBus::Virtio } else { DiskBus::Scsi };
                let disk = crate::launch::Disk { name, bus, ..disk.clone() };
                let image = File::from(memfd_create("image", MemfdFlags::CLOEXEC).expect("a memfd"));
                let files = DiskFiles { image, backing: None };
                self.begin(VolumeAction::Attach(Box::new(disk), files));
            }
            b'd' if self.hotplug.is_idle() => self.begin(VolumeAction::Detach(name)),
            b'n' if self.nics.is_idle() => {
                let Some(nic) = launch.interfaces.first() else { return };
                let queue = memfd_create("queue", MemfdFlags::CLOEXEC).expect("a memfd");
                let nic =
                    crate::launch::Interface { link_up: name.len().is_multiple_of(2), name, ..nic.clone() };
                let files = NicFiles { queues: vec![queue], vhost: Vec::new() };
                drop(self.nics.attach(Box::new(nic), files, oneshot::channel().0));
            }
            b'm' if self.nics.is_idle() => drop(self.nics.detach(&name, oneshot::channel().0)),
            b'v' => drop(self.nics.overdue(self.now + Duration::from_secs(60))),
            b'p' => drop(self.stall.pause()),
            b'r' => drop(self.stall.resume(self.now)),
            b't' => drop(self.stall.tick(self.now)),
            b'o' => drop(self.hotplug.overdue(self.now + Duration::from_secs(60))),
            b's' => self.soft_reboot.begin(self.now),
            b'c' => drop(self.soft_reboot.cancel()),
            b'q' => self.stats = Some(StatsQuery::new(oneshot::channel().0, 1, 0, self.hotplug.devices())),
            b'k' => self.exit.killed = true,
            _ => {}
        }
    }

    fn begin(&mut self, action: VolumeAction) {
        let _ = self.hotplug.begin(action, oneshot::channel().0);
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Greeting => {}
            Message::Return { id, .. } if id == hotplug::ID => drop(self.hotplug.answered(Ok(()))),
            Message::Error { id, reason } if id == hotplug::ID => drop(self.hotplug.answered(Err(&reason))),
            Message::Return { id, .. } if id == nics::ID => drop(self.nics.answered(Ok(()))),
            Message::Error { id, reason } if id == nics::ID => drop(self.nics.answered(Err(&reason))),
            Message::Return { id, value } if stats::is_stats_query(&id) => self.counted(&id, Some(&value)),
            Message::Error { id, .. } if stats::is_stats_query(&id) => self.counted(&id, None),
            Message::Return { value, .. } => {
                let status = value.pointer("/status").and_then(serde_json::Value::as_str).unwrap_or_default();
                drop(self.stall.on_status(status, self.now));
            }
            Message::Error { .. } => {}
            Message::Event(event) => self.event(event),
        }
    }

    fn counted(&mut self, id: &str, answer: Option<&serde_json::Value>) {
        if self.stats.as_mut().map(|query| query.record(id, answer)) == Some(Next::Finish)
            && let Some(query) = self.stats.take()
        {
            query.finish();
        }
    }

    fn event(&mut self, event: Event) {
        if self.soft_reboot.on_event(&event, self.now).is_some() {
            return;
        }
        self.exit.record(&event);
        match event {
            Event::DeviceDeleted { device } => {
                drop(self.hotplug.deleted(&device).or_else(|| self.nics.deleted(&device)));
            }
            Event::DeviceUnplugError { device } => {
                drop(self.hotplug.unplug_rejected(&device).or_else(|| self.nics.unplug_rejected(&device)));
            }
            Event::Stop => drop(self.stall.stopped(self.now)),
            Event::Resume => drop(self.stall.resumed()),
            Event::Reset { .. } => drop(self.stall.reset()),
            Event::DumpCompleted { .. } => drop(self.stall.dumped()),
            Event::DiskError { node, no_space, reason, .. } => {
                let disk = self.hotplug.name_of(&node).unwrap_or_default();
                let failure = DiskFailure { disk, no_space, message: reason };
                drop(self.stall.failed(node, failure, self.now));
            }
            _ => {}
        }
    }
}

/// Conversations.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let plug = format!(
        "{greeting}\n!adata\n{done}\n{done}\n{done}\n!ddata\n{done}\n{{\"event\": \"DEVICE_DELETED\", \"data\": {{\"device\": \"{device}\"}}}}\n{done}\n{done}\n",
        greeting = r#"{"QMP": {"version": {}, "capabilities": []}}"#,
        done = format_args!(r#"{{"return": {{}}, "id": "{}"}}"#, hotplug::ID),
        device = "device-plugged0",
    );
    let nic = format!(
        "!nlan\n{done}\n{done}\n{done}\n{done}\n!mlan\n{done}\n{{\"event\": \"DEVICE_DELETED\", \"data\": {{\"device\": \"device-plugged-net1\"}}}}\n{done}\n!nred\n{failed}\n{done}\n!v\n",
        done = format_args!(r#"{{"return": {{}}, "id": "{}"}}"#, nics::ID),
        failed = format_args!(r#"{{"error": {{"desc": "no"}}, "id": "{}"}}"#, nics::ID),
    );
    let failed = format!(
        "!aother\n{{\"error\": {{\"desc\": \"no\"}}, \"id\": \"{}\"}}\n!o\n{{\"event\": \"DEVICE_UNPLUG_GUEST_ERROR\", \"data\": {{\"device\": \"d\"}}}}\n",
        hotplug::ID
    );
    let stalled = concat!(
        r#"{"event": "BLOCK_IO_ERROR", "data": {"node-name": "disk0", "nospace": true, "reason": "full", "action": "stop"}}"#,
        "\n{\"event\": \"STOP\"}\n!t\n!p\n!r\n{\"return\": {\"status\": \"io-error\"}, \"id\": \"query-status\"}\n",
        "{\"event\": \"RESUME\"}\n{\"event\": \"RESET\", \"data\": {\"guest\": true}}\n!s\n",
        r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-shutdown"}}"#,
        "\n{\"event\": \"RESET\"}\n{\"event\": \"GUEST_PANICKED\", \"data\": {\"info\": {\"type\": \"x\"}}}\n",
        "{\"event\": \"WATCHDOG\", \"data\": {\"action\": \"poweroff\"}}\n",
        "{\"event\": \"DUMP_COMPLETED\", \"data\": {\"result\": {\"status\": \"completed\"}}}\n",
    );
    let counted = concat!(
        "!q\n",
        r#"{"return": [{"qdev": "/machine/peripheral/device-disk0/virtio-backend", "stats": {"rd_operations": 1, "rd_bytes": 2, "rd_total_time_ns": 3, "wr_operations": 1, "wr_bytes": 2, "wr_total_time_ns": 3, "flush_operations": 4, "flush_total_time_ns": 5}}], "id": "figures-disks"}"#,
        "\n",
        r#"{"return": [{"cpu-index": 0, "thread-id": 7}], "id": "figures-cpus"}"#,
        "\n",
        r#"{"return": {"actual": 268435456}, "id": "figures-balloon"}"#,
        "\n",
        r#"{"return": {"last-update": 1, "stats": {"stat-free-memory": 1, "stat-swap-in": 18446744073709551615}}, "id": "figures-guest"}"#,
        "\n",
    );
    vec![plug.into(), nic.into(), failed.into(), stalled.into(), counted.into()]
}
