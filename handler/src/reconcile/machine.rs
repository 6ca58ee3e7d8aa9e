//! The task of one VMI.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, debug, error, info, info_span, warn};
use vireo_api::spec::Vm;
use vireo_proto::launcher::{State, state};

use super::backoff::Backoff;
use super::deadline::{Deadline, Interrupt};
use super::decide::{self, Action, Awaited, Launcher, Observed, Request, decide};
use super::desired::Desired;
use super::health::Health;
use super::record::Record;
use super::status::SyncError;
use super::volumes;
use crate::launcher::link::{Link, Seen, summary};
use crate::launcher::process::{self, Found};
use crate::manifests::Key;
use crate::node::Node;

/// How soon what is overdue is looked at again.
const OVERDUE_RETRY: Duration = Duration::from_secs(1);
/// How soon a status that could not be written is written again.
const WRITE_RETRY: Duration = Duration::from_secs(5);

/// One VMI with everything that was made for it.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) node: Arc<Node>,
    pub(super) key: Key,
    pub(super) record: Option<Record>,
    pub(super) launcher: LauncherState,
    /// The machine was sent to this launcher; what it says of itself may be older.
    pub(super) launched: bool,
    /// Until when the launcher has to do what is awaited of it.
    pub(super) deadline: Option<Deadline>,
    /// What the launcher was killed for not doing in time.
    pub(super) killed: Option<Awaited>,
    /// What is known could not be written down yet.
    pub(super) unsaved: bool,
    pub(super) sync_error: Option<SyncError>,
    /// Whoever runs its probes, while its guest is there and may go on.
    pub(super) health: Option<Health>,
    pub(super) backoff: Backoff,
    /// Tells of new claims.
    pub(super) claims: watch::Receiver<u64>,
}

/// The launcher of a machine.
#[derive(Debug)]
pub(super) enum LauncherState {
    Unstarted,
    Followed(Link),
    Gone,
}

impl Machine {
    /// A name about which nothing is recorded.
    pub(super) fn new(node: Arc<Node>, key: Key) -> Self {
        Self {
            claims: node.subscribe_claims(),
            node,
            key,
            record: None,
            launcher: LauncherState::Unstarted,
            launched: false,
            deadline: None,
            killed: None,
            unsaved: false,
            sync_error: None,
            health: None,
            backoff: Backoff::default(),
        }
    }

    /// A recorded VMI, its launcher found again if it still runs.
    pub(super) fn adopt(node: Arc<Node>, record: Record) -> Self {
        let mut machine = Self::new(node, record.key());
        if let Some(plan) = &record.plan {
            machine.node.adopt_wire(plan);
        }
        machine.node.show(&machine.key, Some(record.vmi.clone()));
        machine.record = Some(record);
        machine
    }

    /// Looks for the launcher that the stamp speaks of.
    pub(super) fn find_launcher(&mut self) -> std::io::Result<()> {
        let Some(record) = &self.record else { return Ok(()) };
        self.launcher = match process::find(&record.dir.launcher_stamp())? {
            Found::Unstarted => LauncherState::Unstarted,
            Found::Gone => LauncherState::Gone,
            Found::Running(process) => {
                let vmi = vireo_proto::launcher::Identity {
                    namespace: self.key.namespace.clone(),
                    name: self.key.name.clone(),
                    uid: record.uid.to_string(),
                };
                info!(pid = process.pid(), "following launcher");
                LauncherState::Followed(Link::follow(process, record.dir.launcher_socket(), vmi))
            }
        };
        Ok(())
    }

    /// Goes round until nothing is left of the name.
    pub(super) async fn run(mut self, mut desired: watch::Receiver<Desired>) -> Key {
        let mut span = self.span();
        if self.record.is_some()
            && let Err(error) = span.in_scope(|| self.find_launcher())
        {
            error!(vmi = %self.key, %error, "cannot look for the launcher; it is left alone until the handler is restarted");
            // The task does not end: else another one would start a second launcher for the VMI.
            return std::future::pending().await;
        }
        let mut uid = self.uid();
        loop {
            let wanted = desired.borrow_and_update().clone();
            match self.round(&wanted, &mut desired).instrument(span.clone()).await {
                Step::Again => {}
                Step::Finished => return self.key,
                Step::Wait(until) => self.wait(&mut desired, until).await,
            }
            if uid != self.uid() {
                uid = self.uid();
                span = self.span();
            }
        }
    }

    fn uid(&self) -> Option<uuid::Uuid> {
        self.record.as_ref().map(|record| record.uid)
    }

    /// Names the VMI on every line that is logged about it.
    fn span(&self) -> Span {
        let Key { namespace, name } = &self.key;
        match self.uid() {
            Some(uid) => info_span!("vmi", namespace, name, %uid),
            None => info_span!("vmi", namespace, name),
        }
    }

    async fn round(&mut self, desired: &Desired, news: &mut watch::Receiver<Desired>) -> Step {
        if let Some(grace) = desired.grace()
            && let Err(sync_error) = self.shorten_grace(grace)
        {
            // It is tried again by the next round; until then, what was known before holds.
            warn!(reason = sync_error.reason, "{}", sync_error.message);
        }
        if let Err(sync_error) = self.follow(desired) {
            warn!(reason = sync_error.reason, "{}", sync_error.message);
        }
        self.follow_health();
        self.follow_deadline();
        let seen = self.observe(desired);
        let action = decide(desired.decided(self.record.as_ref()), &seen);
        debug!(?seen, ?action, "decided");
        let done = match action {
            Action::Wait => Ok(()),
            Action::Finish => return Step::Finished,
            action => {
                let at = self.deadline.map(|deadline| deadline.at);
                self.act(action, desired, &mut Interrupt { desired: news, at }).await
            }
        };
        let mut until = self.overdue_at();
        match done {
            Ok(()) if action == Action::Wait => {
                if self.sync_error.as_ref().is_some_and(|sync_error| sync_error.is_about_volumes())
                    && !seen.volumes_differ
                {
                    // What was wrong is no longer wanted.
                    self.sync_error = None;
                }
            }
            Ok(()) => {
                self.sync_error = None;
                self.backoff.reset();
            }
            Err(sync_error) => {
                let (sync_error, pause) = self.backoff.fail(sync_error);
                if self.sync_error.as_ref() != Some(&sync_error) {
                    warn!(reason = sync_error.reason, retry_in_s = pause.as_secs(), "{}", sync_error.message);
                }
                self.sync_error = Some(sync_error);
                let retry = Instant::now() + pause;
                until = Some(until.map_or(retry, |until| until.min(retry)));
            }
        }
        if !self.publish(desired) {
            let retry = Instant::now() + WRITE_RETRY;
            until = Some(until.map_or(retry, |until| until.min(retry)));
        }
        match action {
            // The end of a killed process is told by its pidfd.
            // That volumes are plugged in is told by the launcher's state.
            Action::Wait | Action::Kill | Action::ReportStranger | Action::PlugVolumes => Step::Wait(until),
            _ if self.sync_error.is_some() => Step::Wait(until),
            _ => Step::Again,
        }
    }

    pub(super) fn seen(&self) -> Option<Seen> {
        match &self.launcher {
            LauncherState::Unstarted | LauncherState::Gone => None,
            LauncherState::Followed(link) => Some(link.seen()),
        }
    }

    /// What the launcher says now, if it says anything.
    pub(super) fn state(&self) -> Option<State> {
        match self.seen() {
            Some(Seen::Here(state)) => Some(*state),
            _ => None,
        }
    }

    /// Has the probes run while there is a guest that may go on.
    fn follow_health(&mut self) {
        let followed = matches!(self.launcher, LauncherState::Followed(_));
        let record = self.record.as_ref().filter(|record| followed && !record.ends());
        let Some(record) = record else {
            self.health = None;
            return;
        };
        let phase = self.state().map(|state| state.phase());
        let awake = phase == Some(state::Phase::Running);
        match &self.health {
            Some(health) => health.wake(awake),
            None if awake => self.health = Health::of(record),
            None => {}
        }
    }

    fn observe(&self, desired: &Desired) -> Observed {
        let launcher = match &self.launcher {
            LauncherState::Unstarted => Launcher::Unstarted,
            LauncherState::Gone => Launcher::Vanished,
            LauncherState::Followed(link) => match summary(Some(&link.seen())) {
                // The launch was answered; its state is on the way.
                Launcher::Waiting if self.launched => Launcher::Silent,
                other => other,
            },
        };
        let request =
            self.deadline.map_or(Request::Unsent, |deadline| deadline.request(launcher, Instant::now()));
        let record = self.record.as_ref();
        let record =
            record.map(|record| decide::Record { outdated: desired.differs(record), ..record.facts() });
        let ill = self.health.as_ref().is_some_and(|health| health.told().liveness.well == Some(false));
        Observed { record, launcher, volumes_differ: self.volumes_differ(), ill, request }
    }

    /// Whether the guest runs without what is to be plugged in, or with what is to be plugged out.
    fn volumes_differ(&self) -> bool {
        let Some((record, state)) = self.record.as_ref().zip(self.state()) else { return false };
        let takes = matches!(state.phase(), state::Phase::Running | state::Phase::Paused);
        let differ = |vm: &Vm| !volumes::changes(vm, &state.volumes, &self.node.claims()).is_empty();
        takes && record.vm().is_ok_and(|vm| differ(&vm))
    }

    /// Sets the deadline of what is awaited of the launcher now. One that is set stays as long as that is the same.
    fn follow_deadline(&mut self) {
        let followed = matches!(self.launcher, LauncherState::Followed(_));
        let record = self.record.as_ref().filter(|_| followed);
        let awaited = record.and_then(|record| Some((record, record.facts().awaited()?)));
        self.deadline = match (awaited, self.deadline) {
            (Some((_, awaited)), Some(deadline)) if deadline.awaited == awaited => Some(deadline),
            (Some((record, awaited)), _) => {
                Some(Deadline::new(awaited, (record.grace(), record.ends_since())))
            }
            (None, _) => None,
        };
    }

    /// When something becomes overdue.
    fn overdue_at(&self) -> Option<Instant> {
        // What is overdue already was acted upon; look again after a while.
        Some(self.deadline?.at.max(Instant::now() + OVERDUE_RETRY))
    }

    async fn wait(&mut self, desired: &mut watch::Receiver<Desired>, until: Option<Instant>) {
        let launcher = async {
            match &mut self.launcher {
                LauncherState::Followed(link) => link.changed().await,
                LauncherState::Unstarted | LauncherState::Gone => std::future::pending().await,
            }
        };
        let clock = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let claims = async {
            let waits = self.sync_error.as_ref().is_some_and(SyncError::is_about_claims);
            // The node, which is shared, outlives this.
            if !waits || self.claims.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let health = async {
            match &mut self.health {
                Some(health) => health.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = claims => {}
            () = health => {}
            changed = desired.changed() => if changed.is_err() {
                // The handler stops: nothing more is wanted of this task, and nothing is undone.
                std::future::pending::<()>().await;
            },
            () = launcher => {}
            () = clock => {}
        }
    }
}

enum Step {
    Again,
    Wait(Option<Instant>),
    Finished,
}

#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod tests;
