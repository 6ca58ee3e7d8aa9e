//! What to do next about one VMI: a pure, total function of what is wanted and what is seen.
//!
//! The function is asked again after every change and after every action, so each action may fail or be cut short
//! and is simply decided again. It has no memory and no clock: what took too long is seen as overdue.

/// What the manifests say about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A manifest names it and holds together.
    Present,
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
    pub condemned: bool,
    /// It holds a network namespace and an address.
    pub has_network: bool,
    /// The manifest says something else by now.
    pub outdated: bool,
}

impl Record {
    /// Nobody wants its guest to go on.
    pub fn ends(&self) -> bool {
        self.is_final || self.leaving || self.condemned
    }
}

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The launcher was not asked yet by this handler.
    Unasked,
    /// It was asked and has time left.
    Asked,
    /// Its time is up.
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
    /// The stop of the guest, or of a launcher that has been dismissed.
    pub stop: Stop,
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
    /// Plug volumes in and out.
    PlugVolumes,
    /// Press the guest's power button.
    AskShutdown,
    /// End the launcher process, and with it the guest.
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
        return if wanted == Wanted::Present { Action::Accept } else { Action::Finish };
    };
    if wanted == Wanted::Absent && !record.leaving {
        return Action::BeginLeaving;
    }
    match seen.launcher {
        Launcher::Foreign => Action::ReportStranger,
        Launcher::Unstarted | Launcher::Vanished if record.is_final => after_the_end(record),
        Launcher::Unstarted if record.leaving => Action::Remove,
        // What never ran may still be corrected: it makes room for what the manifest says now.
        Launcher::Unstarted if record.outdated && wanted == Wanted::Present => Action::Remove,
        Launcher::Unstarted => Action::Start,
        Launcher::Vanished => Action::RecordLoss,
        Launcher::Exited if record.is_final => dismiss(seen.stop),
        Launcher::Exited => Action::RecordOutcome,
        Launcher::Waiting if record.is_final || record.leaving => dismiss(seen.stop),
        Launcher::Waiting => Action::Launch,
        // A final VMI never runs: whatever is still there is a leftover.
        Launcher::Alive if record.is_final => Action::Kill,
        Launcher::Alive if record.leaving || record.condemned => match seen.stop {
            Stop::Unasked => Action::AskShutdown,
            Stop::Asked => Action::Wait,
            Stop::Overdue => Action::Kill,
        },
        Launcher::Alive if seen.ill => Action::Condemn,
        Launcher::Alive if seen.volumes_differ => Action::PlugVolumes,
        Launcher::Silent if record.ends() && seen.stop == Stop::Overdue => Action::Kill,
        // Slow is not dead: only the end of its process ends a guest.
        Launcher::Silent | Launcher::Alive => Action::Wait,
    }
}

fn after_the_end(record: Record) -> Action {
    match record {
        Record { leaving: true, .. } => Action::Remove,
        Record { has_network: true, .. } => Action::ReleaseNetwork,
        Record { .. } => Action::Wait,
    }
}

fn dismiss(stop: Stop) -> Action {
    match stop {
        Stop::Unasked => Action::Dismiss,
        Stop::Asked => Action::Wait,
        Stop::Overdue => Action::Kill,
    }
}

#[cfg(test)]
mod tests;
