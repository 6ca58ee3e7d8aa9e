//! The reconciler of one VMI.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument as _, Span, debug, error, info, info_span, warn};
use vireo_api::spec::Vm;
use vireo_proto::launcher::{State, state};

use super::backoff::Backoff;
use super::credentials::{CredentialSync, Guest};
use super::deadline::{Deadline, Interrupt};
use super::decide::{self, Action, Awaited, Launcher, Observed, Request, decide};
use super::desired::Desired;
use super::downward_metrics::{self, MetricsWriter};
use super::hotplug;
use super::memory_dump;
use super::nics;
use super::observe::observe_launcher;
use super::prober::Prober;
use super::projected;
use super::reattach::Reattach;
use super::record::Record;
use super::status::SyncError;
use super::volumes;
use crate::launcher::link::{LauncherStatus, Link};
use crate::launcher::process::{self, Found};
use crate::manifests::Key;
use crate::node::{Attachments, Node};
use crate::settings::Runtime;
use crate::storage::FAILED_MOUNT;
use crate::storage::projected::AbsentObject;

/// The retry interval after a deadline has passed.
const OVERDUE_RETRY: Duration = Duration::from_secs(1);
/// The retry interval after a status could not be written.
const WRITE_RETRY: Duration = Duration::from_secs(5);

/// Reconciles one VMI: its record, its launcher and its probes.
#[derive(Debug)]
pub(super) struct VmiReconciler {
    pub(super) node: Arc<Node>,
    pub(super) key: Key,
    pub(super) record: Option<Record>,
    pub(super) launcher: LauncherState,
    /// The addresses that its Pod was seen to have, IPv4 first.
    pub(super) pod_addresses: Vec<IpAddr>,
    /// The launch request was sent to this launcher; the state that it last reported may be older.
    pub(super) launched: bool,
    /// The deadline of what the launcher has to do.
    pub(super) deadline: Option<Deadline>,
    /// What the launcher did not do in time, if it was killed for that.
    pub(super) killed: Option<Awaited>,
    /// The record differs from the one on disk.
    pub(super) unsaved: bool,
    /// The last write of the record failed.
    pub(super) save_failed: bool,
    pub(super) sync_error: Option<SyncError>,
    /// Runs its probes while its guest is to run.
    pub(super) prober: Option<Prober>,
    /// Has the guest agent set keys and passwords while its guest is to run.
    pub(super) credential_sync: Option<CredentialSync>,
    /// Writes the metrics that the guest reads, where it does.
    pub(super) metrics_writer: Option<MetricsWriter>,
    pub(super) backoff: Backoff,
    pub(super) reattach: Reattach,
    /// The object that does not exist and has files of a volume.
    pub(super) awaited_object: Option<AbsentObject>,
    /// Its empty disks count as promised.
    pub(super) has_promised_disks: bool,
    /// Notifies about new claims.
    pub(super) claims: watch::Receiver<u64>,
    /// Notifies about changed launcher Pods.
    pub(super) pods: watch::Receiver<u64>,
}

/// The launcher of a VMI.
#[derive(Debug)]
pub(super) enum LauncherState {
    Unstarted,
    Attached(Link),
    Gone,
}

impl VmiReconciler {
    /// A reconciler of a name without a record.
    pub(super) fn new(node: Arc<Node>, key: Key) -> Self {
        Self {
            claims: node.subscribe_claims(),
            pods: node.subscribe_pods(),
            node,
            key,
            record: None,
            launcher: LauncherState::Unstarted,
            pod_addresses: Vec::new(),
            launched: false,
            deadline: None,
            killed: None,
            unsaved: false,
            save_failed: false,
            sync_error: None,
            prober: None,
            credential_sync: None,
            metrics_writer: None,
            awaited_object: None,
            has_promised_disks: false,
            backoff: Backoff::default(),
            reattach: Reattach::default(),
        }
    }

    /// A reconciler of a VMI that was recorded before a restart of the handler.
    pub(super) fn adopt(node: Arc<Node>, record: Record) -> Self {
        let mut reconciler = Self::new(node, record.key());
        if let Some(plan) = &record.plan {
            reconciler.node.adopt_wire(plan);
        }
        reconciler.node.show(&reconciler.key, Some(record.vmi.clone()));
        reconciler.record = Some(record);
        reconciler.promise_disks();
        reconciler
    }

    /// Finds the launcher that the stamp identifies.
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
                info!(pid = process.pid(), "attached to the launcher");
                LauncherState::Attached(Link::watch(process, record.dir.launcher_socket(), vmi))
            }
        };
        Ok(())
    }

    /// Reconciles until nothing is left of the name.
    pub(super) async fn run(mut self, mut desired: watch::Receiver<Desired>) -> Key {
        let mut span = self.span();
        if self.record.is_some()
            && let Err(error) = span.in_scope(|| self.find_launcher())
        {
            error!(vmi = %self.key, %error, "cannot find the launcher; the VMI is left alone until the handler is restarted");
            // The task must not end: another one would start a second launcher for the VMI.
            return std::future::pending().await;
        }
        let mut uid = self.uid();
        loop {
            let wanted = desired.borrow_and_update().clone();
            self.node.metrics.syncs.count(&self.key.namespace, &self.key.name);
            match self.reconcile(&wanted, &mut desired).instrument(span.clone()).await {
                Step::Requeue => {}
                Step::Finished => {
                    self.node.metrics.syncs.forget(&self.key.namespace, &self.key.name);
                    return self.key;
                }
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

    /// Adds the VMI to every log line about it.
    fn span(&self) -> Span {
        let Key { namespace, name } = &self.key;
        match self.uid() {
            Some(uid) => info_span!("vmi", namespace, name, %uid),
            None => info_span!("vmi", namespace, name),
        }
    }

    async fn reconcile(&mut self, desired: &Desired, updates: &mut watch::Receiver<Desired>) -> Step {
        if let Some(grace) = desired.grace()
            && let Err(sync_error) = self.shorten_grace(grace)
        {
            // The next reconcile retries it; until then the earlier grace period applies.
            warn!(reason = sync_error.reason, "{}", sync_error.message);
        }
        if let Err(sync_error) = self.apply_devices(desired) {
            warn!(reason = sync_error.reason, "{}", sync_error.message);
        }
        self.promise_disks();
        self.update_prober();
        self.update_deadline();
        let observed = self.observe(desired);
        let action = decide(desired.wanted(self.record.as_ref()), &observed);
        debug!(?observed, ?action, "decided");
        let done = match action {
            Action::Wait => Ok(()),
            Action::Finish => return Step::Finished,
            action => {
                let at = self.deadline.map(|deadline| deadline.at);
                self.act(action, desired, &mut Interrupt { desired: updates, at }).await
            }
        };
        let mut until = self.overdue_at();
        match done {
            Ok(()) if action == Action::Wait => {
                // What failed is no longer in the spec.
                self.sync_error.take_if(|error| {
                    !observed.devices_differ && (error.is_about_volumes() || error.is_about_nics())
                });
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
        let waits = match action {
            // The pidfd reports the end of a killed process; the launcher's state reports volumes and links.
            Action::Wait | Action::Kill | Action::ReportForeignLauncher | Action::SyncDevices => true,
            _ => self.sync_error.is_some(),
        };
        if !self.publish(desired, waits) {
            let retry = Instant::now() + WRITE_RETRY;
            until = Some(until.map_or(retry, |until| until.min(retry)));
        }
        if waits { Step::Wait(until) } else { Step::Requeue }
    }

    pub(super) fn launcher_status(&self) -> Option<LauncherStatus> {
        match &self.launcher {
            LauncherState::Unstarted | LauncherState::Gone => None,
            LauncherState::Attached(link) => Some(link.status()),
        }
    }

    /// The launcher's current state, if it responds.
    pub(super) fn state(&self) -> Option<State> {
        match self.launcher_status() {
            Some(LauncherStatus::Connected(state)) => Some(*state),
            _ => None,
        }
    }

    /// Starts to write the metrics that the guest reads, if it does.
    fn start_metrics(&self, record: &Record) -> Option<MetricsWriter> {
        let (disks, vm) = (self.known_disks(record)?, record.vm().ok()?);
        let kind = self.state()?.hypervisor.map(|chosen| chosen.kind()).unwrap_or_default();
        let files = downward_metrics::files(&vm, &disks);
        Some(MetricsWriter::start(&self.node, files, record.dir.launcher_socket(), kind))
    }

    /// Starts, pauses or stops the probes, the setting of credentials and the writer of metrics as the guest's state requires.
    fn update_prober(&mut self) {
        let attached = matches!(self.launcher, LauncherState::Attached(_));
        let record = self.record.as_ref().filter(|record| attached && !record.ends());
        let Some(record) = record else {
            (self.prober, self.credential_sync, self.metrics_writer) = (None, None, None);
            return;
        };
        let phase = self.state().map(|state| state.phase());
        let active = phase == Some(state::Phase::Running);
        let guest = match self.state().is_some_and(|state| state.agent.is_some()) {
            _ if !active => Guest::Paused,
            true => Guest::WithAgent,
            false => Guest::WithoutAgent,
        };
        match (&self.credential_sync, &self.launcher) {
            (Some(sync), _) => sync.set_guest(guest),
            (None, LauncherState::Attached(link)) if active => {
                self.credential_sync = CredentialSync::start(&self.node, record, link.pid(), guest);
            }
            (None, _) => {}
        }
        if active && self.metrics_writer.is_none() {
            self.metrics_writer = self.start_metrics(record);
        }
        match &self.prober {
            Some(prober) => prober.set_active(active),
            None if active => self.prober = Prober::start(record),
            None => {}
        }
    }

    fn observe(&self, desired: &Desired) -> Observed {
        let launcher = match &self.launcher {
            LauncherState::Unstarted => Launcher::Unstarted,
            LauncherState::Gone => Launcher::Vanished,
            LauncherState::Attached(link) => match observe_launcher(&link.status()) {
                // The launcher has answered the launch; its new state is about to arrive.
                Launcher::Waiting if self.launched => Launcher::Silent,
                other => other,
            },
        };
        let request =
            self.deadline.map_or(Request::Unsent, |deadline| deadline.request(launcher, Instant::now()));
        let record = self.record.as_ref();
        let record =
            record.map(|record| decide::Record { outdated: desired.differs(record), ..record.facts() });
        let liveness_failed =
            self.prober.as_ref().is_some_and(|prober| prober.results().liveness.healthy == Some(false));
        let devices_differ = self.devices_differ();
        Observed { record, launcher, devices_differ, liveness_failed, request }
    }

    /// Whether a NIC or a volume has to be hotplugged or unplugged, the link of a NIC to be switched, or memory to be dumped.
    fn devices_differ(&self) -> bool {
        let Some((record, state)) = self.record.as_ref().zip(self.state()) else { return false };
        let takes = matches!(state.phase(), state::Phase::Running | state::Phase::Paused);
        let places = self.volume_places();
        let differ = |vm: &Vm| {
            hotplug::links_differ(vm, &state)
                || !nics::changes(vm, &state, &record.bridged).is_empty()
                || memory_dump::step(vm, &state, &places).is_some()
                || !volumes::changes(vm, &state.volumes, &places).is_empty()
        };
        takes && record.vm().is_ok_and(|vm| differ(&vm))
    }

    /// Where the claims of hotplugged volumes are.
    pub(super) fn volume_places(&self) -> volumes::Places {
        match (&self.node.settings.runtime, &self.record) {
            (Runtime::Pods(_), Some(record)) => {
                volumes::Places::Pods(self.node.attachments(&self.key.namespace, record.uid))
            }
            (Runtime::Pods(_), None) => volumes::Places::Pods(Attachments::new()),
            (Runtime::Process, _) => volumes::Places::Node(self.node.claims()),
        }
    }

    /// Whether it has volumes in attachment Pods, or is to have some.
    fn follows_attachments(&self) -> bool {
        let Some(record) = self.record.as_ref().filter(|_| self.node.settings.runtime != Runtime::Process)
        else {
            return false;
        };
        record.vm().is_ok_and(|vm| {
            vm.memory_dump().is_some() || vm.disks_with_hotpluggable_volumes().next().is_some()
        })
    }

    /// Sets the deadline of what the launcher has to do now. A deadline for the same thing is kept.
    fn update_deadline(&mut self) {
        let attached = matches!(self.launcher, LauncherState::Attached(_));
        let record = self.record.as_ref().filter(|_| attached);
        let awaited = record.and_then(|record| Some((record, record.facts().awaited()?)));
        self.deadline = match (awaited, self.deadline) {
            (Some((_, awaited)), Some(deadline)) if deadline.awaited == awaited => Some(deadline),
            (Some((record, awaited)), _) => {
                Some(Deadline::new(awaited, (record.grace(), record.ends_since())))
            }
            (None, _) => None,
        };
    }

    /// The time of the next check of the deadline.
    fn overdue_at(&self) -> Option<Instant> {
        // A deadline that has passed was acted upon: check it again after a while.
        Some(self.deadline?.at.max(Instant::now() + OVERDUE_RETRY))
    }

    async fn wait(&mut self, desired: &mut watch::Receiver<Desired>, until: Option<Instant>) {
        let waits_for_pod = self.sync_error.as_ref().is_some_and(SyncError::is_about_pods);
        let waits_for_pod = waits_for_pod || self.follows_attachments();
        let launcher = async {
            match &mut self.launcher {
                LauncherState::Attached(link) => link.changed().await,
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
            // The sender belongs to the node, which outlives this task.
            if !waits || self.claims.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let pods = async {
            // The same holds for this one.
            if !waits_for_pod || self.pods.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let waits = self.sync_error.as_ref().is_some_and(|error| error.reason == FAILED_MOUNT);
        let object = projected::appears(&self.node, self.awaited_object.as_ref().filter(|_| waits));
        let prober = async {
            match &mut self.prober {
                Some(prober) => prober.changed().await,
                None => std::future::pending().await,
            }
        };
        let credentials = async {
            match &mut self.credential_sync {
                Some(sync) => sync.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = claims => {}
            () = pods => {}
            () = object => {}
            () = prober => {}
            () = credentials => {}
            changed = desired.changed() => if changed.is_err() {
                // The handler stops: this task does nothing more and undoes nothing.
                std::future::pending::<()>().await;
            },
            () = launcher => {}
            () = clock => {}
        }
    }
}

enum Step {
    /// Reconcile again at once.
    Requeue,
    /// Reconcile again after a change, or at this time.
    Wait(Option<Instant>),
    /// End the task: nothing is left of the name.
    Finished,
}

#[cfg(test)]
mod image_tests;
#[cfg(test)]
mod tests;
