use std::fs::File;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::codec::{FramedRead, LinesCodec};
use tracing::{debug, info, warn};
use vireo_proto::launcher::{DiskFailure, Fault};

use super::command_line::AGENT;
use super::device::nic_id;
use super::exit::ExitReason;
use super::hotplug::{self, Hotplug, QmpCommand};
use super::nics::{self, NicHotplug};
use super::process::Process;
use super::qmp::{self, DiskAction, Event as QmpEvent, Message, SET_LINK};
use super::soft_reboot::{Action, SoftReboot};
use super::stall::{self, Stall};
use super::stats::{self, Next, StatsQuery};
use super::tpm::{self, Tpm};
use super::writer::Writer;
use crate::fault::{Code, fault};
use crate::hypervisor::child::{ChildProcess, describe_status, with_stderr};
use crate::hypervisor::growth::{self, GrowingImages};
use crate::hypervisor::virtiofs;
use crate::hypervisor::{
    Event, Guest, GuestEnd, HotplugAction, HotplugRequest, StatsReply, VmCommand, guest,
};
use crate::launch::Launch;

/// The longest line of a monitor we listen to; none that matters comes near.
const MAX_LINE: usize = 1 << 20;
/// How long QEMU gets to flush its images after the quit command, or after its monitor closed, and its TPM to end after it.
pub(super) const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The processes beside QEMU that it cannot do without.
#[derive(Debug, Default)]
pub(super) struct Beside {
    pub(super) tpm: Option<Tpm>,
    pub(super) filesystems: Vec<virtiofs::Server>,
}

impl Beside {
    /// Ends them. The TPM keeps its last state.
    async fn end(self) {
        if let Some(tpm) = self.tpm {
            tpm.end().await;
        }
    }

    /// Waits for the end of the first of them, and says how it came.
    async fn ended(&mut self) -> String {
        tokio::select! {
            reason = tpm::ended(self.tpm.as_mut()) => reason,
            reason = virtiofs::ended(&mut self.filesystems) => reason,
        }
    }
}

type Lines = FramedRead<OwnedReadHalf, LinesCodec>;

/// Waits until QEMU is up, then runs its event loop. `agent` receives whether a program of the guest has
/// opened the agent's port.
pub(super) async fn start(
    process: Process,
    beside: Beside,
    agent: Option<watch::Sender<bool>>,
    (launch, growing): (&Launch, GrowingImages),
) -> Result<Guest, Fault> {
    let (reader, writer) = process.qmp.into_split();
    let mut writer = Writer::new(writer);
    let mut lines = FramedRead::new(reader, LinesCodec::new_with_max_length(MAX_LINE));
    let down = launch.interfaces.iter().enumerate().filter(|(_, nic)| !nic.link_up);
    let links = down.map(|(index, _)| qmp::set_link(&nic_id(index), false)).collect();
    let paused = handshake(&mut lines, &mut writer, links).await;
    let Some(paused) = paused else {
        let (status, stderr) = process.child.reap(Instant::now() + EXIT_TIMEOUT).await;
        return Err(fault(
            Code::Hypervisor,
            with_stderr(&format!("QEMU {} before it was up", describe_status(status)), &stderr),
        ));
    };
    let (owner, ctx) = guest();
    if paused {
        emit(&ctx, Event::Paused);
    }
    let no_boot_device = process.no_boot_device;
    let vm = QemuVm {
        process: process.child,
        lines,
        writer,
        no_boot_device,
        no_boot_device_reported: false,
        soft_reboot: SoftReboot::default(),
        beside,
        agent,
        disks: launch.disks.iter().map(|disk| disk.name.clone()).collect(),
        nics: launch.interfaces.iter().map(|nic| nic.name.clone()).collect(),
        hotplug: Hotplug::of(launch, growing.clone()),
        nic_hotplug: NicHotplug::of(launch),
        grown: watch_growth(growing),
        stall: Stall::new(paused),
        stats_query: None,
        poll_guest_at: None,
        dumping: false,
    };
    tokio::spawn(vm.run(ctx));
    Ok(owner)
}

/// Looks for images that have grown, until nothing receives that any more.
fn watch_growth(growing: GrowingImages) -> mpsc::Receiver<(String, u64)> {
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        let mut ticks = growth::ticks();
        loop {
            tokio::select! {
                () = sender.closed() => return,
                _ = ticks.tick() => {}
            }
            let images = growing.clone();
            // A file system that hangs holds up nothing else.
            let Ok(grown) = tokio::task::spawn_blocking(move || images.grown()).await else { return };
            for one in grown {
                if sender.send(one).await.is_err() {
                    return;
                }
            }
        }
    });
    receiver
}

/// Negotiates capabilities, executes the commands of `setup` and queries whether the vCPUs are paused. QEMU answers only once the VM is built.
async fn handshake(lines: &mut Lines, writer: &mut Writer, setup: Vec<String>) -> Option<bool> {
    loop {
        let next = match message(lines).await? {
            Message::Greeting => "qmp_capabilities",
            Message::Return { id, value } if id == "query-status" => {
                return Some(value.pointer("/running").and_then(serde_json::Value::as_bool) == Some(false));
            }
            Message::Return { id, .. } if id == SET_LINK => continue,
            Message::Return { .. } => {
                for line in &setup {
                    writer.write_line(line).await;
                }
                "query-status"
            }
            Message::Error { id, reason } => {
                warn!(command = id, reason, "QEMU rejected a command");
                return None;
            }
            Message::Event(_) => continue,
        };
        writer.send_command(next).await;
    }
}

/// The next message of QEMU; `None` once its monitor is closed.
async fn message(lines: &mut Lines) -> Option<Message> {
    loop {
        match lines.next().await?.map_err(|error| error.to_string()).and_then(|line| {
            debug!(target: "qmp", "{line}");
            qmp::parse(&line).map_err(|error| error.to_string())
        }) {
            Ok(message) => return Some(message),
            Err(error) => warn!(error, "unreadable line on QEMU's monitor"),
        }
    }
}

fn emit(ctx: &GuestEnd, event: Event) {
    // The receiver may be gone.
    let _ = ctx.events.send(event);
}

struct QemuVm {
    process: ChildProcess,
    lines: Lines,
    writer: Writer,
    no_boot_device: mpsc::Receiver<()>,
    /// [`Event::NoBootDevice`] is emitted once after each reset, however often firmware logs it.
    no_boot_device_reported: bool,
    soft_reboot: SoftReboot,
    beside: Beside,
    agent: Option<watch::Sender<bool>>,
    /// Volume names of the disks that are not hotplugged, in order.
    disks: Vec<String>,
    /// Names of the NICs that are not hotplugged, in order.
    nics: Vec<String>,
    hotplug: Hotplug,
    nic_hotplug: NicHotplug,
    /// Receives block nodes whose images have grown, with their sizes.
    grown: mpsc::Receiver<(String, u64)>,
    /// Whether the CPUs run, and why not.
    stall: Stall,
    /// The statistics query in progress.
    stats_query: Option<StatsQuery>,
    /// When to look again for the guest's part of them.
    poll_guest_at: Option<Instant>,
    /// A memory dump is being written.
    dumping: bool,
}

impl QemuVm {
    async fn run(mut self, mut ctx: GuestEnd) {
        let mut exit_reason = ExitReason::default();
        let mut deadline: Option<Instant> = None;
        loop {
            tokio::select! {
                message = message(&mut self.lines) => match message {
                    Some(Message::Event(event)) => match self.soft_reboot.on_event(&event, Instant::now()) {
                        Some(step) => self.soft_reboot_action(&ctx, step, &mut exit_reason).await,
                        None => {
                            // A guest that rebooted by itself has completed the soft reboot.
                            if matches!(event, QmpEvent::Reset { .. }) && self.soft_reboot.cancel() {
                                self.writer.write_line(&qmp::set_shutdown_action(false)).await;
                            }
                            exit_reason.record(&event);
                            let next = self.hotplug_event(&event);
                            self.hotplug(&ctx, next).await;
                            self.handle_event(&ctx, event).await;
                        }
                    },
                    Some(Message::Return { id, .. }) if id == nics::ID => {
                        let next = self.nic_hotplug.answered(Ok(()));
                        self.hotplug(&ctx, next).await;
                    }
                    Some(Message::Error { id, reason }) if id == nics::ID => {
                        let next = self.nic_hotplug.answered(Err(&reason));
                        self.hotplug(&ctx, next).await;
                    }
                    Some(Message::Return { id, .. }) if id == hotplug::ID => {
                        let next = self.hotplug.answered(Ok(()));
                        self.hotplug(&ctx, next).await;
                    }
                    Some(Message::Error { id, reason }) if id == hotplug::ID => {
                        let next = self.hotplug.answered(Err(&reason));
                        self.hotplug(&ctx, next).await;
                    }
                    Some(Message::Return { id, value }) if stats::is_stats_query(&id) => self.stats_answered(&id, Some(&value)),
                    Some(Message::Error { id, .. }) if stats::is_stats_query(&id) => self.stats_answered(&id, None),
                    Some(Message::Error { id, reason }) if id == qmp::DUMP => self.dumped(&ctx, Some(reason)).await,
                    Some(Message::Return { id, value }) if id == "query-status" => {
                        let status = value.pointer("/status").and_then(serde_json::Value::as_str).unwrap_or_default();
                        let steps = self.stall.on_status(status, Instant::now());
                        self.apply_stall_actions(&ctx, steps).await;
                    }
                    Some(Message::Error { id, reason }) => warn!(command = id, reason, "QEMU rejected a command"),
                    Some(Message::Greeting | Message::Return { .. }) => {}
                    None => break,
                },
                Some(()) = self.no_boot_device.recv() => if !std::mem::replace(&mut self.no_boot_device_reported, true) {
                    emit(&ctx, Event::NoBootDevice);
                },
                Some(request) = ctx.hotplugs.recv(), if self.hotplug.is_idle() && self.nic_hotplug.is_idle() && deadline.is_none() => {
                    let next = self.begin_hotplug(request);
                    self.hotplug(&ctx, next).await;
                },
                () = sleep_until(self.nic_hotplug.deadline().unwrap_or_else(Instant::now)), if self.nic_hotplug.deadline().is_some() => {
                    let next = self.nic_hotplug.overdue(Instant::now());
                    self.hotplug(&ctx, next).await;
                },
                () = sleep_until(self.hotplug.deadline().unwrap_or_else(Instant::now)), if self.hotplug.deadline().is_some() => {
                    let next = self.hotplug.overdue(Instant::now());
                    self.hotplug(&ctx, next).await;
                },
                Some((node, bytes)) = self.grown.recv(), if deadline.is_none() => {
                    info!(node, bytes, "a disk has grown");
                    self.writer.write_line(&qmp::block_resize(&node, bytes)).await;
                }
                Some(file) = ctx.dumps.recv(), if !self.dumping && deadline.is_none() => self.dump(&ctx, file).await,
                command = ctx.commands.recv(), if deadline.is_none() => match command {
                    Some(VmCommand::Kill) | None => {
                        exit_reason.killed = true;
                        deadline = Some(Instant::now() + EXIT_TIMEOUT);
                        self.writer.send_command("quit").await;
                    }
                    Some(command) => self.execute(&ctx, command).await,
                },
                reason = self.beside.ended(), if deadline.is_none() => {
                    // QEMU ends it before itself; the events of that may still be to be read.
                    std::mem::take(&mut self.beside).end().await;
                    exit_reason.beside = Some(reason);
                    deadline = Some(Instant::now() + EXIT_TIMEOUT);
                    self.writer.send_command("quit").await;
                }
                Some(reading) = ctx.stats_requests.recv() => self.query_stats(reading).await,
                () = sleep_until(self.poll_guest_at.unwrap_or_else(Instant::now)), if self.poll_guest_at.is_some() => {
                    self.poll_guest_at = None;
                    self.writer.write_line(&stats::guest_query()).await;
                }
                () = sleep_until(self.stall.deadline().unwrap_or_else(Instant::now)), if self.stall.deadline().is_some() && deadline.is_none() => {
                    let steps = self.stall.tick(Instant::now());
                    self.apply_stall_actions(&ctx, steps).await;
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    warn!("QEMU does not quit: killing it");
                    break;
                }
            }
        }
        let deadline = deadline.unwrap_or_else(|| Instant::now() + EXIT_TIMEOUT);
        let (status, stderr) = self.process.reap(deadline).await;
        // The images are unlocked before the end is known.
        self.hotplug.growing().clear();
        // So is the last state of the TPM kept.
        self.beside.end().await;
        emit(&ctx, Event::Ended(exit_reason.to_end(status, &stderr)));
    }

    /// Starts a statistics query; a request that arrives meanwhile joins it.
    async fn query_stats(&mut self, reading: StatsReply) {
        if let Some(query) = &mut self.stats_query {
            query.join(reading);
            return;
        }
        let Some(pid) = self.process.id() else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.stats_query = Some(StatsQuery::new(reading, pid, now, self.hotplug.devices()));
        self.writer.write_line(&stats::queries()).await;
    }

    fn stats_answered(&mut self, id: &str, answer: Option<&serde_json::Value>) {
        match self.stats_query.as_mut().map(|stats_query| stats_query.record(id, answer)) {
            Some(Next::PollGuest(pause)) => self.poll_guest_at = Some(Instant::now() + pause),
            Some(Next::Finish) => {
                if let Some(stats_query) = self.stats_query.take() {
                    stats_query.finish();
                }
            }
            Some(Next::Wait) | None => {}
        }
    }

    async fn execute(&mut self, ctx: &GuestEnd, command: VmCommand) {
        let command = match command {
            VmCommand::PowerButton => {
                if self.soft_reboot.cancel() {
                    self.writer.write_line(&qmp::set_shutdown_action(false)).await;
                }
                "system_powerdown"
            }
            VmCommand::SoftReboot => {
                self.soft_reboot.begin(Instant::now());
                self.writer.write_line(&qmp::set_shutdown_action(true)).await;
                "system_powerdown"
            }
            VmCommand::Reset => "system_reset",
            VmCommand::Pause => {
                let steps = self.stall.pause();
                return self.apply_stall_actions(ctx, steps).await;
            }
            VmCommand::Resume => {
                let steps = self.stall.resume(Instant::now());
                return self.apply_stall_actions(ctx, steps).await;
            }
            VmCommand::SetLink { nic, up } => {
                let fixed = self.nics.iter().position(|name| *name == nic).map(nic_id);
                if let Some(device) = fixed.or_else(|| self.nic_hotplug.device_of(&nic)) {
                    self.writer.write_line(&qmp::set_link(&device, up)).await;
                }
                return;
            }
            VmCommand::Kill => "quit",
        };
        self.writer.send_command(command).await;
    }

    async fn apply_stall_actions(&mut self, ctx: &GuestEnd, steps: Vec<stall::Action>) {
        for step in steps {
            match step {
                stall::Action::Execute(command) => self.writer.send_command(command).await,
                stall::Action::Emit(event) => {
                    if let Event::DisksFailed(failures) = &event
                        && failures.is_empty()
                    {
                        info!("disks work again: resuming the guest");
                    }
                    emit(ctx, event);
                }
            }
        }
    }

    /// A request of a disk failed; QEMU stops the guest where that is its policy.
    async fn disk_failed(
        &mut self,
        ctx: &GuestEnd,
        (node, failure): (String, DiskFailure),
        action: DiskAction,
    ) {
        warn!(volume = failure.disk, reason = failure.message, ?action, "a disk request failed");
        if action == DiskAction::Stop {
            let steps = self.stall.failed(node, failure, Instant::now());
            self.apply_stall_actions(ctx, steps).await;
        }
    }

    /// The volume that is shown by a node; empty where it is not known.
    fn volume(&self, node: &str) -> String {
        let fixed =
            node.strip_prefix("disk").and_then(|number| self.disks.get(number.parse::<usize>().ok()?));
        fixed.cloned().or_else(|| self.hotplug.name_of(node)).unwrap_or_default()
    }

    fn begin_hotplug(&mut self, HotplugRequest { action, reply }: HotplugRequest) -> Option<QmpCommand> {
        match action {
            HotplugAction::Volume(action) => self.hotplug.begin(action, reply),
            HotplugAction::AttachNic(interface, files) => self.nic_hotplug.attach(interface, files, reply),
            HotplugAction::DetachNic(name) => self.nic_hotplug.detach(&name, reply),
        }
    }

    /// Executes the next hotplug command, and emits the attached volumes and NICs that changed.
    async fn hotplug(&mut self, ctx: &GuestEnd, next: Option<QmpCommand>) {
        for change in self.nic_hotplug.take_changes() {
            emit(ctx, Event::Nic(change));
        }
        if let Some(volumes) = self.hotplug.take_changes() {
            info!(?volumes, "volumes attached");
            emit(ctx, Event::Plugged(volumes));
        }
        let Some(QmpCommand { line, file }) = next else { return };
        let Some(file) = file else { return self.writer.write_line(&line).await };
        if let Err(error) = self.writer.write_with_fd(&line, &file).await {
            // If QEMU is gone, reading its monitor reports that.
            warn!(%error, "a descriptor cannot be handed to QEMU");
        }
    }

    fn hotplug_event(&mut self, event: &QmpEvent) -> Option<QmpCommand> {
        match event {
            // Each knows the names of its own.
            QmpEvent::DeviceDeleted { device } => {
                self.hotplug.deleted(device).or_else(|| self.nic_hotplug.deleted(device))
            }
            QmpEvent::DeviceUnplugError { device } => {
                self.hotplug.unplug_rejected(device).or_else(|| self.nic_hotplug.unplug_rejected(device))
            }
            _ => None,
        }
    }

    /// Begins a memory dump.
    async fn dump(&mut self, ctx: &GuestEnd, file: File) {
        self.dumping = true;
        if let Err(error) = self.writer.write_with_fd(&qmp::take_dump_file(), &file).await {
            return self.dumped(ctx, Some(format!("the file cannot be handed to QEMU: {error}"))).await;
        }
        // If QEMU did not take the file, this fails.
        self.writer.write_line(&qmp::dump_memory()).await;
    }

    /// A memory dump has ended.
    async fn dumped(&mut self, ctx: &GuestEnd, failure: Option<String>) {
        if std::mem::take(&mut self.dumping) {
            let step = self.stall.dumped();
            self.apply_stall_actions(ctx, step.into_iter().collect()).await;
            emit(ctx, Event::MemoryDumped(failure));
        }
    }

    async fn soft_reboot_action(&mut self, ctx: &GuestEnd, step: Action, exit_reason: &mut ExitReason) {
        match step {
            Action::Nothing => {}
            Action::Reset => {
                info!("the guest switched itself off for a reboot");
                self.writer.write_line(&qmp::set_shutdown_action(false)).await;
                self.writer.send_command("system_reset").await;
            }
            Action::Resume => {
                self.no_boot_device_reported = false;
                emit(ctx, Event::Rebooted);
                self.writer.send_command("cont").await;
            }
            Action::End(event) => {
                exit_reason.record(&event);
                self.writer.send_command("quit").await;
            }
        }
    }

    async fn handle_event(&mut self, ctx: &GuestEnd, event: QmpEvent) {
        match event {
            QmpEvent::Reset { by_guest } => {
                info!(by_guest, "the VM was reset");
                self.no_boot_device_reported = false;
                emit(ctx, Event::Rebooted);
                let steps = self.stall.reset();
                self.apply_stall_actions(ctx, steps).await;
            }
            QmpEvent::Stop => {
                let steps = self.stall.stopped(Instant::now());
                self.apply_stall_actions(ctx, steps).await;
            }
            QmpEvent::Resume => {
                let steps = self.stall.resumed();
                self.apply_stall_actions(ctx, steps).await;
            }
            QmpEvent::DiskError { node, no_space, reason, action } => {
                let failure = DiskFailure { disk: self.volume(&node), no_space, message: reason };
                self.disk_failed(ctx, (node, failure), action).await;
            }
            QmpEvent::Panicked { info } => warn!(info, "the guest's kernel panicked"),
            QmpEvent::Watchdog { action } => warn!(action, "the guest's watchdog expired"),
            QmpEvent::Shutdown { reason } => info!(reason, "QEMU shuts down"),
            QmpEvent::Port { id, open } => {
                if let Some(agent) = self.agent.as_ref().filter(|_| id == AGENT) {
                    agent.send_replace(open);
                }
            }
            QmpEvent::DumpCompleted { failure } => self.dumped(ctx, failure).await,
            QmpEvent::DeviceDeleted { device } => info!(device, "a device is gone"),
            QmpEvent::DeviceUnplugError { device } => warn!(device, "the guest does not let go of a device"),
            QmpEvent::Other(name) => debug!(name, "QEMU event"),
        }
    }
}
