//! Doing one thing. Each may fail or be cut short; what it has done by then is found done the next time.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use super::deadline::Interrupt;
use super::decide::Action;
use super::desired::Desired;
use super::machine::{LauncherState, Machine};
use super::record::{Record, now};
use super::status::{Phase, SyncError};
use crate::launcher::link::{Link, LinkError, Seen, chain};
use crate::launcher::process::{self, Start};
use crate::network::nft::{Forward, Protocol};
use crate::network::{self, Inside, Plan, netns};
use crate::storage::{self, Places, Prepared, StorageError};

pub(super) type Done = Result<(), SyncError>;

/// Names a failed step for people and programs.
pub(super) fn sync_error<E: std::error::Error>(reason: &'static str) -> impl FnOnce(E) -> SyncError {
    move |error| SyncError { reason, message: chain(&error) }
}

fn storage_trouble(error: StorageError) -> SyncError {
    sync_error(error.reason())(error)
}

/// Runs something that blocks, beside the runtime.
pub(super) async fn aside<T: Send + 'static>(
    reason: &'static str,
    work: impl FnOnce() -> Result<T, SyncError> + Send + 'static,
) -> Result<T, SyncError> {
    let panicked = |error: tokio::task::JoinError| SyncError { reason, message: error.to_string() };
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}

/// Does something that may take long, until what is wanted says that nobody needs it any more: then none.
pub(super) async fn unless<T>(
    wants: &watch::Receiver<Desired>,
    is_moot: impl Fn(&Desired) -> bool,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut wants = wants.clone();
    let moot = async {
        if wants.wait_for(is_moot).await.is_err() {
            // The handler stops, and this with it.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = moot => None,
        done = work => Some(done),
    }
}

impl Machine {
    /// Takes one step. Whatever a launcher has to answer is cut short by `interrupt`, which is no sync_error.
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
            Action::BeginLeaving => self.begin_leaving(),
            Action::AskShutdown => self.ask_shutdown(interrupt).await,
            Action::Condemn => self.mark_unhealthy(),
            Action::Stop => self.stop(),
            Action::PlugVolumes => self.plug_volumes(interrupt).await,
            Action::Kill => self.kill().await,
            Action::RecordOutcome => self.record_outcome().await,
            Action::RecordLoss => self.record_loss().await,
            Action::Dismiss => self.dismiss(interrupt).await,
            Action::ReleaseNetwork => self.release_network().await,
            Action::Remove => self.remove().await,
            Action::ReportStranger => Err(self.stranger()),
            Action::Wait | Action::Finish => Ok(()),
        }
    }

    fn accept(&mut self, desired: &Desired) -> Done {
        let Some((manifest, origin)) = desired.manifest() else { return Ok(()) };
        let mut record = Record::new(&self.node.state, manifest, origin, &now());
        Phase::Pending.as_str().clone_into(&mut record.vmi.status.phase);
        if let Err(error) = record.dir.create().and_then(|()| record.write()) {
            // The next try has another UID; on a full disk nothing of this one may stay.
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

    /// Changes the record, on disk first. The end of a VMI that is being deleted does not wait for a disk that is full:
    /// nothing of it is needed once it is gone, and that may be what makes room.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Record)) -> Done {
        let mut record = self.known()?;
        change(&mut record);
        match record.leaving() {
            true => self.save(&record),
            false => {
                record.write().map_err(sync_error("FailedStatusWrite"))?;
                self.unsaved = false;
            }
        }
        let (before, after) = (self.record.as_ref().map(Record::phase), record.phase());
        if before != Some(after) {
            info!(to = after.as_str(), reason = record.vmi.status.reason, "phase");
        }
        self.node.show(&self.key, Some(record.vmi.clone()));
        self.record = Some(record);
        Ok(())
    }

    fn enter(&mut self, phase: Phase) -> Done {
        if self.record.as_ref().is_some_and(|record| record.phase() == phase) {
            return Ok(());
        }
        let at = now();
        self.change(|record| enter(record, phase, &at))
    }

    /// A machine is pending until all its claims are there. None when it is no longer wanted as it is.
    async fn find_claims(&mut self, wants: &watch::Receiver<Desired>) -> Result<Option<()>, SyncError> {
        // What appears from here on is news.
        self.claims.mark_unchanged();
        let record = self.known()?;
        let vm = record.vm().map_err(sync_error("FailedSpec"))?;
        let claims = self.node.claims();
        let find = storage::find_claims(&vm, &claims, &self.node.jobs);
        unless(wants, |desired| desired.replaces(&record), find).await.transpose().map_err(storage_trouble)
    }

    /// Claims, network, disks, process: in this order, so that a launcher exists only where its machine can.
    async fn start(&mut self, wants: &watch::Receiver<Desired>) -> Done {
        if self.find_claims(wants).await?.is_none() {
            return Ok(());
        }
        self.enter(Phase::Scheduling)?;
        let record = self.known()?;
        record.dir.create().map_err(sync_error("FailedCreate"))?;
        let vm = record.vm().map_err(sync_error("FailedSpec"))?;
        self.ensure_network(&vm).await?;
        let is_moot = |desired: &Desired| desired.replaces(&record);
        if unless(wants, is_moot, self.prepare_storage(&vm)).await.transpose()?.is_none() {
            return Ok(());
        }
        let record = self.known()?;
        let cgroup = self.cgroup(&record);
        let settings = self.node.settings.clone();
        aside("FailedLauncher", move || {
            // A socket of a launcher that never got a machine would only be in the way.
            let socket = record.dir.launcher_socket();
            let _ = std::fs::remove_file(&socket);
            let mut arguments: Vec<PathBuf> = vec!["--socket".into(), socket];
            arguments.extend(settings.qemu.iter().flat_map(|qemu| ["--qemu".into(), qemu.clone()]));
            let namespace = record.plan.as_ref().map(|plan| netns::path(&plan.namespace));
            let start = Start {
                program: &settings.launcher,
                arguments,
                log: &record.dir.launcher_log(),
                stamp: &record.dir.launcher_stamp(),
                namespace: namespace.as_deref(),
                cgroup: cgroup.as_deref(),
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

    fn cgroup(&self, record: &Record) -> Option<PathBuf> {
        let made = self.node.cgroups.as_ref()?.create(record.uid);
        made.map_err(|error| warn!(error = chain(&error), "the launcher gets no cgroup of its own")).ok()
    }

    async fn ensure_network(&mut self, vm: &vireo_api::spec::Vm) -> Done {
        let Some(inside) = inside(vm) else { return Ok(()) };
        let mut record = self.known()?;
        let node = self.node.clone();
        let uid = record.uid;
        let plan = match record.plan.clone() {
            Some(plan) => plan,
            None => {
                let plan = aside("FailedNetwork", move || {
                    node.plan_network(uid).map_err(sync_error("FailedNetwork"))
                })
                .await?;
                record.plan = Some(plan.clone());
                if let Err(error) = record.write_plan() {
                    self.node.release_wire(&plan);
                    return Err(sync_error("FailedNetwork")(error));
                }
                self.record = Some(record);
                plan
            }
        };
        let node = self.node.clone();
        aside("FailedNetwork", move || {
            node.prepare_host()
                .and_then(|()| network::ensure(&plan, &inside))
                .map_err(sync_error("FailedNetwork"))
        })
        .await
    }

    async fn prepare_storage(&self, vm: &vireo_api::spec::Vm) -> Result<Prepared, SyncError> {
        let places = self.places(vm)?;
        storage::prepare(vm, &places, &self.node.jobs).await.map_err(storage_trouble)
    }

    pub(super) fn places(&self, vm: &vireo_api::spec::Vm) -> Result<Places, SyncError> {
        let record = self.known()?;
        Ok(Places {
            vmi: record.dir.path().to_owned(),
            kept: self.node.state.kept(vm.identity().namespace(), vm.identity().name()),
            images: self.node.images.clone(),
            claims: self.node.claims(),
            allowed: self.node.settings.allowed.clone(),
        })
    }

    pub(super) fn link(&self) -> Result<&Link, SyncError> {
        match &self.launcher {
            LauncherState::Followed(link) => Ok(link),
            LauncherState::Unstarted | LauncherState::Gone => {
                Err(SyncError { reason: "FailedLauncher", message: "there is no launcher".to_owned() })
            }
        }
    }

    async fn launch(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        let record = self.known()?;
        let vm = record.vm().map_err(sync_error("FailedSpec"))?;
        let is_moot = |desired: &Desired| desired.removes(&record);
        let prepared = unless(interrupt.desired, is_moot, self.prepare_storage(&vm)).await.transpose();
        let prepared = match prepared {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return Ok(()),
            Err(sync_error) => {
                // What the launcher waits for is not its own doing.
                self.deadline = None;
                return Err(sync_error);
            }
        };
        let request = self.request(&record, &vm, &prepared);
        match interrupt.or(self.link()?.launch(request)).await {
            None => {}
            // Refused or not: how it stands is what the launcher's state says.
            Some(Ok(_) | Err(LinkError::Refused(_))) => self.launched = true,
            Some(Err(error)) => return Err(sync_error("FailedLaunch")(error)),
        }
        Ok(())
    }

    async fn release_network(&mut self) -> Done {
        let mut record = self.known()?;
        let Some(plan) = record.plan.take() else { return Ok(()) };
        self.end_leftovers().await?;
        remove_network(plan.clone()).await?;
        record.write_plan().map_err(sync_error("FailedNetwork"))?;
        self.node.release_wire(&plan);
        self.record = Some(record);
        Ok(())
    }

    /// Removes the cgroup of a launcher that is gone, with whatever still runs in it: what the VMI has is given to others
    /// only after that.
    pub(super) async fn end_leftovers(&self) -> Done {
        let uid = self.known()?.uid;
        let node = Arc::clone(&self.node);
        aside("FailedKill", move || {
            let removed = node.cgroups.as_ref().map_or(Ok(()), |cgroups| cgroups.remove(uid));
            removed.map_err(sync_error("FailedKill"))
        })
        .await
    }

    async fn remove(&mut self) -> Done {
        self.end_leftovers().await?;
        self.release_network().await?;
        let record = self.known()?;
        let dir = record.dir.clone();
        aside("FailedRemove", move || dir.remove().map_err(sync_error("FailedRemove"))).await?;
        info!("removed");
        self.node.show(&self.key, None);
        *self = Self::new(self.node.clone(), self.key.clone());
        Ok(())
    }

    fn stranger(&self) -> SyncError {
        let who = match self.seen() {
            Some(Seen::Foreign(who)) => who,
            _ => "somebody else".to_owned(),
        };
        SyncError {
            reason: "ForeignLauncher",
            message: format!("the launcher's socket is served for {who}; it is left alone"),
        }
    }
}

/// Removes a network; also used for what a dead VMI left behind.
pub(super) async fn remove_network(plan: Plan) -> Done {
    aside("FailedNetwork", move || network::remove(&plan).map_err(sync_error("FailedNetwork"))).await
}

fn enter(record: &mut Record, phase: Phase, at: &str) {
    super::status::enter(&mut record.vmi.status, phase, at);
}

/// The guest's side of the network that a spec asks for.
pub(super) fn inside(vm: &vireo_api::spec::Vm) -> Option<Inside> {
    use vireo_api::spec::Binding;
    let Binding::Masquerade { network, ports } = vm.interfaces().first()?.binding();
    let forward = |port: &vireo_api::spec::Port| Forward {
        protocol: match port.protocol() {
            vireo_api::spec::Protocol::Tcp => Protocol::Tcp,
            vireo_api::spec::Protocol::Udp => Protocol::Udp,
        },
        port: port.port(),
    };
    let net = ipnet::Ipv4Net::new(network.address(), network.prefix()).ok()?;
    Some(Inside { net, forwards: ports.iter().map(forward).collect() })
}
