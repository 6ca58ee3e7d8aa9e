use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::codec::{FramedRead, LinesCodec};
use tracing::{debug, info, warn};
use vireo_proto::launcher::{DiskFailure, Fault};

use super::args::AGENT;
use super::end::{Story, gone, with_stderr};
use super::inquiry::{self, Inquiry, Next};
use super::plug::{self, Plugs, Saying};
use super::process::{Process, kill_now};
use super::qmp::{self, DiskAction, Event as QmpEvent, Message};
use super::soft::{SoftReboot, Step};
use super::stall::{self, Stall};
use super::writer::Writer;
use crate::fault::{Code, fault};
use crate::hypervisor::{Event, Guest, GuestEnd, Order, Reading, guest};
use crate::launch::Launch;

/// The longest line of a monitor we listen to; none that matters comes near.
const LINE: usize = 1 << 20;
/// How long QEMU gets to flush its images after it was told to quit or its monitor closed.
const FLUSH: Duration = Duration::from_secs(2);

type Lines = FramedRead<OwnedReadHalf, LinesCodec>;

/// Waits until the machine stands, then drives it until it is gone. `agent` is told whether a program of the guest has
/// opened the agent's port.
pub(super) async fn drive(
    mut process: Process,
    agent: Option<watch::Sender<bool>>,
    launch: &Launch,
) -> Result<Guest, Fault> {
    let (reader, writer) = process.qmp.into_split();
    let mut writer = Writer::new(writer);
    let mut lines = FramedRead::new(reader, LinesCodec::new_with_max_length(LINE));
    let standing = handshake(&mut lines, &mut writer).await;
    let Some(paused) = standing else {
        let status = timeout(FLUSH, process.child.wait()).await.ok().and_then(Result::ok);
        kill_now(&mut process.child);
        let said = process.stderr.await.unwrap_or_default();
        return Err(fault(
            Code::Hypervisor,
            with_stderr(&format!("QEMU {} before it was up", gone(status)), &said),
        ));
    };
    let (owner, end) = guest();
    if paused {
        tell(&end, Event::Paused);
    }
    let remains = Remains { child: process.child, stderr: process.stderr };
    let nothing = process.nothing;
    let machine = Machine {
        process: remains,
        lines,
        writer,
        nothing,
        told: false,
        soft: SoftReboot::default(),
        agent,
        disks: launch.disks.iter().map(|disk| disk.name.clone()).collect(),
        plugs: Plugs::of(launch),
        stall: Stall::new(paused),
        asked: None,
        ask_again: None,
    };
    tokio::spawn(machine.run(end));
    Ok(owner)
}

/// Negotiates, and asks whether the CPUs stand still. QEMU answers commands only once the machine is built.
async fn handshake(lines: &mut Lines, writer: &mut Writer) -> Option<bool> {
    loop {
        let next = match message(lines).await? {
            Message::Greeting => "qmp_capabilities",
            Message::Return { id, value } if id == "query-status" => {
                return Some(value.pointer("/running").and_then(serde_json::Value::as_bool) == Some(false));
            }
            Message::Return { .. } => "query-status",
            Message::Refusal { id, reason } => {
                warn!(command = id, reason, "QEMU refused a command");
                return None;
            }
            Message::Event(_) => continue,
        };
        writer.send(next).await;
    }
}

/// The next thing QEMU says; `None` once its monitor is closed.
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

fn tell(end: &GuestEnd, event: Event) {
    // The owner may have let go; then nobody wants to know.
    let _ = end.events.send(event);
}

struct Remains {
    child: tokio::process::Child,
    stderr: tokio::task::JoinHandle<String>,
}

struct Machine {
    process: Remains,
    lines: Lines,
    writer: Writer,
    nothing: mpsc::Receiver<()>,
    /// That firmware found nothing is told once after each reset, however often the guest says it.
    told: bool,
    soft: SoftReboot,
    agent: Option<watch::Sender<bool>>,
    /// Volumes of the disks that are there from the start, in their order.
    disks: Vec<String>,
    plugs: Plugs,
    /// Whether the CPUs run, and why not.
    stall: Stall,
    /// Somebody wants figures.
    asked: Option<Inquiry>,
    /// When to look again for the guest's part of them.
    ask_again: Option<Instant>,
}

impl Machine {
    async fn run(mut self, mut end: GuestEnd) {
        let mut story = Story::default();
        let mut deadline: Option<Instant> = None;
        loop {
            tokio::select! {
                message = message(&mut self.lines) => match message {
                    Some(Message::Event(event)) => match self.soft.hear(&event, Instant::now()) {
                        Some(step) => self.reboot_softly(&end, step, &mut story).await,
                        None => {
                            // A guest that rebooted by itself has done what was asked.
                            if matches!(event, QmpEvent::Reset { .. }) && self.soft.forget() {
                                self.writer.say(&qmp::at_power_off(false)).await;
                            }
                            story.hear(&event);
                            let saying = self.unplugged(&event);
                            self.plug(&end, saying).await;
                            self.heard(&end, event).await;
                        }
                    },
                    Some(Message::Return { id, .. }) if id == plug::ID => {
                        let saying = self.plugs.answered(Ok(()));
                        self.plug(&end, saying).await;
                    }
                    Some(Message::Refusal { id, reason }) if id == plug::ID => {
                        let saying = self.plugs.answered(Err(&reason));
                        self.plug(&end, saying).await;
                    }
                    Some(Message::Return { id, value }) if inquiry::is_ours(&id) => self.answered(&id, Some(&value)),
                    Some(Message::Refusal { id, .. }) if inquiry::is_ours(&id) => self.answered(&id, None),
                    Some(Message::Return { id, value }) if id == "query-status" => {
                        let status = value.pointer("/status").and_then(serde_json::Value::as_str).unwrap_or_default();
                        let steps = self.stall.is(status, Instant::now());
                        self.follow_stall(&end, steps).await;
                    }
                    Some(Message::Refusal { id, reason }) => warn!(command = id, reason, "QEMU refused"),
                    Some(Message::Greeting | Message::Return { .. }) => {}
                    None => break,
                },
                Some(()) = self.nothing.recv() => if !std::mem::replace(&mut self.told, true) {
                    tell(&end, Event::NoBootDevice);
                },
                Some(plugging) = end.plugs.recv(), if self.plugs.is_idle() && deadline.is_none() => {
                    let saying = self.plugs.begin(plugging);
                    self.plug(&end, saying).await;
                },
                () = sleep_until(self.plugs.deadline().unwrap_or_else(Instant::now)), if self.plugs.deadline().is_some() => {
                    let saying = self.plugs.overdue(Instant::now());
                    self.plug(&end, saying).await;
                },
                order = end.orders.recv(), if deadline.is_none() => match order {
                    Some(Order::Kill) | None => {
                        story.killed = true;
                        deadline = Some(Instant::now() + FLUSH);
                        self.writer.send("quit").await;
                    }
                    Some(order) => self.follow(&end, order).await,
                },
                Some(reading) = end.readings.recv() => self.inquire(reading).await,
                () = sleep_until(self.ask_again.unwrap_or_else(Instant::now)), if self.ask_again.is_some() => {
                    self.ask_again = None;
                    self.writer.say(&inquiry::guest()).await;
                }
                () = sleep_until(self.stall.deadline().unwrap_or_else(Instant::now)), if self.stall.deadline().is_some() && deadline.is_none() => {
                    let steps = self.stall.tick(Instant::now());
                    self.follow_stall(&end, steps).await;
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    warn!("QEMU does not quit: killing it");
                    break;
                }
            }
        }
        let (status, said) = self.process.reap(deadline).await;
        tell(&end, Event::Ended(story.end(status, &said)));
    }

    /// Begins to find out what somebody wants to know; one who comes while that is going on gets the same answer.
    async fn inquire(&mut self, reading: Reading) {
        if let Some(asked) = &mut self.asked {
            asked.join(reading);
            return;
        }
        let Some(pid) = self.process.child.id().and_then(|pid| i32::try_from(pid).ok()) else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.asked = Some(Inquiry::new(reading, pid, now));
        self.writer.say(&inquiry::questions()).await;
    }

    fn answered(&mut self, id: &str, answer: Option<&serde_json::Value>) {
        match self.asked.as_mut().map(|asked| asked.hear(id, answer)) {
            Some(Next::AskAgain(pause)) => self.ask_again = Some(Instant::now() + pause),
            Some(Next::Finish) => {
                if let Some(asked) = self.asked.take() {
                    asked.finish();
                }
            }
            Some(Next::Wait) | None => {}
        }
    }

    async fn follow(&mut self, end: &GuestEnd, order: Order) {
        let command = match order {
            Order::PowerButton => {
                if self.soft.forget() {
                    self.writer.say(&qmp::at_power_off(false)).await;
                }
                "system_powerdown"
            }
            Order::SoftReboot => {
                self.soft.begin(Instant::now());
                self.writer.say(&qmp::at_power_off(true)).await;
                "system_powerdown"
            }
            Order::Reset => "system_reset",
            Order::Pause => {
                let steps = self.stall.pause();
                return self.follow_stall(end, steps).await;
            }
            Order::Resume => {
                let steps = self.stall.resume(Instant::now());
                return self.follow_stall(end, steps).await;
            }
            Order::Kill => "quit",
        };
        self.writer.send(command).await;
    }

    async fn follow_stall(&mut self, end: &GuestEnd, steps: Vec<stall::Step>) {
        for step in steps {
            match step {
                stall::Step::Say(command) => self.writer.send(command).await,
                stall::Step::Tell(event) => {
                    if let Event::DisksFailed(failures) = &event
                        && failures.is_empty()
                    {
                        info!("disks work again: the guest goes on");
                    }
                    tell(end, event);
                }
            }
        }
    }

    /// A request of a disk failed; QEMU stops the guest where that is its policy.
    async fn disk_failed(
        &mut self,
        end: &GuestEnd,
        (node, failure): (String, DiskFailure),
        action: DiskAction,
    ) {
        warn!(volume = failure.disk, reason = failure.message, ?action, "a disk request failed");
        if action == DiskAction::Stop {
            let steps = self.stall.failed(node, failure, Instant::now());
            self.follow_stall(end, steps).await;
        }
    }

    /// The volume that is shown by a node; empty where it is not known.
    fn volume(&self, node: &str) -> String {
        let fixed =
            node.strip_prefix("disk").and_then(|number| self.disks.get(number.parse::<usize>().ok()?));
        fixed.cloned().or_else(|| self.plugs.name_of(node)).unwrap_or_default()
    }

    /// Says the next about a volume, and tells what is plugged in where that changed.
    async fn plug(&mut self, end: &GuestEnd, saying: Option<Saying>) {
        if let Some(volumes) = self.plugs.news() {
            info!(?volumes, "volumes plugged in");
            tell(end, Event::Plugged(volumes));
        }
        let Some(Saying { line, file }) = saying else { return };
        let Some(file) = file else { return self.writer.say(&line).await };
        if let Err(error) = self.writer.say_with(&line, &file).await {
            // If QEMU is gone, its monitor's end says so.
            warn!(%error, "a descriptor cannot be handed to QEMU");
        }
    }

    fn unplugged(&mut self, event: &QmpEvent) -> Option<Saying> {
        match event {
            QmpEvent::Deleted { device } => self.plugs.deleted(device),
            QmpEvent::Kept { device } => self.plugs.kept(device),
            _ => None,
        }
    }

    async fn reboot_softly(&mut self, end: &GuestEnd, step: Step, story: &mut Story) {
        match step {
            Step::Nothing => {}
            Step::Reset => {
                info!("the guest switched itself off for a reboot");
                self.writer.say(&qmp::at_power_off(false)).await;
                self.writer.send("system_reset").await;
            }
            Step::GoOn => {
                self.told = false;
                tell(end, Event::Rebooted);
                self.writer.send("cont").await;
            }
            Step::End(event) => {
                story.hear(&event);
                self.writer.send("quit").await;
            }
        }
    }

    async fn heard(&mut self, end: &GuestEnd, event: QmpEvent) {
        match event {
            QmpEvent::Reset { by_guest } => {
                info!(by_guest, "the machine was reset");
                self.told = false;
                tell(end, Event::Rebooted);
                let steps = self.stall.reset();
                self.follow_stall(end, steps).await;
            }
            QmpEvent::Stop => {
                let steps = self.stall.stopped(Instant::now());
                self.follow_stall(end, steps).await;
            }
            QmpEvent::Resume => {
                let steps = self.stall.resumed();
                self.follow_stall(end, steps).await;
            }
            QmpEvent::DiskError { node, no_space, reason, action } => {
                let failure = DiskFailure { disk: self.volume(&node), no_space, message: reason };
                self.disk_failed(end, (node, failure), action).await;
            }
            QmpEvent::Panicked { info } => warn!(info, "the guest's kernel panicked"),
            QmpEvent::Shutdown { reason } => info!(reason, "QEMU shuts down"),
            QmpEvent::Port { id, open } => {
                if let Some(agent) = self.agent.as_ref().filter(|_| id == AGENT) {
                    agent.send_replace(open);
                }
            }
            QmpEvent::Deleted { device } => info!(device, "a device is gone"),
            QmpEvent::Kept { device } => warn!(device, "the guest does not let go of a device"),
            QmpEvent::Other(name) => debug!(name, "QEMU event"),
        }
    }
}

impl Remains {
    /// Waits for the process, for a while; then it has no choice.
    async fn reap(mut self, deadline: Option<Instant>) -> (Option<std::process::ExitStatus>, String) {
        let patience = deadline.unwrap_or_else(|| Instant::now() + FLUSH);
        let status = match tokio::time::timeout_at(patience, self.child.wait()).await {
            Ok(status) => status,
            Err(_) => {
                kill_now(&mut self.child);
                self.child.wait().await
            }
        };
        (status.ok(), self.stderr.await.unwrap_or_default())
    }
}
