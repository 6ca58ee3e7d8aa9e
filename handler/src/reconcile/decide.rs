//! Decides the next action for one VMI: a pure, total function of the desired and the observed state.
//!
//! The function runs after every change and after every action, so an action may fail or be cancelled and is decided
//! again. It has no memory and no clock: a deadline that has passed is observed as [`Request::Overdue`].
//!
//! Everything that a launcher has to do ([`Awaited`]) has a deadline. The handler kills a launcher that misses it,
//! whether it responds or not. A guest that has run and is wanted has no deadline.

/// The desired state of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A valid manifest names it.
    Present,
    /// A valid manifest names it, and its guest is to be shut down.
    Stopped,
    /// Its manifest cannot be read now: what exists stays as it is, and nothing is created.
    Held,
    /// No manifest names it.
    Absent,
}

/// What is recorded about the VMI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Succeeded or Failed.
    pub is_final: bool,
    /// Its deletion has begun. It continues even if the manifest returns.
    pub deleting: bool,
    /// Its livenessProbe has failed: its guest is to be shut down.
    pub unhealthy: bool,
    /// Its launcher Pod is being deleted: its guest is to be shut down.
    pub stopped: bool,
    /// Its guest has run.
    pub started: bool,
    /// It holds a network namespace and an address.
    pub has_network: bool,
    /// The manifest has changed since the VMI was accepted.
    pub outdated: bool,
}

impl Record {
    /// Whether its guest is to be shut down.
    pub fn ends(&self) -> bool {
        self.is_final || self.deleting || self.unhealthy || self.stopped
    }

    /// What its launcher has to do within a deadline, if there is a launcher.
    pub fn awaited(&self) -> Option<Awaited> {
        match self {
            Self { is_final: true, .. } => Some(Awaited::Exit),
            Self { deleting: true, .. } | Self { unhealthy: true, .. } | Self { stopped: true, .. } => {
                Some(Awaited::End)
            }
            Self { started: false, .. } => Some(Awaited::Start),
            Self { .. } => None,
        }
    }
}

/// What a launcher has to do within a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Bring the guest up.
    Start,
    /// Bring the guest to its end.
    End,
    /// Exit, after the guest's outcome was recorded.
    Exit,
}

/// The state of the handler's request to the launcher to shut its guest down or to exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// This handler has not sent it.
    Unsent,
    /// It was sent and there is time left.
    Sent,
    /// The deadline has passed, whether the request was sent or answered or not.
    Overdue,
}

/// The observed state of the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// It was never started.
    Unstarted,
    /// Its process runs and does not respond: it has just started, or is slow, or hangs.
    Silent,
    /// It responds and has no VM.
    Waiting,
    /// It responds and starts its guest.
    Starting,
    /// It responds and has a guest, in any state.
    Alive,
    /// It responds, its guest is gone, and it holds the outcome.
    Exited,
    /// Its process is gone.
    Vanished,
    /// Another VMI's launcher serves its socket.
    Foreign,
}

/// The input of [`decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Absent when no VMI of this name was accepted.
    pub record: Option<Record>,
    /// Its launcher.
    pub launcher: Launcher,
    /// The hotplugged volumes of the guest, the links of its NICs or its memory dump differ from the VMI's spec.
    pub devices_differ: bool,
    /// The livenessProbe fails.
    pub liveness_failed: bool,
    /// The request to shut the guest down or to exit.
    pub request: Request,
}

/// An action of the reconciler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Give the manifest a UID and a directory.
    Accept,
    /// Prepare network and disks and start the launcher process.
    Start,
    /// Send the VM's configuration to the launcher.
    Launch,
    /// Record that deletion has begun.
    BeginDeletion,
    /// Record that the guest is to be shut down because its livenessProbe fails.
    MarkUnhealthy,
    /// Record that the guest is to be shut down because its launcher Pod is being deleted.
    Stop,
    /// Switch the links of NICs, hotplug and unplug volumes, and dump memory.
    SyncDevices,
    /// Press the guest's power button.
    AskShutdown,
    /// Kill the launcher and every process that it started, the guest's among them.
    Kill,
    /// Record how the guest ended.
    RecordOutcome,
    /// Record that the launcher ended without reporting the guest's outcome.
    RecordLoss,
    /// Let the launcher exit.
    Dismiss,
    /// Release network and address.
    ReleaseNetwork,
    /// Remove the VMI's files and its record.
    Remove,
    /// Report that another VMI's launcher serves the socket, and leave it alone.
    ReportForeignLauncher,
    /// Wait until something changes.
    Wait,
    /// Nothing is left: end the task of this name.
    Finish,
}

/// Decides the next action.
pub fn decide(wanted: Wanted, observed: &Observed) -> Action {
    let Some(record) = observed.record else {
        return match wanted {
            // A VMI that never starts is reported, too.
            Wanted::Present | Wanted::Stopped => Action::Accept,
            Wanted::Held | Wanted::Absent => Action::Finish,
        };
    };
    if wanted == Wanted::Absent && !record.deleting {
        return Action::BeginDeletion;
    }
    if wanted == Wanted::Stopped && !(record.is_final || record.deleting || record.stopped) {
        return Action::Stop;
    }
    match observed.launcher {
        Launcher::Foreign => Action::ReportForeignLauncher,
        Launcher::Unstarted | Launcher::Vanished if record.is_final => after_end(record),
        Launcher::Unstarted if record.deleting => Action::Remove,
        Launcher::Unstarted if record.stopped => Action::RecordLoss,
        // A VMI that never ran is replaced by the changed manifest.
        Launcher::Unstarted if record.outdated && wanted == Wanted::Present => Action::Remove,
        Launcher::Unstarted => Action::Start,
        Launcher::Vanished => Action::RecordLoss,
        // The outcome is recorded first, even after the deadline.
        Launcher::Exited if !record.is_final => Action::RecordOutcome,
        // In all other states the launcher's process still runs.
        _ if observed.request == Request::Overdue && record.awaited().is_some() => Action::Kill,
        Launcher::Exited => dismiss(observed.request),
        Launcher::Waiting if record.ends() => dismiss(observed.request),
        // The kill was sent: the process is about to end.
        Launcher::Waiting if observed.request == Request::Sent => Action::Wait,
        Launcher::Waiting => Action::Launch,
        // A final VMI never runs again: this launcher is a leftover.
        Launcher::Starting | Launcher::Alive if record.is_final => Action::Kill,
        Launcher::Starting | Launcher::Alive if record.ends() => match observed.request {
            Request::Unsent => Action::AskShutdown,
            Request::Sent | Request::Overdue => Action::Wait,
        },
        Launcher::Alive if observed.liveness_failed => Action::MarkUnhealthy,
        Launcher::Alive if observed.devices_differ => Action::SyncDevices,
        // A slow launcher is not dead: a guest that has run and is wanted ends only with its process.
        Launcher::Silent | Launcher::Starting | Launcher::Alive => Action::Wait,
    }
}

fn after_end(record: Record) -> Action {
    match record {
        Record { deleting: true, .. } => Action::Remove,
        Record { has_network: true, .. } => Action::ReleaseNetwork,
        Record { .. } => Action::Wait,
    }
}

fn dismiss(request: Request) -> Action {
    match request {
        Request::Unsent => Action::Dismiss,
        Request::Sent | Request::Overdue => Action::Wait,
    }
}

#[cfg(test)]
mod tests;
