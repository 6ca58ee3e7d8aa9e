//! What all VMIs of a node share: settings, the address pool, and the published VMIs.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Duration;

use tracing::{info, warn};
use uuid::Uuid;
use vireo_api::v1::{SMBiosConfiguration, VirtualMachineInstance};
use vireo_client::Kind;
use vireo_client::events::{EventRecorder, Reason, Regarding};

use crate::cluster::Projector;
use crate::http::UsbSlots;
use crate::jobs::Jobs;
use crate::launcher::cgroup::{Cgroups, IoMax};
use crate::launcher::cpus::{self, TooFewCpus};
use crate::launcher::link::chain;
use crate::launcher::pod::{ClaimDisks, ClaimSpace};
use crate::live_settings::LiveSettings;
use crate::manifests::{Key, Rejection};
use crate::metrics::Metrics;
use crate::network::{self, NetworkError, Plan, address};
use crate::settings::{Isolation, LauncherCgroups, Runtime, Settings};
use crate::state::{StateDir, StateError, VmiDir, read_json, write_json};
use crate::storage::{Claims, Images};

/// How long a VMI waits for the settings of its cluster.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(10);

/// One node.
#[derive(Debug)]
pub struct Node {
    /// The settings of the command line.
    pub settings: Settings,
    /// Its files.
    pub state: StateDir,
    /// The cgroups of the launchers; `None` when the handler may not create cgroups.
    pub cgroups: Option<Cgroups>,
    /// Metrics.
    pub metrics: Metrics,
    /// The image store.
    pub images: Images,
    /// The pools for blocking operations.
    pub jobs: Jobs,
    /// The slots for USB devices of clients that are in use.
    pub(crate) usb_slots: UsbSlots,
    published: Mutex<Published>,
    wires: Mutex<BTreeSet<IpAddr>>,
    /// Held while a VM gets its user.
    users: Mutex<()>,
    host: Once,
    changes: tokio::sync::watch::Sender<u64>,
    storage: Claims,
    claims: tokio::sync::watch::Sender<u64>,
    launcher_pods: Mutex<BTreeMap<Owner, LauncherPod>>,
    attachments: Mutex<BTreeMap<Owner, Attachments>>,
    pods: tokio::sync::watch::Sender<u64>,
    /// Projects files where there is no kubelet that does.
    projector: OnceLock<Projector>,
    /// The settings of a cluster.
    live: OnceLock<LiveSettings>,
    /// Publishes events where there is an API for them.
    recorder: OnceLock<Arc<EventRecorder>>,
    /// UIDs of VMIs whose directory is there and whose record cannot be read.
    unreadable: Mutex<BTreeSet<Uuid>>,
}

#[derive(Debug, Default)]
struct Published {
    vmis: BTreeMap<Key, Arc<VirtualMachineInstance>>,
    rejections: Vec<Rejection>,
}

/// The VMI that a Pod says it is of: the namespace of the Pod, and a UID. A Pod of another namespace is none of the VMI's.
type Owner = (String, String);

fn owner((namespace, uid): (&str, &str)) -> Owner {
    (namespace.to_owned(), uid.to_owned())
}

/// A launcher Pod that is bound to this node and has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LauncherPod {
    /// Its UID.
    pub(crate) uid: String,
    /// Its IP address; empty while it has none.
    pub(crate) address: String,
    /// The digests of the images of its init containers, by their names.
    pub(crate) images: BTreeMap<String, String>,
    /// Whether it has a volume for the disks that end with it.
    pub(crate) has_disks: bool,
    /// Its volumes with images.
    pub(crate) image_volumes: BTreeSet<String>,
    /// The disks of its claims.
    pub(crate) claims: ClaimDisks,
    /// Its interfaces that Multus has reported, with the PCI addresses of those that are devices.
    pub(crate) multus: BTreeMap<String, Option<String>>,
}

/// An attachment Pod that runs on this node, and has the disk of a hotplugged claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// Its UID.
    pub(crate) uid: String,
    /// Its name.
    pub(crate) name: String,
    /// The disk.
    pub(crate) disks: ClaimDisks,
}

/// The attachment Pods of a VMI, by their claims.
pub(crate) type Attachments = BTreeMap<String, Attachment>;

/// Why a VM does not get CPUs for itself.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CpuError {
    /// Too few are left.
    #[error(transparent)]
    TooFew(#[from] TooFewCpus),
    /// The files that note them.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Why a launcher has no user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UserError {
    /// Too many VMs.
    #[error("every user of --vm-uids has a VM: set a larger range")]
    Exhausted,
    /// Its directory.
    #[error(transparent)]
    State(#[from] StateError),
}

fn find_cgroups(wanted: LauncherCgroups, io_max: Vec<IoMax>) -> Option<Cgroups> {
    if wanted == LauncherCgroups::None {
        return None;
    }
    let found = Cgroups::find();
    let found =
        found.map_err(|error| warn!(%error, "launchers share the handler's cgroup, without limits")).ok()?;
    let found = found.with_io_max(io_max);
    if let Err(error) = found.complete() {
        warn!(%error, "launchers have cgroups without a part of their limits");
    }
    Some(found)
}

/// Ignores poisoning: a panic in the short critical sections below leaves no partial change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// A node without VMIs.
    pub fn new(settings: Settings) -> Self {
        let state = StateDir::at(&settings.state_dir);
        if (&settings.runtime, settings.isolation) == (&Runtime::Process, Isolation::None) {
            warn!(
                "launchers are root on this host: --launcher-isolation=none is unsafe for guests that are not trusted"
            );
        }
        let (state, cgroups) = match &settings.runtime {
            Runtime::Process => (state, find_cgroups(settings.cgroups, settings.io_max.clone())),
            // The kubelet makes the cgroups of Pods.
            Runtime::Pods(_) => (state.of_pods(), None),
        };
        Self {
            storage: Claims::below(settings.storage_dir.clone(), settings.image_reader.clone())
                .overcommit(settings.storage_overcommit),
            images: Images::new(
                state.images(),
                settings.allowed.clone(),
                settings.registries.clone(),
                settings.image_reader.clone(),
            ),
            jobs: Jobs::default(),
            settings,
            state,
            cgroups,
            metrics: Metrics::default(),
            usb_slots: UsbSlots::default(),
            published: Mutex::default(),
            wires: Mutex::default(),
            users: Mutex::default(),
            host: Once::new(),
            changes: tokio::sync::watch::Sender::new(0),
            claims: tokio::sync::watch::Sender::new(0),
            launcher_pods: Mutex::default(),
            attachments: Mutex::default(),
            pods: tokio::sync::watch::Sender::new(0),
            projector: OnceLock::new(),
            live: OnceLock::new(),
            recorder: OnceLock::new(),
            unreadable: Mutex::default(),
        }
    }

    /// A node for tests, with its files in a directory.
    #[cfg(test)]
    pub(crate) fn of_a_test(dir: &std::path::Path) -> Arc<Self> {
        Arc::new(Self::new(Settings {
            state_dir: dir.to_owned(),
            hypervisor: vireo_api::spec::HypervisorChoice::Auto,
            vm_cidr: "10.201.0.0/16".parse().unwrap(),
            vm_cidr_ipv6: None,
            guest_access: network::host::GuestAccess::default(),
            cgroups: LauncherCgroups::None,
            runtime: Runtime::Process,
            isolation: crate::settings::Isolation::None,
            launcher: "virt-launcher".into(),
            qemu: None,
            storage_dir: "/absent".into(),
            storage_overcommit: 100,
            io_max: Vec::new(),
            allowed: crate::storage::AllowedPaths::any(),
            node_name: "node1".to_owned(),
            registries: None,
            image_reader: crate::storage::ImageReader::InProcess,
        }))
    }

    /// Every VMI, by name.
    pub fn vmis(&self) -> Vec<Arc<VirtualMachineInstance>> {
        lock(&self.published).vmis.values().cloned().collect()
    }

    /// One VMI.
    pub fn vmi(&self, key: &Key) -> Option<Arc<VirtualMachineInstance>> {
        lock(&self.published).vmis.get(key).cloned()
    }

    /// Publishes a VMI, or removes it.
    pub fn show(&self, key: &Key, vmi: Option<VirtualMachineInstance>) {
        self.metrics.observe_vmi(key, vmi.as_ref());
        let mut published = lock(&self.published);
        match vmi {
            Some(vmi) => published.vmis.insert(key.clone(), Arc::new(vmi)),
            None => published.vmis.remove(key),
        };
        drop(published);
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Records that the record of a VMI cannot be read: a launcher may run for it.
    pub fn mark_unreadable(&self, uid: Uuid) {
        lock(&self.unreadable).insert(uid);
    }

    /// Whether a launcher may run for a VMI whose record cannot be read.
    pub(crate) fn is_unreadable(&self, uid: &str) -> bool {
        uid.parse().is_ok_and(|uid: Uuid| lock(&self.unreadable).contains(&uid))
    }

    /// Notifies about every change of the published VMIs.
    pub fn subscribe(&self) -> tokio::sync::watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Sets the launcher Pod of a VMI, by the namespace and the UID of the VMI.
    pub(crate) fn set_launcher_pod(&self, of: (&str, &str), pod: LauncherPod) {
        let before = lock(&self.launcher_pods).insert(owner(of), pod.clone());
        if before.as_ref() != Some(&pod) {
            self.pods.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Removes a launcher Pod that has ended or is gone, but not another one of its VMI.
    pub(crate) fn remove_launcher_pod(&self, of: (&str, &str), pod: &str) {
        let (mut pods, of) = (lock(&self.launcher_pods), owner(of));
        if pods.get(&of).is_some_and(|known| known.uid == pod) {
            pods.remove(&of);
        }
    }

    /// The launcher Pod of a VMI, where the kubelet starts launchers.
    pub(crate) fn launcher_pod(&self, namespace: &str, uid: Uuid) -> Option<LauncherPod> {
        lock(&self.launcher_pods).get(&owner((namespace, &uid.to_string()))).cloned()
    }

    /// Sets the attachment Pod of a claim, by the namespace and the UID of the VMI.
    pub(crate) fn set_attachment(&self, of: (&str, &str), claim: &str, pod: Attachment) {
        let before =
            lock(&self.attachments).entry(owner(of)).or_default().insert(claim.to_owned(), pod.clone());
        if before.as_ref() != Some(&pod) {
            self.pods.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    /// Removes an attachment Pod that ends or is gone, but not another one of its claim.
    pub(crate) fn remove_attachment(&self, of: (&str, &str), claim: &str, pod: &str) {
        let (mut all, of) = (lock(&self.attachments), owner(of));
        let Some(its) = all.get_mut(&of) else { return };
        if its.get(claim).is_some_and(|known| known.uid == pod) {
            its.remove(claim);
        }
        if its.is_empty() {
            all.remove(&of);
        }
    }

    /// The attachment Pods of a VMI, where the kubelet mounts claims.
    pub(crate) fn attachments(&self, namespace: &str, uid: Uuid) -> Attachments {
        lock(&self.attachments).get(&owner((namespace, &uid.to_string()))).cloned().unwrap_or_default()
    }

    /// Notifies about changes of the launcher Pods, and about new attachment Pods.
    pub(crate) fn subscribe_pods(&self) -> tokio::sync::watch::Receiver<u64> {
        self.pods.subscribe()
    }

    /// Has files projected from objects of an API, where there is no kubelet that does. The first one counts.
    pub fn set_projector(&self, projector: Projector) {
        let _ = self.projector.set(projector);
    }

    /// Uses the settings of a cluster. A second call has no effect.
    pub fn set_live_settings(&self, settings: LiveSettings) {
        let _ = self.live.set(settings);
    }

    /// Publishes events by a recorder. A second call has no effect.
    pub(crate) fn set_recorder(&self, recorder: Arc<EventRecorder>) {
        let _ = self.recorder.set(recorder);
    }

    /// Publishes an event about a VMI, where there is an API for it.
    pub(crate) async fn publish(&self, vmi: &VirtualMachineInstance, reason: Reason, message: String) {
        if let Some(recorder) = self.recorder.get() {
            recorder.publish(Regarding::new(Kind::VMI, &vmi.metadata), reason, message).await;
        }
    }

    /// Waits until the settings of a cluster are known, at most for [`SETTINGS_TIMEOUT`]: a cluster may not let the node agent
    /// read them, and its VMIs start with the defaults.
    pub(crate) async fn live_settings_known(&self) {
        let Some(live) = self.live.get() else { return };
        if tokio::time::timeout(SETTINGS_TIMEOUT, live.synced()).await.is_err() {
            warn!("the KubeVirt object cannot be read: a guest starts with the default settings");
        }
    }

    /// What guests read about their system, where it is not as usual.
    pub(crate) fn smbios(&self) -> SMBiosConfiguration {
        self.live.get().map(LiveSettings::smbios).unwrap_or_default()
    }

    /// Whether guests give no free pages back.
    pub(crate) fn keeps_free_pages(&self) -> bool {
        self.live.get().is_some_and(LiveSettings::keeps_free_pages)
    }

    /// How much of the file system of a claim its disk takes.
    pub(crate) fn claim_space(&self) -> ClaimSpace {
        self.live.get().map(LiveSettings::claim_space).unwrap_or_default()
    }

    /// What projects files where there is no kubelet that does.
    pub(crate) fn projector(&self) -> Option<&Projector> {
        self.projector.get()
    }

    /// Where persistent volume claims are.
    pub fn claims(&self) -> Claims {
        self.storage.clone()
    }

    /// Notifies the VMIs that wait for a claim about a new one.
    pub fn notify_claims(&self) {
        self.claims.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Notifies about new claims.
    pub fn subscribe_claims(&self) -> tokio::sync::watch::Receiver<u64> {
        self.claims.subscribe()
    }

    /// The rejected manifests.
    pub fn rejections(&self) -> Vec<Rejection> {
        lock(&self.published).rejections.clone()
    }

    /// Sets the rejected manifests: logs the new ones and writes all of them for `virt-handler status`.
    pub fn set_rejections(&self, rejections: Vec<Rejection>) -> Result<(), StateError> {
        let before = self.rejections();
        for rejection in rejections.iter().filter(|rejection| !before.contains(rejection)) {
            let Rejection { file, document, namespace, name, problems } = rejection;
            for problem in problems {
                warn!(file, document, namespace, name, "manifest rejected: {problem}");
            }
        }
        for fixed in before.iter().filter(|old| !rejections.iter().any(|new| new.file == old.file)) {
            info!(file = fixed.file, "manifest is no longer rejected");
        }
        write_json(&self.state.rejections(), &rejections)?;
        lock(&self.published).rejections = rejections;
        Ok(())
    }

    /// Marks the addresses of an existing network as used.
    pub fn adopt_wire(&self, plan: &Plan) {
        lock(&self.wires).extend(plan.wire_addresses());
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
        let range = self.settings.vm_cidr_ipv6;
        let wire_ipv6 = range.map(|range| address::allocate_ipv6(range, &all)).transpose()?;
        let plan = Plan::new(uid, wire, wire_ipv6, mtu);
        used.extend(plan.wire_addresses());
        Ok(plan)
    }

    /// The user of a VM's launcher, which owns the directory of its sockets from then on. `None` where launchers are not
    /// isolated. Blocks.
    ///
    /// # Errors
    /// When all users of the range have VMs, or the directory cannot be made.
    pub(crate) fn give_user(&self, uid: Uuid, dir: &VmiDir) -> Result<Option<u32>, UserError> {
        let users = match self.settings.isolation {
            Isolation::None => return dir.remove_sockets().map(|()| None).map_err(UserError::from),
            Isolation::Users(users) => users,
        };
        let _held = lock(&self.users);
        if let Some(user) = dir.user() {
            return Ok(Some(user));
        }
        let user = users.choose(uid, &self.state.users()?).ok_or(UserError::Exhausted)?;
        dir.create_sockets(user)?;
        Ok(Some(user))
    }

    /// Gives a VM CPUs of this host that no other has for itself. They are its own until its directory, or their file in it,
    /// is removed.
    ///
    /// # Errors
    /// When there are too few, or they cannot be noted.
    pub(crate) fn give_cpus(&self, dir: &VmiDir, wanted: usize) -> Result<(), CpuError> {
        if wanted == 0 {
            return Ok(());
        }
        let _held = lock(&self.users);
        let of = |dir: &VmiDir| read_json::<Vec<u32>>(&dir.cpus()).map(Option::unwrap_or_default);
        if of(dir)?.len() == wanted {
            return Ok(());
        }
        let mut used = BTreeSet::new();
        for (_, other) in self.state.vmi_dirs()? {
            used.extend(of(&other)?);
        }
        let chosen = cpus::choose(wanted, &cpus::of_this_node(), &used)?;
        Ok(write_json(&dir.cpus(), &chosen)?)
    }

    /// Releases the addresses of a network.
    pub fn release_wire(&self, plan: &Plan) {
        let mut used = lock(&self.wires);
        for address in plan.wire_addresses() {
            used.remove(&address);
        }
    }

    /// Prepares the host for networks and warns once about missing name servers. Blocks.
    ///
    /// # Errors
    /// When the host cannot be prepared.
    pub fn prepare_host(&self) -> Result<(), NetworkError> {
        let Settings { vm_cidr, vm_cidr_ipv6, guest_access, .. } = &self.settings;
        network::prepare_host(*vm_cidr, *vm_cidr_ipv6, guest_access)?;
        self.host.call_once(|| {
            let resolver = network::dns::of_host();
            let has_ipv6 = self.settings.vm_cidr_ipv6.is_some();
            if !resolver.servers.iter().any(|server| server.is_ipv4() || has_ipv6) {
                let unreachable =
                    resolver.unreachable.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                warn!(
                    unreachable,
                    "guests get no name server: /etc/resolv.conf names none that a guest can reach"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_vm_has_a_user_that_outlives_the_node_agent() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: this test may not give files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let node =
            |isolation| Node::new(Settings { isolation, ..Node::of_a_test(dir.path()).settings.clone() });
        let isolated = || node(Isolation::Users("70000-70002".parse().unwrap()));
        let [one, two, three] = [Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4()];
        let give = |node: &Node, uid: Uuid| {
            let dir = node.state.vmi_dir(uid);
            dir.create().unwrap();
            node.give_user(uid, &dir)
        };
        let users = [one, two].map(|uid| give(&isolated(), uid).unwrap().unwrap());
        assert_eq!(BTreeSet::from(users), BTreeSet::from([70000, 70001]));
        assert_eq!(give(&isolated(), one).unwrap(), Some(users[0]), "it keeps its user");
        assert!(matches!(give(&isolated(), three), Err(UserError::Exhausted)));
        let sockets = |uid: Uuid| StateDir::at(dir.path()).vmi_dir(uid).launcher_socket();
        assert!(sockets(one).parent().unwrap().ends_with("sockets"));
        isolated().state.vmi_dir(two).remove().unwrap();
        assert_eq!(give(&isolated(), three).unwrap(), Some(users[1]));
        // Without isolation, the sockets are where those of earlier releases were.
        assert_eq!(give(&node(Isolation::None), one).unwrap(), None);
        assert!(sockets(one).parent().unwrap().ends_with(one.to_string()));
    }
}
