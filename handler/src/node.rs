//! What all VMIs of a node share: settings, the address pool, and the picture that clients are shown.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tracing::{info, warn};
use uuid::Uuid;
use vireo_api::v1::VirtualMachineInstance;

use crate::jobs::Jobs;
use crate::launcher::cgroup::Cgroups;
use crate::launcher::link::chain;
use crate::manifests::{Key, Refusal};
use crate::metrics::Metrics;
use crate::network::{self, NetworkError, Plan, address};
use crate::settings::Settings;
use crate::state::{StateDir, StateError, write_json};
use crate::storage::{Claims, Images};

/// One node.
#[derive(Debug)]
pub struct Node {
    /// What it was told.
    pub settings: Settings,
    /// Its files.
    pub state: StateDir,
    /// Where launchers are accounted; absent where the handler may not.
    pub cgroups: Option<Cgroups>,
    /// What is measured.
    pub metrics: Metrics,
    /// What comes out of images.
    pub images: Images,
    /// Who waits for disks and files.
    pub jobs: Jobs,
    picture: Mutex<Picture>,
    wires: Mutex<BTreeSet<Ipv4Addr>>,
    host: Once,
    changes: tokio::sync::watch::Sender<u64>,
    storage: Claims,
    claims: tokio::sync::watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Picture {
    vmis: BTreeMap<Key, Arc<VirtualMachineInstance>>,
    refusals: Vec<Refusal>,
}

/// Nothing is left half-changed by a panic in one of the short sections below.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// A node without VMIs.
    pub fn new(settings: Settings) -> Self {
        let state = StateDir::at(&settings.state_dir);
        let cgroups = match Cgroups::find() {
            Ok(cgroups) => Some(cgroups),
            Err(error) => {
                info!(%error, "launchers share the handler's cgroup");
                None
            }
        };
        Self {
            storage: Claims::below(settings.storage_dir.clone()),
            images: Images::new(state.images(), settings.allowed.clone()),
            jobs: Jobs::default(),
            settings,
            state,
            cgroups,
            metrics: Metrics::default(),
            picture: Mutex::default(),
            wires: Mutex::default(),
            host: Once::new(),
            changes: tokio::sync::watch::Sender::new(0),
            claims: tokio::sync::watch::Sender::new(0),
        }
    }

    /// For tests: one whose files are in a directory.
    #[cfg(test)]
    pub(crate) fn of_a_test(dir: &std::path::Path) -> Arc<Self> {
        Arc::new(Self::new(Settings {
            state_dir: dir.to_owned(),
            hypervisor: vireo_api::spec::HypervisorChoice::Auto,
            vm_cidr: "10.201.0.0/16".parse().unwrap(),
            launcher: "virt-launcher".into(),
            qemu: None,
            storage_dir: "/nowhere".into(),
            allowed: crate::storage::AllowedPaths::any(),
            node_name: "node1".to_owned(),
        }))
    }

    /// Every VMI, by name.
    pub fn vmis(&self) -> Vec<Arc<VirtualMachineInstance>> {
        lock(&self.picture).vmis.values().cloned().collect()
    }

    /// One VMI.
    pub fn vmi(&self, key: &Key) -> Option<Arc<VirtualMachineInstance>> {
        lock(&self.picture).vmis.get(key).cloned()
    }

    /// Shows a VMI, or nothing more of it.
    pub fn show(&self, key: &Key, vmi: Option<VirtualMachineInstance>) {
        self.metrics.see(key, vmi.as_ref());
        let mut picture = lock(&self.picture);
        match vmi {
            Some(vmi) => picture.vmis.insert(key.clone(), Arc::new(vmi)),
            None => picture.vmis.remove(key),
        };
        drop(picture);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Wakes whenever a VMI is shown otherwise than before.
    pub fn subscribe(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Where persistent volume claims are.
    pub fn claims(&self) -> Claims {
        self.storage.clone()
    }

    /// Tells those that wait for a claim that there is another one.
    pub fn notify_claims(&self) {
        self.claims.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Wakes whenever there is another claim.
    pub fn subscribe_claims(&self) -> tokio::sync::watch::Receiver<u64> {
        self.claims.subscribe()
    }

    /// What is wrong with the manifests.
    pub fn refusals(&self) -> Vec<Refusal> {
        lock(&self.picture).refusals.clone()
    }

    /// Tells what is wrong with the manifests: to the log what is new of it, to `virt-handler status` all of it.
    pub fn refuse(&self, refusals: Vec<Refusal>) -> Result<(), StateError> {
        let before = self.refusals();
        for refusal in refusals.iter().filter(|refusal| !before.contains(refusal)) {
            let Refusal { file, document, namespace, name, problems } = refusal;
            for problem in problems {
                warn!(file, document, namespace, name, "manifest refused: {problem}");
            }
        }
        for mended in before.iter().filter(|old| !refusals.iter().any(|new| new.file == old.file)) {
            info!(file = mended.file, "manifest is no longer refused");
        }
        write_json(&self.state.refusals(), &refusals)?;
        lock(&self.picture).refusals = refusals;
        Ok(())
    }

    /// Counts a wire that exists as used.
    pub fn adopt_wire(&self, plan: &Plan) {
        lock(&self.wires).extend([plan.wire().host(), plan.wire().vm()]);
    }

    /// Chooses the network of a new VM. Blocks.
    ///
    /// # Errors
    /// When the handler may not make networks, or no address is left.
    pub fn plan_network(&self, uid: Uuid) -> Result<Plan, NetworkError> {
        network::permitted()?;
        let (host, mtu) = network::host_facts()?;
        let mut used = lock(&self.wires);
        let all = used.union(&host).copied().collect();
        let wire = address::allocate(self.settings.vm_cidr, &all)?;
        used.extend([wire.host(), wire.vm()]);
        Ok(Plan::new(uid, wire, mtu))
    }

    /// Gives a wire back.
    pub fn release_wire(&self, plan: &Plan) {
        let mut used = lock(&self.wires);
        used.remove(&plan.wire().host());
        used.remove(&plan.wire().vm());
    }

    /// Prepares the host for networks, once, and says what guests will miss. Blocks.
    ///
    /// # Errors
    /// When the host cannot be prepared.
    pub fn prepare_host(&self) -> Result<(), NetworkError> {
        network::prepare_host(self.settings.vm_cidr)?;
        self.host.call_once(|| {
            let resolver = network::dns::of_host();
            if resolver.servers.is_empty() {
                let unreachable =
                    resolver.unreachable.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                warn!(
                    unreachable,
                    "guests get no name server: /etc/resolv.conf names none that a guest can reach over IPv4"
                );
            }
        });
        Ok(())
    }

    /// Logs an error with its causes.
    pub fn log_error(what: &str, error: &dyn std::error::Error) {
        warn!(error = chain(error), "{what}");
    }
}
