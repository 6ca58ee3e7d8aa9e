use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tracing::{info, warn};
use vireo_proto::launcher::{DiskFailure, Fault, Links, Outcome, State, state::Phase};

use super::dump::{self, is_under_way};
use super::hotplug::PluggedNics;
use super::lifecycle::{Pause, Waiter};
use super::outcome::{StopCause, outcome};
use super::start::PendingVm;
use super::{Command, Session, answer, earlier_deadline, reject};
use crate::agent::{AgentClient, FROZEN};
use crate::console::Console;
use crate::fault::{Code, fault};
use crate::hypervisor::{Event, Guest, VmCommand};
use crate::launch::{Interface, Launch};

/// How long a shutdown waits for file systems that are frozen.
const THAW_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the power button is pressed: a guest that is still booting misses the first times, and one that has
/// received it ignores the next.
const POWER_BUTTON_INTERVAL: Duration = Duration::from_secs(5);

/// The stage of a session.
pub(super) enum Stage {
    /// Nothing was launched.
    Waiting,
    /// The VM is being built.
    Starting(PendingVm),
    /// The guest runs.
    Running(RunningVm),
    /// The guest was asked to shut down, with this deadline.
    Stopping(RunningVm, Instant),
    /// The VM was killed and has not ended yet.
    Killing(RunningVm, StopCause),
    /// The guest is gone.
    Exited(Outcome),
    /// Nothing is left to do.
    Gone,
}

/// A guest with its resources.
pub(super) struct RunningVm {
    pub(super) launch: Arc<Launch>,
    console: Console,
    pub(super) guest: Guest,
    /// The NICs that were attached since it runs.
    pub(super) nics: PluggedNics,
    /// The caller that waits for a pause or resume.
    pub(super) waiter: Option<Waiter>,
    /// Why the guest is paused, if it does.
    pub(super) pause: Pause,
}

impl RunningVm {
    pub(super) fn new(launch: Arc<Launch>, console: Console, guest: Guest) -> Self {
        let (nics, pause) = (PluggedNics::default(), Pause::default());
        Self { launch, console, guest, nics, waiter: None, pause }
    }

    /// All NICs that the guest has.
    pub(super) fn interfaces(&self) -> impl Iterator<Item = &Interface> {
        self.launch.interfaces.iter().chain(self.nics.attached())
    }
}

/// The links of NICs, some of which are up.
pub(super) fn links<'a>(
    nics: impl Iterator<Item = &'a Interface>,
    is_up: impl Fn(&Interface) -> bool,
) -> Links {
    let (up, down): (Vec<_>, Vec<_>) = nics.partition(|nic| is_up(nic));
    let names = |nics: Vec<&Interface>| nics.into_iter().map(|nic| nic.name.clone()).collect();
    Links { down: names(down), up: names(up) }
}

impl Session {
    pub(super) async fn running(&mut self, mut vm: RunningVm) -> Stage {
        loop {
            tokio::select! {
                event = vm.guest.next() => {
                    if let Some(outcome) = self.handle_event(&mut vm, event, StopCause::None) {
                        return self.exit(outcome);
                    }
                }
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(grace, reply)) => {
                        answer(reply, None);
                        return stop(vm, grace);
                    }
                    Some(Command::Exit) | None => {
                        self.exiting = true;
                        let grace = vm.launch.termination_grace;
                        return stop(vm, grace);
                    }
                    Some(Command::Kill(reply)) => {
                        answer(reply, None);
                        return Stage::Killing(vm, StopCause::Killed);
                    }
                    Some(Command::Lifecycle(_, reply)) if is_under_way(&self.state()) => {
                        answer(reply, Some(dump::under_way()));
                    }
                    Some(Command::Lifecycle(command, reply)) => vm.lifecycle(command, reply),
                    Some(Command::Dump(command, reply)) => answer(reply, self.dump(&vm, command).err()),
                    Some(Command::Links(down, reply)) => {
                        answer(reply, self.set_links(&vm, &down).err());
                    }
                    Some(Command::Hotplug(wanted, reply)) => vm.hotplug(wanted, (&self.state(), self.node.files()), reply),
                    Some(other) => reject(other, &self.state()),
                }
            }
        }
    }

    /// Switches the links of the NICs that are to change.
    fn set_links(&self, vm: &RunningVm, down: &[String]) -> Result<(), Fault> {
        if let Some(unknown) = down.iter().find(|name| vm.interfaces().all(|nic| nic.name != **name)) {
            return Err(fault(Code::Invalid, format!("the VM has no NIC {unknown}")));
        }
        let before = self.state().links.unwrap_or_default().down;
        let is_switched = |nic: &&Interface| before.contains(&nic.name) != down.contains(&nic.name);
        for nic in vm.interfaces().filter(is_switched) {
            let up = before.contains(&nic.name);
            info!(nic = nic.name, up, "the link is switched");
            vm.guest.command(VmCommand::SetLink { nic: nic.name.clone(), up });
        }
        let links = links(vm.interfaces(), |nic| !down.contains(&nic.name));
        self.publish(|state| state.links = Some(links));
        Ok(())
    }

    pub(super) async fn stopping(&mut self, mut vm: RunningVm, mut deadline: Instant) -> Stage {
        if self.state().phase() == Phase::Paused || vm.has_waiter_for(Phase::Paused) {
            // A paused guest does not see the power button.
            vm.guest.command(VmCommand::Resume);
        }
        self.enter(Phase::Stopping);
        info!(grace = ?deadline.duration_since(Instant::now()), "asking the guest to shut down");
        let mut thawed = pin!(thaw(self.agent.clone(), self.state()));
        let mut is_thawed = false;
        let mut presses = interval(POWER_BUTTON_INTERVAL);
        presses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = vm.guest.next() => {
                    if let Some(outcome) = self.handle_event(&mut vm, event, StopCause::ShutdownRequested) {
                        return self.exit(outcome);
                    }
                }
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(grace, reply)) => {
                        answer(reply, None);
                        deadline = earlier_deadline(Some(deadline), grace).unwrap_or(deadline);
                    }
                    Some(Command::Exit) | None => self.exiting = true,
                    Some(Command::Kill(reply)) => {
                        answer(reply, None);
                        return Stage::Killing(vm, StopCause::Killed);
                    }
                    Some(other) => reject(other, &self.state()),
                },
                // Its shutdown would wait for file systems that are frozen.
                () = &mut thawed, if !is_thawed => is_thawed = true,
                _ = presses.tick(), if is_thawed => vm.guest.command(VmCommand::PowerButton),
                () = sleep_until(deadline) => {
                    warn!("the guest did not shut down in time");
                    return Stage::Killing(vm, StopCause::GraceExpired);
                }
            }
        }
    }

    pub(super) async fn killing(&mut self, mut vm: RunningVm, why: StopCause) -> Stage {
        self.enter(Phase::Stopping);
        vm.guest.command(VmCommand::Kill);
        loop {
            tokio::select! {
                event = vm.guest.next() => {
                    if let Some(outcome) = self.handle_event(&mut vm, event, why) {
                        return self.exit(outcome);
                    }
                }
                command = self.commands.recv() => match command {
                    Some(Command::Exit) | None => self.exiting = true,
                    Some(other) => reject(other, &self.state()),
                }
            }
        }
    }

    /// Publishes what happened; `Some` when it was the end.
    fn handle_event(&mut self, vm: &mut RunningVm, event: Event, cause: StopCause) -> Option<Outcome> {
        match event {
            Event::Rebooted => self.publish(|state| {
                state.reboots += 1;
                state.no_boot_device = false;
            }),
            Event::NoBootDevice => {
                warn!("the firmware found nothing to start");
                self.publish(|state| state.no_boot_device = true);
            }
            Event::MemoryDumped(failure) => self.dumped(failure),
            Event::Plugged(volumes) => self.publish(|state| state.volumes = volumes),
            Event::Nic(change) => self.nic_changed(vm, change),
            Event::Paused | Event::Resumed | Event::DisksFailed(_) => {
                if let Event::DisksFailed(failures) = &event {
                    for failure in failures.iter().filter(|failure| !vm.pause.failures.contains(failure)) {
                        let DiskFailure { disk: volume, message, .. } = failure;
                        warn!(
                            volume,
                            message, "the guest is paused: the host cannot carry out a disk request"
                        );
                    }
                }
                vm.pause.apply_event(&event);
                // Once it is stopping, that phase is reported.
                let phase = if cause == StopCause::None { vm.pause.phase() } else { Phase::Stopping };
                let Pause { requested, failures } = &vm.pause;
                self.publish_changed(|state| {
                    state.phase = phase.into();
                    state.pause_requested = *requested;
                    state.disk_failures.clone_from(failures);
                });
                vm.answer_waiter(&event);
            }
            Event::Ended(end) => {
                vm.console.end();
                return Some(outcome(end, cause));
            }
        }
        None
    }
}

/// Has the agent thaw the file systems of the guest, also where it is about to freeze them, and waits for that if they are
/// frozen.
async fn thaw(agent: AgentClient, state: State) {
    let Some(known) = state.agent else { return };
    let thawing = tokio::spawn(async move { agent.thaw().await });
    if known.freeze_status != FROZEN {
        return;
    }
    match timeout(THAW_TIMEOUT, thawing).await {
        Ok(Ok(Ok(()))) => info!("the file systems of the guest are thawed"),
        Ok(Ok(Err(fault))) => warn!(fault.detail, "cannot thaw the file systems of the guest"),
        Ok(Err(_)) | Err(_) => warn!("the guest agent does not thaw the file systems of the guest in time"),
    }
}

fn stop(vm: RunningVm, grace: Duration) -> Stage {
    match earlier_deadline(None, grace) {
        Some(deadline) => Stage::Stopping(vm, deadline),
        None => Stage::Killing(vm, StopCause::GraceExpired),
    }
}
