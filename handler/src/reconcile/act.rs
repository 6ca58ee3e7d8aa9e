//! Doing one thing. Each may fail or be cut short; what it has done by then is found done the next time.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::{info, warn};

use super::deadline::{Deadline, Interrupt, Sent};
use super::decide::Action;
use super::machine::{Fate, Machine, Want};
use super::record::{Record, now};
use super::status::{End, Lost, Phase, Trouble, condemn, end, end_of_the_condemned};
use crate::launcher::link::{Link, LinkError, Seen, chain};
use crate::launcher::process::{self, Start};
use crate::network::nft::{Forward, Protocol};
use crate::network::{self, Inside, Plan, netns};
use crate::storage::{self, Places, Prepared, StorageError};

pub(super) type Done = Result<(), Trouble>;

/// Names a failed step for people and programs.
pub(super) fn trouble<E: std::error::Error>(reason: &'static str) -> impl FnOnce(E) -> Trouble {
    move |error| Trouble { reason, message: chain(&error) }
}

fn storage_trouble(error: StorageError) -> Trouble {
    trouble(error.reason())(error)
}

/// Runs something that blocks, beside the runtime.
pub(super) async fn aside<T: Send + 'static>(
    reason: &'static str,
    work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
) -> Result<T, Trouble> {
    let panicked = |error: tokio::task::JoinError| Trouble { reason, message: error.to_string() };
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}

/// Does something that may take long, until what is wanted says that nobody needs it any more: then none.
pub(super) async fn unless<T>(
    wants: &watch::Receiver<Want>,
    is_moot: impl Fn(&Want) -> bool,
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
    /// Takes one step. Whatever a launcher has to answer is cut short by `interrupt`, which is no trouble.
    pub(super) async fn act(&mut self, action: Action, want: &Want, interrupt: &mut Interrupt<'_>) -> Done {
        match action {
            Action::Accept => self.accept(want),
            Action::Start => self.start(interrupt.want).await,
            Action::Launch => self.launch(interrupt).await,
            Action::BeginLeaving => self.begin_leaving(),
            Action::AskShutdown => self.ask_shutdown(interrupt).await,
            Action::Condemn => self.condemn(),
            Action::PlugVolumes => self.plug_volumes(interrupt).await,
            Action::Kill => self.kill().await,
            Action::RecordOutcome => self.record_outcome(),
            Action::RecordLoss => self.record_loss().await,
            Action::Dismiss => self.dismiss(interrupt).await,
            Action::ReleaseNetwork => self.release_network().await,
            Action::Remove => self.remove().await,
            Action::ReportStranger => Err(self.stranger()),
            Action::Wait | Action::Finish => Ok(()),
        }
    }

    fn accept(&mut self, want: &Want) -> Done {
        let Some((manifest, origin)) = want.manifest() else { return Ok(()) };
        let mut record = Record::new(&self.node.state, manifest, origin, &now());
        Phase::Pending.as_str().clone_into(&mut record.vmi.status.phase);
        if let Err(error) = record.dir.create().and_then(|()| record.write()) {
            // The next try has another UID; on a full disk nothing of this one may stay.
            let _ = record.dir.remove();
            return Err(trouble("FailedCreate")(error));
        }
        info!(uid = %record.uid, ?origin, "accepted");
        for notice in &manifest.notices {
            warn!("{notice}");
        }
        self.node.show(&self.key, Some(record.vmi.clone()));
        *self = Self { record: Some(record), ..Self::new(self.node.clone(), self.key.clone()) };
        Ok(())
    }

    pub(super) fn known(&self) -> Result<Record, Trouble> {
        let absent = || Trouble { reason: "FailedCreate", message: "no VMI is recorded".to_owned() };
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
                record.write().map_err(trouble("FailedStatusWrite"))?;
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
    async fn find_claims(&mut self, wants: &watch::Receiver<Want>) -> Result<Option<()>, Trouble> {
        // What appears from here on is news.
        self.claims.mark_unchanged();
        let record = self.known()?;
        let vm = record.vm().map_err(trouble("FailedSpec"))?;
        let claims = self.node.claims();
        let find = storage::find_claims(&vm, &claims, &self.node.jobs);
        unless(wants, |want| want.replaces(&record), find).await.transpose().map_err(storage_trouble)
    }

    /// Claims, network, disks, process: in this order, so that a launcher exists only where its machine can.
    async fn start(&mut self, wants: &watch::Receiver<Want>) -> Done {
        if self.find_claims(wants).await?.is_none() {
            return Ok(());
        }
        self.enter(Phase::Scheduling)?;
        let record = self.known()?;
        record.dir.create().map_err(trouble("FailedCreate"))?;
        let vm = record.vm().map_err(trouble("FailedSpec"))?;
        self.ensure_network(&vm).await?;
        let is_moot = |want: &Want| want.replaces(&record);
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
            process::spawn(&start).map(drop).map_err(|error| Trouble {
                reason: "FailedLauncher",
                message: format!("cannot start {}: {error}", settings.launcher.display()),
            })
        })
        .await?;
        self.find_launcher().map_err(trouble("FailedLauncher"))?;
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
                let plan =
                    aside("FailedNetwork", move || node.plan_network(uid).map_err(trouble("FailedNetwork")))
                        .await?;
                record.plan = Some(plan.clone());
                if let Err(error) = record.write_plan() {
                    self.node.release_wire(&plan);
                    return Err(trouble("FailedNetwork")(error));
                }
                self.record = Some(record);
                plan
            }
        };
        let node = self.node.clone();
        aside("FailedNetwork", move || {
            node.prepare_host()
                .and_then(|()| network::ensure(&plan, &inside))
                .map_err(trouble("FailedNetwork"))
        })
        .await
    }

    async fn prepare_storage(&self, vm: &vireo_api::spec::Vm) -> Result<Prepared, Trouble> {
        let places = self.places(vm)?;
        storage::prepare(vm, &places, &self.node.jobs).await.map_err(storage_trouble)
    }

    pub(super) fn places(&self, vm: &vireo_api::spec::Vm) -> Result<Places, Trouble> {
        let record = self.known()?;
        Ok(Places {
            vmi: record.dir.path().to_owned(),
            kept: self.node.state.kept(vm.identity().namespace(), vm.identity().name()),
            images: self.node.images.clone(),
            claims: self.node.claims(),
            allowed: self.node.settings.allowed.clone(),
        })
    }

    pub(super) fn link(&self) -> Result<&Link, Trouble> {
        match &self.launcher {
            Fate::Followed(link) => Ok(link),
            Fate::Unstarted | Fate::Gone => {
                Err(Trouble { reason: "FailedLauncher", message: "there is no launcher".to_owned() })
            }
        }
    }

    async fn launch(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        let record = self.known()?;
        let vm = record.vm().map_err(trouble("FailedSpec"))?;
        let is_moot = |want: &Want| want.removes(&record);
        let prepared = unless(interrupt.want, is_moot, self.prepare_storage(&vm)).await.transpose();
        let prepared = match prepared {
            Ok(Some(prepared)) => prepared,
            Ok(None) => return Ok(()),
            Err(trouble) => {
                // What the launcher waits for is not its own doing.
                self.deadline = None;
                return Err(trouble);
            }
        };
        let request = self.request(&record, &vm, &prepared);
        match interrupt.or(self.link()?.launch(request)).await {
            None => {}
            // Refused or not: how it stands is what the launcher's state says.
            Some(Ok(_) | Err(LinkError::Refused(_))) => self.launched = true,
            Some(Err(error)) => return Err(trouble("FailedLaunch")(error)),
        }
        Ok(())
    }

    fn begin_leaving(&mut self) -> Done {
        let grace = self.known()?.grace();
        let at = now();
        self.change(|record| {
            record.vmi.metadata.deletion_timestamp = Some(at);
            record.vmi.metadata.deletion_grace_period_seconds = i64::try_from(grace).ok();
        })?;
        info!(grace_s = grace, "its manifest is gone: stopping");
        Ok(())
    }

    /// Its livenessProbe fails: the guest is asked to shut down, as by a deletion, and its VMI stays.
    fn condemn(&mut self) -> Done {
        let grace = self.known()?.grace();
        let cause = self.health.as_ref().map(|health| health.told().liveness.cause).unwrap_or_default();
        let at = now();
        self.change(|record| condemn(&mut record.vmi.status, &cause, &at))?;
        warn!(cause, grace_s = grace, "the livenessProbe failed: ending the guest");
        Ok(())
    }

    /// Gives the guest another grace period. One that was asked already is asked again: the launcher follows the shorter
    /// one.
    pub(super) fn shorten_grace(&mut self, grace: u64) -> Done {
        let Some(record) = self.record.as_ref().filter(|record| record.grace() != grace) else {
            return Ok(());
        };
        let shorter = grace < record.grace();
        self.change(|record| {
            let seconds = i64::try_from(grace).ok();
            record.vmi.spec.termination_grace_period_seconds = seconds;
            if record.leaving() {
                record.vmi.metadata.deletion_grace_period_seconds = seconds;
            }
        })?;
        if let Some(deadline) = self.deadline.as_mut().filter(|_| shorter) {
            deadline.shorten(grace);
        }
        Ok(())
    }

    fn sent(&mut self, what: Sent) {
        if let Some(deadline) = &mut self.deadline {
            deadline.sent = Some(what);
        }
    }

    async fn ask_shutdown(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        let grace = self.known()?.grace();
        let Some(answer) = interrupt.or(self.link()?.shutdown(grace)).await else { return Ok(()) };
        answer.map_err(trouble("FailedShutdown"))?;
        info!(grace_s = grace, "asked the guest to shut down");
        self.sent(Sent::Shutdown);
        Ok(())
    }

    async fn kill(&mut self) -> Done {
        let process = Arc::clone(self.link()?.process());
        let (pid, cgroup) = (process.pid(), self.node.cgroups.as_ref().zip(self.record.as_ref()));
        let cgroup = cgroup.and_then(|(cgroups, record)| cgroups.of(record.uid));
        self.killed = self.deadline.map(|deadline| deadline.awaited).or(self.killed);
        warn!(pid, awaited = ?self.killed, "killing the launcher and all its processes: its time is up");
        let again = self.deadline.as_mut().is_some_and(Deadline::kill);
        aside("FailedKill", move || process.kill_all(cgroup.as_deref()).map_err(trouble("FailedKill")))
            .await?;
        match again {
            false => Ok(()),
            true => {
                let message = format!(
                    "the launcher (process {pid}) does not end though it was killed: it may wait for the node's storage"
                );
                Err(Trouble { reason: "FailedKill", message })
            }
        }
    }

    fn record_outcome(&mut self) -> Done {
        let outcome = self.state().and_then(|state| state.outcome).unwrap_or_default();
        let record = self.known()?;
        self.finish(&end(&outcome, record.grace(), record.leaving()))
    }

    async fn record_loss(&mut self) -> Done {
        self.end_leftovers().await?;
        let record = self.known()?;
        let lost = Lost {
            started: record.started(),
            leaving: record.leaving(),
            killed: self.killed,
            ending: match self.seen() {
                Some(Seen::Gone(ending)) => Some(ending),
                _ => None,
            },
            grace: record.grace(),
            with_node: record.dir.node_shutdown().exists(),
        };
        self.finish(&lost.end(&record.dir.launcher_log()))
    }

    fn finish(&mut self, end: &End) -> Done {
        let of_the_condemned = self.record.as_ref().and_then(Record::condemned).map(end_of_the_condemned);
        let end = of_the_condemned.as_ref().unwrap_or(end);
        let at = now();
        let state = self.state();
        let node = self.node.settings.node_name.clone();
        self.change(|record| {
            // What the launcher said last (which hypervisor, and why) is kept with the end.
            let vm = record.vm().ok();
            let facts = super::status::Facts {
                phase: end.phase,
                vm: vm.as_ref(),
                state: state.as_ref(),
                readiness: None,
                address: None,
                trouble: None,
                manifest_changed: false,
                node: &node,
                now: &at,
            };
            record.vmi.status = super::status::next(&record.vmi.status, &facts);
            end.reason.clone_into(&mut record.vmi.status.reason);
            super::status::explain(&mut record.vmi.status, end, &at);
        })?;
        if end.phase == Phase::Failed {
            warn!(reason = end.reason, "{}", end.message);
        }
        Ok(())
    }

    async fn dismiss(&mut self, interrupt: &mut Interrupt<'_>) -> Done {
        match interrupt.or(self.link()?.dismiss()).await {
            None => {}
            Some(Ok(())) => self.sent(Sent::Dismissal),
            // A launch that was cut short has reached it all the same: its state is on the way.
            Some(Err(LinkError::Refused(_))) if !self.launched => self.launched = true,
            Some(Err(error)) => return Err(trouble("FailedDismiss")(error)),
        }
        Ok(())
    }

    async fn release_network(&mut self) -> Done {
        let mut record = self.known()?;
        let Some(plan) = record.plan.take() else { return Ok(()) };
        self.end_leftovers().await?;
        remove_network(plan.clone()).await?;
        record.write_plan().map_err(trouble("FailedNetwork"))?;
        self.node.release_wire(&plan);
        self.record = Some(record);
        Ok(())
    }

    /// Removes the cgroup of a launcher that is gone, with whatever still runs in it: what the VMI has is given to others
    /// only after that.
    async fn end_leftovers(&self) -> Done {
        let uid = self.known()?.uid;
        let node = Arc::clone(&self.node);
        aside("FailedKill", move || {
            let removed = node.cgroups.as_ref().map_or(Ok(()), |cgroups| cgroups.remove(uid));
            removed.map_err(trouble("FailedKill"))
        })
        .await
    }

    async fn remove(&mut self) -> Done {
        self.end_leftovers().await?;
        self.release_network().await?;
        let record = self.known()?;
        let dir = record.dir.clone();
        aside("FailedRemove", move || dir.remove().map_err(trouble("FailedRemove"))).await?;
        info!("removed");
        self.node.show(&self.key, None);
        *self = Self::new(self.node.clone(), self.key.clone());
        Ok(())
    }

    fn stranger(&self) -> Trouble {
        let who = match self.seen() {
            Some(Seen::Foreign(who)) => who,
            _ => "somebody else".to_owned(),
        };
        Trouble {
            reason: "ForeignLauncher",
            message: format!("the launcher's socket is served for {who}; it is left alone"),
        }
    }
}

/// Removes a network; also used for what a dead VMI left behind.
pub(super) async fn remove_network(plan: Plan) -> Done {
    aside("FailedNetwork", move || network::remove(&plan).map_err(trouble("FailedNetwork"))).await
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
