//! Doing one thing. Each may fail or be cut short; what it has done by then is found done the next time.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::decide::{Action, Launcher};
use super::machine::{FAREWELL, Fate, MARGIN, Machine, Want};
use super::record::{Record, now};
use super::status::{End, Phase, Trouble, condemn, end, end_of_the_condemned};
use crate::launcher::link::{Link, LinkError, Seen, chain, summary};
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

impl Machine {
    /// Takes one step.
    pub(super) async fn act(&mut self, action: Action, want: &Want) -> Done {
        match action {
            Action::Accept => self.accept(want),
            Action::Start => self.start().await,
            Action::Launch => self.launch().await,
            Action::BeginLeaving => self.begin_leaving(),
            Action::AskShutdown => self.ask_shutdown().await,
            Action::Condemn => self.condemn(),
            Action::PlugVolumes => self.plug_volumes().await,
            Action::Kill => self.kill(),
            Action::RecordOutcome => self.record_outcome(),
            Action::RecordLoss => self.record_loss(),
            Action::Dismiss => self.dismiss().await,
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

    /// Changes the record, on disk first.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Record)) -> Done {
        let mut record = self.known()?;
        change(&mut record);
        record.write().map_err(trouble("FailedStatusWrite"))?;
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

    /// A machine is pending until all its claims are there.
    async fn find_claims(&mut self) -> Done {
        // What appears from here on is news.
        self.claims.mark_unchanged();
        let vm = self.known()?.vm().map_err(trouble("FailedSpec"))?;
        let claims = self.node.claims();
        aside("FailedStorage", move || storage::find_claims(&vm, &claims).map_err(storage_trouble)).await
    }

    /// Claims, network, disks, process: in this order, so that a launcher exists only where its machine can.
    async fn start(&mut self) -> Done {
        self.find_claims().await?;
        self.enter(Phase::Scheduling)?;
        let record = self.known()?;
        record.dir.create().map_err(trouble("FailedCreate"))?;
        let vm = record.vm().map_err(trouble("FailedSpec"))?;
        self.ensure_network(&vm).await?;
        self.prepare_storage(&vm).await?;
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
        let vm = vm.clone();
        aside("FailedStorage", move || storage::prepare(&vm, &places).map_err(storage_trouble)).await
    }

    pub(super) fn places(&self, vm: &vireo_api::spec::Vm) -> Result<Places, Trouble> {
        let record = self.known()?;
        Ok(Places {
            vmi: record.dir.path().to_owned(),
            kept: self.node.state.kept(vm.identity().namespace(), vm.identity().name()),
            images: self.node.state.images(),
            claims: self.node.claims(),
            host_disks: self.node.settings.host_disks.clone(),
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

    async fn launch(&mut self) -> Done {
        let record = self.known()?;
        let vm = record.vm().map_err(trouble("FailedSpec"))?;
        let prepared = self.prepare_storage(&vm).await?;
        let request = self.request(&record, &vm, &prepared);
        match self.link()?.launch(request).await {
            // Refused or not: how it stands is what the launcher's state says.
            Ok(_) | Err(LinkError::Refused(_)) => self.launched = true,
            Err(error) => return Err(trouble("FailedLaunch")(error)),
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
        self.be_patient(grace);
        info!(grace_s = grace, "its manifest is gone: stopping");
        Ok(())
    }

    /// Lets a launcher that is to end be silent for so long.
    pub(super) fn be_patient(&mut self, grace: u64) {
        self.patience = Some(Instant::now() + Duration::from_secs(grace) + MARGIN);
    }

    /// Its livenessProbe fails: the guest is asked to shut down, as by a deletion, and its VMI stays.
    fn condemn(&mut self) -> Done {
        let grace = self.known()?.grace();
        let cause = self.health.as_ref().map(|health| health.told().liveness.cause).unwrap_or_default();
        let at = now();
        self.change(|record| condemn(&mut record.vmi.status, &cause, &at))?;
        self.be_patient(grace);
        warn!(cause, grace_s = grace, "the livenessProbe failed: ending the guest");
        Ok(())
    }

    /// Gives the guest another time to shut down. One that was asked already is asked again: the launcher heeds the
    /// shorter time.
    pub(super) fn hurry(&mut self, grace: u64) -> Done {
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
        if shorter {
            self.asked = self.asked.take().filter(|(stage, _)| *stage != Launcher::Alive);
            self.patience = self.patience.map(|_| Instant::now() + Duration::from_secs(grace) + MARGIN);
        }
        Ok(())
    }

    async fn ask_shutdown(&mut self) -> Done {
        let grace = self.known()?.grace();
        self.link()?.shutdown(grace).await.map_err(trouble("FailedShutdown"))?;
        info!(grace_s = grace, "asked the guest to shut down");
        self.asked = Some((Launcher::Alive, Instant::now() + Duration::from_secs(grace) + MARGIN));
        Ok(())
    }

    fn kill(&mut self) -> Done {
        let link = self.link()?;
        warn!(pid = link.pid(), "ending the launcher process");
        link.kill_process().map_err(trouble("FailedKill"))
    }

    fn record_outcome(&mut self) -> Done {
        let outcome = self.state().and_then(|state| state.outcome).unwrap_or_default();
        let grace = self.known()?.grace();
        self.finish(&end(&outcome, grace))
    }

    fn record_loss(&mut self) -> Done {
        let how = match self.seen() {
            Some(Seen::Gone(ending)) => format!("the launcher {ending}"),
            _ => "the launcher is gone".to_owned(),
        };
        let dir = &self.known()?.dir;
        if dir.node_shutdown().exists() {
            let message = "its guest was shut down with the machine that it ran on".to_owned();
            return self.finish(&End { phase: Phase::Failed, reason: "NodeShutdown", message });
        }
        let message =
            format!("{how} without saying how its guest ended; see {}", dir.launcher_log().display());
        self.finish(&End { phase: Phase::Failed, reason: "LauncherLost", message })
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

    async fn dismiss(&mut self) -> Done {
        let stage = summary(self.seen().as_ref());
        self.link()?.dismiss().await.map_err(trouble("FailedDismiss"))?;
        self.asked = Some((stage, Instant::now() + FAREWELL));
        Ok(())
    }

    async fn release_network(&mut self) -> Done {
        let mut record = self.known()?;
        let Some(plan) = record.plan.take() else { return Ok(()) };
        remove_network(plan.clone()).await?;
        record.write_plan().map_err(trouble("FailedNetwork"))?;
        self.node.release_wire(&plan);
        self.record = Some(record);
        self.remove_cgroup();
        Ok(())
    }

    fn remove_cgroup(&self) {
        let Some((cgroups, record)) = self.node.cgroups.as_ref().zip(self.record.as_ref()) else { return };
        if let Err(error) = cgroups.remove(record.uid) {
            warn!(%error, "the launcher's cgroup stays");
        }
    }

    async fn remove(&mut self) -> Done {
        self.release_network().await?;
        self.remove_cgroup();
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
