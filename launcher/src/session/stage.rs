use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};
use vireo_proto::launcher::{DiskFailure, Outcome, state::Phase};

use super::outcome::{Intent, outcome};
use super::steer::{Awaited, Pause};
use super::{Command, Session, Up, answer, refuse, sooner};
use crate::console::Console;
use crate::hypervisor::{Event, Guest, Order};
use crate::launch::Launch;

/// How often the power button is pressed: a guest that is still booting misses the first times, and one that has
/// heard ignores the next.
const PRESS_AGAIN: Duration = Duration::from_secs(5);

/// Where a session stands.
pub(super) enum Stage {
    /// Nothing was launched.
    Waiting,
    /// The machine is being built.
    Starting(Up),
    /// The guest runs.
    Running(Machine),
    /// The guest was asked to shut down, and has until then.
    Stopping(Machine, Instant),
    /// The guest was told to die.
    Killing(Machine, Intent),
    /// The guest is gone.
    Exited(Outcome),
    /// Nothing is left to do.
    Gone,
}

/// A guest with what belongs to it.
pub(super) struct Machine {
    launch: Arc<Launch>,
    console: Console,
    pub(super) guest: Guest,
    /// Who waits for the guest to stand still, or to go on.
    pub(super) awaited: Option<Awaited>,
    /// Why the guest stands still, if it does.
    pub(super) pause: Pause,
}

impl Machine {
    pub(super) fn new(launch: Arc<Launch>, console: Console, guest: Guest) -> Self {
        Self { launch, console, guest, awaited: None, pause: Pause::default() }
    }
}

impl Session {
    pub(super) async fn running(&mut self, mut machine: Machine) -> Stage {
        loop {
            tokio::select! {
                event = machine.guest.next() => {
                    if let Some(outcome) = self.happened(&mut machine, event, Intent::None) {
                        return self.exit(outcome);
                    }
                }
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(grace, reply)) => {
                        answer(reply, None);
                        return stop(machine, grace);
                    }
                    Some(Command::Leave) | None => {
                        self.leaving = true;
                        let grace = machine.launch.termination_grace;
                        return stop(machine, grace);
                    }
                    Some(Command::Kill(reply)) => {
                        answer(reply, None);
                        return Stage::Killing(machine, Intent::Killed);
                    }
                    Some(Command::Steer(order, reply)) => machine.steer(order, reply),
                    Some(Command::Plug(wanted, reply)) => machine.plug(wanted, &self.state(), reply),
                    Some(other) => refuse(other, &self.state()),
                }
            }
        }
    }

    pub(super) async fn stopping(&mut self, mut machine: Machine, mut deadline: Instant) -> Stage {
        if self.state().phase() == Phase::Paused || machine.awaits(Phase::Paused) {
            // One that stands still hears no button.
            machine.guest.order(Order::Resume);
        }
        self.enter(Phase::Stopping);
        info!(grace = ?deadline.duration_since(Instant::now()), "asking the guest to shut down");
        let mut presses = interval(PRESS_AGAIN);
        presses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = machine.guest.next() => {
                    if let Some(outcome) = self.happened(&mut machine, event, Intent::Asked) {
                        return self.exit(outcome);
                    }
                }
                command = self.commands.recv() => match command {
                    Some(Command::Shutdown(grace, reply)) => {
                        answer(reply, None);
                        deadline = sooner(Some(deadline), grace).unwrap_or(deadline);
                    }
                    Some(Command::Leave) | None => self.leaving = true,
                    Some(Command::Kill(reply)) => {
                        answer(reply, None);
                        return Stage::Killing(machine, Intent::Killed);
                    }
                    Some(other) => refuse(other, &self.state()),
                },
                _ = presses.tick() => machine.guest.order(Order::PowerButton),
                () = sleep_until(deadline) => {
                    warn!("the guest did not shut down in time");
                    return Stage::Killing(machine, Intent::OutOfTime);
                }
            }
        }
    }

    pub(super) async fn killing(&mut self, mut machine: Machine, why: Intent) -> Stage {
        self.enter(Phase::Stopping);
        machine.guest.order(Order::Kill);
        loop {
            tokio::select! {
                event = machine.guest.next() => {
                    if let Some(outcome) = self.happened(&mut machine, event, why) {
                        return self.exit(outcome);
                    }
                }
                command = self.commands.recv() => match command {
                    Some(Command::Leave) | None => self.leaving = true,
                    Some(other) => refuse(other, &self.state()),
                }
            }
        }
    }

    /// Publishes what happened; `Some` when it was the end.
    fn happened(&self, machine: &mut Machine, event: Event, intent: Intent) -> Option<Outcome> {
        match event {
            Event::Rebooted => self.publish(|state| {
                state.reboots += 1;
                state.no_boot_device = false;
            }),
            Event::NoBootDevice => {
                warn!("the firmware found nothing to start");
                self.publish(|state| state.no_boot_device = true);
            }
            Event::Plugged(volumes) => self.publish(|state| state.volumes = volumes),
            Event::Paused | Event::Resumed | Event::DisksFailed(_) => {
                if let Event::DisksFailed(failures) = &event {
                    for failure in failures.iter().filter(|failure| !machine.pause.failures.contains(failure))
                    {
                        let DiskFailure { disk: volume, message, .. } = failure;
                        warn!(
                            volume,
                            message, "the guest is paused: the host cannot carry out a disk request"
                        );
                    }
                }
                machine.pause.hear(&event);
                // On the way out, that it is that is all anybody wants to know.
                let phase = if intent == Intent::None { machine.pause.phase() } else { Phase::Stopping };
                let Pause { requested, failures } = &machine.pause;
                self.publish_changed(|state| {
                    state.phase = phase.into();
                    state.pause_requested = *requested;
                    state.disk_failures.clone_from(failures);
                });
                machine.settle(&event);
            }
            Event::Ended(end) => {
                machine.console.end();
                return Some(outcome(end, intent));
            }
        }
        None
    }
}

fn stop(machine: Machine, grace: Duration) -> Stage {
    match sooner(None, grace) {
        Some(deadline) => Stage::Stopping(machine, deadline),
        None => Stage::Killing(machine, Intent::OutOfTime),
    }
}
