//! What to do next about one VMI: a pure, total function of what is wanted and what is seen.
//!
//! The function is asked again after every change and after every action, so each action may fail or be cut short
//! and is simply decided again. It has no memory and no clock: what took too long is seen as overdue.
//!
//! Whatever is awaited of a launcher ([`Awaited`]) has a deadline. A launcher that misses it is killed from outside,
//! whether it answers or not. Only a guest that has run and is wanted is waited for without limit.

/// What the manifests say about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A manifest names it and holds together.
    Present,
    /// The same, and its guest is to end.
    Stopped,
    /// A manifest named it and cannot be read now: what is there stays as it is, nothing new is made.
    Held,
    /// No manifest names it.
    Absent,
}

/// What is recorded about the VMI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Succeeded or Failed.
    pub is_final: bool,
    /// Its deletion was begun. That is not taken back, even if the manifest returns.
    pub leaving: bool,
    /// Its livenessProbe has failed: its guest is to end.
    pub unhealthy: bool,
    /// Its launcher Pod is being deleted: its guest is to end.
    pub stopped: bool,
    /// Its guest has run.
    pub started: bool,
    /// It holds a network namespace and an address.
    pub has_network: bool,
    /// The manifest says something else by now.
    pub outdated: bool,
}

impl Record {
    /// Nobody wants its guest to go on.
    pub fn ends(&self) -> bool {
        self.is_final || self.leaving || self.unhealthy || self.stopped
    }

    /// What its launcher has to do within a deadline, if there is a launcher.
    pub fn awaited(&self) -> Option<Awaited> {
        match self {
            Self { is_final: true, .. } => Some(Awaited::Exit),
            Self { leaving: true, .. } | Self { unhealthy: true, .. } | Self { stopped: true, .. } => {
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
    /// Exit: how the guest ended is recorded.
    Exit,
}

/// How far the handler's request to the launcher to end its guest, or to exit, has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// This handler has not sent it.
    Unsent,
    /// It was sent and there is time left.
    Sent,
    /// The deadline of what is awaited has passed, whether anything was sent or answered or not.
    Overdue,
}

/// What is seen of the launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// It was never started.
    Unstarted,
    /// Its process runs and it does not answer: it has just started, or is slow, or hangs.
    Silent,
    /// It answers and no machine was launched.
    Waiting,
    /// It answers and brings its guest up.
    Starting,
    /// It answers and has a guest, in whatever state.
    Alive,
    /// It answers, its guest is gone and it holds the outcome.
    Exited,
    /// Its process is gone.
    Vanished,
    /// Another VMI's launcher answers on its socket.
    Foreign,
}

/// Everything [`decide`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed {
    /// Absent when no VMI of this name was accepted.
    pub record: Option<Record>,
    /// Its launcher.
    pub launcher: Launcher,
    /// The volumes that are plugged into the guest are not those that the VMI has.
    pub volumes_differ: bool,
    /// The livenessProbe fails.
    pub ill: bool,
    /// The request to end the guest, or to exit.
    pub request: Request,
}

/// One thing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Give the manifest a UID and a directory.
    Accept,
    /// Prepare network and disks and start the launcher process.
    Start,
    /// Send the machine to the launcher.
    Launch,
    /// Record that deletion has begun.
    BeginLeaving,
    /// Record that the guest is to end because its livenessProbe fails.
    Condemn,
    /// Record that the guest is to end because its launcher Pod is being deleted.
    Stop,
    /// Plug volumes in and out.
    PlugVolumes,
    /// Press the guest's power button.
    AskShutdown,
    /// Kill the launcher and every process that it started, the guest's among them.
    Kill,
    /// Record how the guest ended.
    RecordOutcome,
    /// Record that the launcher went away without telling how the guest ended.
    RecordLoss,
    /// Let the launcher exit.
    Dismiss,
    /// Give network and address back.
    ReleaseNetwork,
    /// Remove everything about it.
    Remove,
    /// Say that a stranger sits on the launcher's socket, and leave it alone.
    ReportStranger,
    /// Nothing until something changes.
    Wait,
    /// Nothing is left: this name can be forgotten.
    Finish,
}

/// Decides the next step.
pub fn decide(wanted: Wanted, seen: &Observed) -> Action {
    let Some(record) = seen.record else {
        return match wanted {
            // Also one that never starts is reported.
            Wanted::Present | Wanted::Stopped => Action::Accept,
            Wanted::Held | Wanted::Absent => Action::Finish,
        };
    };
    if wanted == Wanted::Absent && !record.leaving {
        return Action::BeginLeaving;
    }
    if wanted == Wanted::Stopped && !(record.is_final || record.leaving || record.stopped) {
        return Action::Stop;
    }
    match seen.launcher {
        Launcher::Foreign => Action::ReportStranger,
        Launcher::Unstarted | Launcher::Vanished if record.is_final => after_the_end(record),
        Launcher::Unstarted if record.leaving => Action::Remove,
        Launcher::Unstarted if record.stopped => Action::RecordLoss,
        // What never ran may still be corrected: it makes room for what the manifest says now.
        Launcher::Unstarted if record.outdated && wanted == Wanted::Present => Action::Remove,
        Launcher::Unstarted => Action::Start,
        Launcher::Vanished => Action::RecordLoss,
        // However late it is: what a launcher says of the end is recorded before anything else.
        Launcher::Exited if !record.is_final => Action::RecordOutcome,
        // A launcher in any other state has a process that is still waited for.
        _ if seen.request == Request::Overdue && record.awaited().is_some() => Action::Kill,
        Launcher::Exited => dismiss(seen.request),
        Launcher::Waiting if record.ends() => dismiss(seen.request),
        // Sent is what kills it: it is to be gone any moment.
        Launcher::Waiting if seen.request == Request::Sent => Action::Wait,
        Launcher::Waiting => Action::Launch,
        // A final VMI never runs: whatever is still there is a leftover.
        Launcher::Starting | Launcher::Alive if record.is_final => Action::Kill,
        Launcher::Starting | Launcher::Alive if record.ends() => match seen.request {
            Request::Unsent => Action::AskShutdown,
            Request::Sent | Request::Overdue => Action::Wait,
        },
        Launcher::Alive if seen.ill => Action::Condemn,
        Launcher::Alive if seen.volumes_differ => Action::PlugVolumes,
        // Slow is not dead: only the end of its process ends a guest that has run and is wanted.
        Launcher::Silent | Launcher::Starting | Launcher::Alive => Action::Wait,
    }
}

fn after_the_end(record: Record) -> Action {
    match record {
        Record { leaving: true, .. } => Action::Remove,
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
