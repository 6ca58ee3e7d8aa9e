//! Runs one action. An action may fail or be cancelled; the next run finds what is already done.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tracing::{info, warn};
use vireo_proto::launcher::LaunchRequest;
use vireo_proto::{LAUNCHER_SOCKET, files};
use vireo_vmconfig::DeviceRequest;

use super::deadline::Interrupt;
use super::decide::Action;
use super::desired::Desired;
use super::limits::node_memory;
use super::reconciler::{LauncherState, VmiReconciler};
use super::record::{Record, now};
use super::status::{NO_FUNCTION, NO_POD, Phase, SyncError, note_pulls};
use crate::launcher;
use crate::launcher::cgroup::limits::oom_score_adj;
use crate::launcher::files::{Origin, PodFiles};
use crate::launcher::link::{LauncherStatus, Link, LinkError, chain};
use crate::launcher::passt::Passt;
use crate::launcher::process::{self, Confinement, Start};
use crate::network::{Uplink, netns};
use crate::node::LauncherPod;
use crate::resolve;
use crate::settings::Runtime;
use crate::storage::projected::ProjectedFiles;
use crate::storage::{
    self, FAILED_MOUNT, HostDisks, Places, Prepared, PullSecrets, StorageError, filesystems,
};

/// How often a VMI shows how far its images are: each time is a write to the API server.
const PULL_STEP: Duration = Duration::from_secs(10);

pub(super) type Done = Result<(), SyncError>;

/// Turns an error into a [`SyncError`] with this reason and the whole chain of causes.
pub(super) fn sync_error<E: std::error::Error>(reason: &'static str) -> impl FnOnce(E) -> SyncError {
    move |error| SyncError { reason, message: chain(&error) }
}

pub(super) fn storage_error(error: StorageError) -> SyncError {
    sync_error(error.reason())(error)
}

/// Runs blocking work on the runtime's thread pool.
pub(super) async fn run_blocking<T: Send + 'static>(
    reason: &'static str,
    work: impl FnOnce() -> Result<T, SyncError> + Send + 'static,
) -> Result<T, SyncError> {
    let panicked = |error: tokio::task::JoinError| SyncError { reason, message: error.to_string() };
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}

/// Runs work that may take long. Returns `None` when the desired state changes so that the work is not needed.
pub(super) async fn cancel_if<T>(
    desired: &watch::Receiver<Desired>,
    is_moot: impl Fn(&Desired) -> bool,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut desired = desired.clone();
    let moot = async {
        if desired.wait_for(is_moot).await.is_err() {
            // The handler stops, and with it this task.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = moot => None,
        done = work => Some(done),
    }
}

impl VmiReconciler {
    /// Runs one action. `interrupt` cancels calls to the launcher; a cancelled call is not an error.
    pub(super) async fn act(
        &mut self,
        action: Action,
        desired: &Desired,
        interrupt: &mut Interrupt<'_>,
    ) -> Done {
        match action {
            Action::Accept => self.accept(desired),
            Action::Start => self.start(interrupt.desired).await,
            Action::Launch => self.launch(interrupt).await,
            Action::BeginDeletion => self.begin_deletion(),
            Action::AskShutdown => self.ask_shutdown(interrupt).await,
            Action::MarkUnhealthy => self.mark_unhealthy(),
            Action::Stop => self.stop(),
            Action::SyncDevices => self.sync_devices(interrupt).await,
            Action::Kill => self.kill().await,
            Action::RecordOutcome => self.record_outcome().await,
            Action::RecordLoss => self.record_loss().await,
            Action::Dismiss => self.dismiss(interrupt).await,
            Action::ReleaseNetwork => self.release_network().await,
            Action::Remove => self.remove().await,
            Action::ReportForeignLauncher => Err(self.foreign_launcher()),
            Action::Wait | Action::Finish => Ok(()),
        }
    }

    fn accept(&mut self, desired: &Desired) -> Done {
        let Some((manifest, origin)) = desired.manifest() else { return Ok(()) };
        let mut record = Record::new(&self.node.state, manifest, origin, &now());
        Phase::Pending.as_str().clone_into(&mut record.vmi.status.phase);
        if let Err(error) = record.dir.create().and_then(|()| record.write()) {
            // The retry uses another UID, so the files of this one are removed: the disk may be full.
            let _ = record.dir.remove();
            return Err(sync_error("FailedCreate")(error));
        }
        info!(uid = %record.uid, ?origin, "accepted");
        for notice in &manifest.notices {
            warn!("{notice}");
        }
        self.node.show(&self.key, Some(record.vmi.clone()));
        *self = Self { record: Some(record), ..Self::new(self.node.clone(), self.key.clone()) };
        Ok(())
    }

    pub(super) fn known(&self) -> Result<Record, SyncError> {
        let absent = || SyncError { reason: "FailedCreate", message: "no VMI is recorded".to_owned() };
        self.record.clone().ok_or_else(absent)
    }

    /// Changes the record, on disk first. Deletion continues when the disk is full: it frees space, and the record is
    /// not needed afterwards.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Record)) -> Done {
        let mut record = self.known()?;
        change(&mut record);
        match record.deleting() {
            true => self.save(&record),
            false => {
                record.write().map_err(sync_error("FailedStatusWrite"))?;
                (self.unsaved, self.save_failed) = (false, false);
            }
        }
        self.replace(record);
        Ok(())
    }

    /// Replaces the record in memory.
    fn replace(&mut self, record: Record) {
        let (before, after) = (self.record.as_ref().map(Record::phase), record.phase());
        if before != Some(after) {
            info!(to = after.as_str(), reason = record.vmi.status.reason, "phase");
        }
        self.node.show(&self.key, Some(record.vmi.clone()));
        self.record = Some(record);
    }

    /// Enters a phase of the start. It is on disk as soon as the reconciler waits: a restarted handler finds launchers by
    /// their stamps and needs no phase, and each write waits for the disk twice.
    fn enter(&mut self, phase: Phase) -> Done {
        let mut record = self.known()?;
        if record.phase() != phase {
            enter(&mut record, phase, &now());
            self.unsaved = true;
            self.replace(record);
        }
        Ok(())
    }

    /// A VMI is Pending until all its claims exist. Returns `None` when this VMI is no longer desired.
    async fn find_claims(&mut self, desired: &watch::Receiver<Desired>) -> Result<Option<()>, SyncError> {
        // In a Pod, they are mounted before the launcher runs.
        if let Runtime::Pods(_) = self.node.settings.runtime {
            return Ok(Some(()));
        }
        // A claim that appears from here on triggers another reconcile.
        self.claims.mark_unchanged();
        let record = self.known()?;
        let vm = record.vm().map_err(sync_error("FailedSpec"))?;
        let claims = self.node.claims();
        let find = storage::find_claims(&vm, &claims, &self.node.jobs);
        cancel_if(desired, |desired| desired.replaces(&record), find).await.transpose().map_err(storage_error)
    }

    /// Prepares claims, network and disks, then starts the launcher: a launcher runs only when its VM can start.
    async fn start(&mut self, desired: &watch::Receiver<Desired>) -> Done {
        if self.find_claims(desired).await?.is_none() {
            return Ok(());
        }
        let vm = self.known()?.vm().map_err(sync_error("FailedSpec"))?;
        // In a Pod, the kubelet waits for objects before it starts the launcher.
        let sources = match self.node.settings.runtime {
            Runtime::Pods(_) => Sources::default(),
            Runtime::Process => self.sources(&vm).await?,
        };
        self.enter(Phase::Scheduling)?;
        let record = self.known()?;
        record.dir.create().map_err(sync_error("FailedCreate"))?;
        match self.node.settings.runtime.clone() {
            Runtime::Process => {
                self.ensure_network(&vm).await?;
                self.start_process(desired, &record, (&vm, sources)).await
            }
            Runtime::Pods(pods) => self.find_in_pod(pods, record).await,
        }
    }

    /// Takes over the launcher that the kubelet started.
    async fn find_in_pod(&mut self, pods: PathBuf, record: Record) -> Done {
        // A Pod that appears from here on triggers another reconcile.
        self.pods.mark_unchanged();
        let pod = self.node.launcher_pod(&self.key.namespace, record.uid).ok_or_else(|| SyncError {
            reason: NO_POD,
            message: "the VMI has no launcher Pod on this node".to_owned(),
        })?;
        run_blocking("FailedLauncher", move || {
            let found = launcher::pod::find(&record.dir, &pods, &pod.uid);
            found.map(drop).map_err(|error| SyncError {
                reason: "FailedLauncher",
                message: format!("cannot find the launcher of the Pod {}: {error}", pod.uid),
            })
        })
        .await?;
        self.find_launcher().map_err(sync_error("FailedLauncher"))?;
        self.enter(Phase::Scheduled)
    }

    /// Starts the launcher as a process.
    async fn start_process(
        &mut self,
        desired: &watch::Receiver<Desired>,
        record: &Record,
        (vm, sources): (&vireo_api::spec::Vm, Sources),
    ) -> Done {
        let is_moot = |desired: &Desired| desired.replaces(record);
        let filesystems = filesystems::files(vm, &sources.projected).map_err(storage_error)?;
        if cancel_if(desired, is_moot, self.prepare_storage(vm, sources)).await.transpose()?.is_none() {
            return Ok(());
        }
        let cgroups = self.make_cgroups(vm).await?;
        let record = self.known()?;
        let oom_score_adj = Some(oom_score_adj(vm, node_memory()));
        let (node, settings) = (Arc::clone(&self.node), self.node.settings.clone());
        let dedicated = vm.dedicated_cpus();
        run_blocking("FailedLauncher", move || {
            let user = node.give_user(record.uid, &record.dir).map_err(sync_error("FailedLauncher"))?;
            node.give_cpus(&record.dir, dedicated).map_err(sync_error("TooFewCPUs"))?;
            filesystems::write(&record.dir.filesystems(), &filesystems).map_err(|error| SyncError {
                reason: FAILED_MOUNT,
                message: format!("cannot make the file systems that the guest shares: {error}"),
            })?;
            // Remove the socket of an earlier launcher that never started a VM.
            let socket = record.dir.launcher_socket();
            let _ = std::fs::remove_file(&socket);
            let seen = record.dir.launcher_view();
            let mut arguments: Vec<PathBuf> = vec!["--socket".into(), seen.join(LAUNCHER_SOCKET)];
            arguments.extend(settings.qemu.iter().flat_map(|qemu| ["--qemu".into(), qemu.clone()]));
            let sockets = record.dir.own_sockets();
            let confinement = user.map(|user| Confinement {
                user,
                directory: &seen,
                sockets: &sockets,
                show: settings.qemu.clone().into_iter().collect(),
            });
            let namespace = record.plan.as_ref().map(|plan| netns::path(&plan.namespace));
            let start = Start {
                program: &settings.launcher,
                arguments,
                log: &record.dir.launcher_log(),
                stamp: &record.dir.launcher_stamp(),
                namespace: namespace.as_deref(),
                cgroups: &cgroups,
                oom_score_adj,
                confinement,
            };
            process::spawn(&start).map(drop).map_err(|error| SyncError {
                reason: "FailedLauncher",
                message: format!("cannot start {}: {error}", settings.launcher.display()),
            })
        })
        .await?;
        self.find_launcher().map_err(sync_error("FailedLauncher"))?;
        info!("launcher started");
        self.enter(Phase::Scheduled)
    }

    async fn prepare_storage(
        &mut self,
        vm: &vireo_api::spec::Vm,
        Sources { projected, pull_secrets, is_prepared }: Sources,
    ) -> Result<Prepared, SyncError> {
        let places = Places { projected, pull_secrets, is_prepared, ..self.places(vm)? };
        let node = Arc::clone(&self.node);
        let mut preparing = std::pin::pin!(storage::prepare(vm, &places, &node.jobs));
        loop {
            tokio::select! {
                prepared = &mut preparing => return prepared.map_err(storage_error),
                () = tokio::time::sleep(PULL_STEP) => {}
            }
            let mut record = self.known()?;
            if note_pulls(&mut record.vmi.status.volume_status, vm, &places.images.pulls()) {
                self.unsaved = true;
                self.replace(record);
            }
        }
    }

    /// The directory of the disks that end with the VMI.
    fn disks_directory(&self, record: &Record, pod: Option<&LauncherPod>) -> PathBuf {
        match (&self.node.settings.runtime, pod) {
            (Runtime::Pods(pods), Some(pod)) if pod.has_disks => launcher::pod::disks(pods, &pod.uid),
            _ => record.dir.path().join("volumes"),
        }
    }

    /// The directory of the disks of a VMI that has been started. That of a Pod is known with it.
    pub(super) fn known_disks(&self, record: &Record) -> Option<PathBuf> {
        let pod = self.node.launcher_pod(&self.key.namespace, record.uid);
        let is_known = pod.is_some() || self.node.settings.runtime == Runtime::Process;
        is_known.then(|| self.disks_directory(record, pod.as_ref()))
    }

    /// Counts the empty disks of a VMI that another node agent has started.
    pub(super) fn promise_disks(&mut self) {
        let Some(record) = self.record.as_ref().filter(|_| !self.has_promised_disks) else { return };
        let (Some(directory), Ok(vm)) = (self.known_disks(record), record.vm()) else { return };
        storage::promise_disks(&vm, &directory, &self.node.claims());
        self.has_promised_disks = true;
    }

    pub(super) fn places(&self, vm: &vireo_api::spec::Vm) -> Result<Places, SyncError> {
        let record = self.known()?;
        let pod = self.node.launcher_pod(&self.key.namespace, record.uid);
        let disks = self.disks_directory(&record, pod.as_ref());
        let (pulled, image_volumes, claims) =
            pod.map(|pod| (pod.images, pod.image_volumes, pod.claims)).unwrap_or_default();
        let pod = match (&self.node.settings.runtime, self.link()) {
            (Runtime::Pods(_), Ok(link)) => {
                Some(PodFiles { pid: link.pid(), claims: claims.clone(), space: self.node.claim_space() })
            }
            _ => None,
        };
        let hotplugged =
            self.node.attachments(&self.key.namespace, record.uid).into_values().flat_map(|pod| pod.disks);
        Ok(Places {
            vmi: record.dir.path().to_owned(),
            disks,
            kept: self.node.state.kept(vm.identity().namespace(), vm.identity().name()),
            images: self.node.images.clone(),
            claims: self.node.claims(),
            allowed: self.node.settings.allowed.clone(),
            pulled,
            image_volumes,
            mounted: claims.into_iter().chain(hotplugged).map(|(path, _)| path).collect(),
            pod,
            projected: ProjectedFiles::new(),
            pull_secrets: PullSecrets::default(),
            is_prepared: true,
        })
    }

    pub(super) fn link(&self) -> Result<&Link, SyncError> {
        match &self.launcher {
            LauncherState::Attached(link) => Ok(link),
            LauncherState::Unstarted | LauncherState::Gone => {
                Err(SyncError { reason: "FailedLauncher", message: "there is no launcher".to_owned() })
            }
        }
    }

    async fn launch(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        let record = self.known()?;
        let vm = record.vm().map_err(sync_error("FailedSpec"))?;
        let is_moot = |desired: &Desired| desired.removes(&record);
        let prepare = async {
            let sources = Sources { is_prepared: true, ..self.sources(&vm).await? };
            // The request has settings of the cluster, which a node agent that has just started does not know yet.
            self.node.live_settings_known().await;
            self.prepare_storage(&vm, sources).await
        };
        let prepared = cancel_if(interrupt.desired, is_moot, prepare).await.transpose();
        let prepared = match prepared {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return Ok(()),
            Err(sync_error) => {
                // The launcher waits for the handler, so its deadline does not apply.
                self.deadline = None;
                return Err(sync_error);
            }
        };
        let uplink = match (&self.node.settings.runtime, &record.plan) {
            (Runtime::Pods(_), _) => self.ensure_network_in_pod(&vm).await?,
            (Runtime::Process, plan) => plan.as_ref().map(Uplink::from).unwrap_or_default(),
        };
        // It knows the interfaces of its Pod now.
        let record = self.known()?;
        let mut request = self.request(&record, &vm, &prepared, &uplink);
        let memory = vm.memory();
        if memory.is_locked() {
            let bytes = memory.guest().get().saturating_add(memory.added_overhead().get());
            let permitted = launcher::pod::permit_locking(self.link()?.pid(), bytes);
            permitted.map_err(sync_error("FailedLaunch"))?;
        }
        request.extra_devices.extend(self.host_devices(&vm).await?.iter().map(Into::into));
        // After the limits of locked memory that less than real time needs.
        if vm.cpu_placement().is_some_and(|placement| placement.realtime.is_some()) {
            launcher::realtime::permit(self.link()?.pid()).map_err(sync_error("FailedLaunch"))?;
        }
        let host_disks = HostDisks::of(&vm, &prepared.disks, &self.node.settings.allowed);
        let passt = resolve::passt(&vm, &crate::network::dns::of_host());
        self.pass_files(&record, request.clone(), (host_disks, passt)).await?;
        match interrupt.or(self.link()?.launch(request)).await {
            None => {}
            // The launcher's state reports the result, also of a rejected launch.
            Some(Ok(_) | Err(LinkError::Fault(_))) => self.launched = true,
            Some(Err(error)) => return Err(sync_error("FailedLaunch")(error)),
        }
        Ok(())
    }

    /// The devices of the host that a VM gets: the kubelet gave them to its launcher.
    async fn host_devices(&self, vm: &vireo_api::spec::Vm) -> Result<Vec<DeviceRequest>, SyncError> {
        let memory = vm.memory().guest().get().saturating_add(vm.memory().added_overhead().get());
        let requested = vm.host_devices().to_vec();
        match (&self.node.settings.runtime, requested.first()) {
            (_, None) => Ok(Vec::new()),
            (Runtime::Process, Some(first)) => Err(SyncError {
                reason: "FailedLaunch",
                message: format!("{}: devices of the host are available in clusters alone", first.field()),
            }),
            (Runtime::Pods(_), Some(_)) => {
                let pid = self.link()?.pid();
                let pod = self.node.launcher_pod(&self.key.namespace, self.known()?.uid);
                let networks = pod.map(|pod| pod.multus).unwrap_or_default();
                let functions =
                    launcher::pod::functions(&requested, &networks).map_err(sync_error(NO_FUNCTION))?;
                let prepare = move || launcher::pod::prepare_host_devices(pid, &requested, functions, memory);
                run_blocking("FailedLaunch", move || prepare().map_err(sync_error("FailedLaunch"))).await
            }
        }
    }

    /// Passes the files of a launch request to a launcher, which cannot open them.
    async fn pass_files(
        &self,
        record: &Record,
        request: LaunchRequest,
        (host_disks, passt): (HostDisks, Vec<Passt>),
    ) -> Done {
        let (socket, pid) = (record.dir.files_socket(), self.link()?.pid());
        let (namespace, pod) = match self.node.settings.runtime {
            Runtime::Process => (record.plan.as_ref().map(|plan| netns::path(&plan.namespace)), None),
            Runtime::Pods(_) => {
                let pod = self.node.launcher_pod(&self.key.namespace, record.uid);
                let claims = pod.map(|pod| pod.claims).unwrap_or_default();
                let pod = PodFiles { pid, claims, space: self.node.claim_space() };
                (Some(launcher::pod::network_namespace(pid)), Some(pod))
            }
        };
        let origin = Origin { namespace, pod, host_disks, passt, launcher: pid };
        let pass = move || {
            files::discard(&socket)?;
            files::pass(&socket, &launcher::files::open(&request, &origin)?)
        };
        run_blocking("FailedLaunch", move || pass().map_err(sync_error("FailedLaunch"))).await
    }

    async fn remove(&mut self) -> Done {
        self.end_leftovers().await?;
        self.release_network().await?;
        let record = self.known()?;
        let dir = record.dir.clone();
        run_blocking("FailedRemove", move || dir.remove().map_err(sync_error("FailedRemove"))).await?;
        info!("removed");
        self.node.show(&self.key, None);
        *self = Self::new(self.node.clone(), self.key.clone());
        Ok(())
    }

    fn foreign_launcher(&self) -> SyncError {
        let owner = match self.launcher_status() {
            Some(LauncherStatus::Foreign(owner)) => owner,
            _ => "another process".to_owned(),
        };
        SyncError {
            reason: "ForeignLauncher",
            message: format!("the launcher socket belongs to {owner}; that launcher is left alone"),
        }
    }
}

/// What the disks of a VM are made of that is read from the API.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) projected: ProjectedFiles,
    pub(super) pull_secrets: PullSecrets,
    /// They were made before.
    pub(super) is_prepared: bool,
}

fn enter(record: &mut Record, phase: Phase, at: &str) {
    super::status::enter(&mut record.vmi.status, phase, at);
}
