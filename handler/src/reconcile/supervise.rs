//! The node's loop: passes the desired state from the source of VMIs to the reconciler of each name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, warn};
use uuid::Uuid;

use super::act::{run_blocking, sync_error};
use super::desired::Desired;
use super::network::remove_network;
use super::reconciler::VmiReconciler;
use super::record::Record;
use crate::launcher::link::chain;
use crate::launcher::process::{self, Found};
use crate::manifests::desired::{Entry, Update};
use crate::manifests::{Key, Origin, Source};
use crate::network::Plan;
use crate::node::Node;
use crate::state::{StateError, VmiDir, read_json};

/// Why the handler cannot work.
#[derive(Debug, Error)]
pub enum SuperviseError {
    /// The state directory.
    #[error("cannot read the records of the VMIs")]
    State(#[from] StateError),
}

/// The tasks of all names.
struct Tasks {
    node: Arc<Node>,
    senders: BTreeMap<Key, watch::Sender<Desired>>,
    /// The desired state of each name; a missing name is not wanted.
    desired: BTreeMap<Key, Desired>,
    /// Which file each existing VMI came from.
    owners: BTreeMap<Key, String>,
    running: JoinSet<Key>,
}

/// Runs the VMIs of a source until `stop`. Guests keep running.
///
/// # Errors
/// When the state cannot be read at the start.
pub async fn run(
    node: Arc<Node>,
    mut source: impl Source,
    stop: impl Future<Output = ()>,
) -> Result<(), SuperviseError> {
    let mut tasks = Tasks {
        node,
        senders: BTreeMap::new(),
        desired: BTreeMap::new(),
        owners: BTreeMap::new(),
        running: JoinSet::new(),
    };
    let adopted = tasks.adopt().await?;
    tokio::pin!(stop);
    // Until the source is ready, running guests are left as they are.
    tokio::select! {
        () = &mut stop => return Ok(()),
        () = source.ready(adopted) => {}
    }
    loop {
        let update = source.update(&tasks.owners);
        tasks.apply(update);
        source.settle(&|key, uid| tasks.senders.contains_key(key) || tasks.node.is_unreadable(uid));
        tokio::select! {
            () = &mut stop => return Ok(()),
            Some(done) = tasks.running.join_next() => tasks.finished(done),
            () = source.changed() => {}
        }
    }
}

impl Tasks {
    /// Starts a reconciler for every VMI on disk and removes leftovers. Returns the VMIs that are objects of an API,
    /// with their UIDs.
    async fn adopt(&mut self) -> Result<Vec<(Key, Uuid)>, StateError> {
        let mut objects = Vec::new();
        let mut has_network = false;
        for (uid, dir) in self.node.state.vmi_dirs()? {
            match Record::load(uid, dir.clone()) {
                Ok(Some(record)) if self.senders.contains_key(&record.key()) => {
                    error!(%uid, key = %record.key(), "two directories hold a VMI of this name; this one is left alone");
                }
                Ok(Some(record)) => {
                    let key = record.key();
                    has_network |= record.plan.is_some();
                    match record.file() {
                        Some(file) => drop(self.owners.insert(key, file.to_owned())),
                        None => objects.push((key, uid)),
                    }
                    // It stays as it is until the source's first update.
                    self.spawn(
                        VmiReconciler::adopt(Arc::clone(&self.node), record),
                        Desired::Entry(Entry::Held),
                    );
                }
                Ok(None) => clear(&dir).await,
                Err(error) => {
                    error!(%uid, error = chain(&error), "this VMI is left alone");
                    self.node.mark_unreadable(uid);
                }
            }
        }
        if has_network {
            self.filter_guests().await;
        }
        Ok(objects)
    }

    /// Applies the rules of the host to guests that run already: an earlier release, or other options, may have left others.
    async fn filter_guests(&self) {
        let node = Arc::clone(&self.node);
        let prepare = move || node.prepare_host().map_err(sync_error("FailedNetwork"));
        if let Err(error) = run_blocking("FailedNetwork", prepare).await {
            error!(reason = error.reason, "{}", error.message);
        }
    }

    fn spawn(&mut self, reconciler: VmiReconciler, desired: Desired) {
        let key = reconciler.key.clone();
        let (sender, receiver) = watch::channel(desired);
        self.senders.insert(key, sender);
        self.running.spawn(reconciler.run(receiver));
    }

    /// Passes an update to the reconcilers.
    fn apply(&mut self, Update { mut desired, only }: Update) {
        if only.is_none()
            && desired.rejections != self.node.rejections()
            && let Err(error) = self.node.set_rejections(desired.rejections)
        {
            Node::log_error("cannot write the rejected manifests", &error);
        }
        let all = || {
            self.senders.keys().chain(self.desired.keys()).chain(desired.entries.keys()).cloned().collect()
        };
        let keys: BTreeSet<Key> = only.unwrap_or_else(all);
        for key in keys {
            let gone =
                || desired.graces.get(&key).map_or(Desired::Nothing, |seconds| Desired::Gone(*seconds));
            let desired = desired.entries.remove(&key).map_or_else(gone, Desired::Entry);
            self.desired.insert(key.clone(), desired);
            self.sync(&key);
        }
    }

    /// Updates the reconciler of a name, or starts one.
    fn sync(&mut self, key: &Key) {
        let Some(desired) = self.desired.get(key).cloned() else { return };
        if let Some((_, Origin::File(file))) = desired.manifest() {
            self.owners.insert(key.clone(), file.clone());
        }
        match self.senders.get(key) {
            Some(sender) => {
                sender.send_if_modified(|known| {
                    let differs = !known.same(&desired);
                    if differs {
                        *known = desired;
                    }
                    differs
                });
            }
            None if matches!(desired.manifest(), Some((_, Origin::Object(uid))) if self.node.is_unreadable(&uid.to_string())) =>
            {
                error!(vmi = %key, "a launcher may run for this VMI, whose record cannot be read; it is left alone");
            }
            None if desired.manifest().is_some() => {
                let reconciler = VmiReconciler::new(Arc::clone(&self.node), key.clone());
                self.spawn(reconciler, desired);
            }
            None if matches!(desired, Desired::Nothing | Desired::Gone(_)) => drop(self.desired.remove(key)),
            None => {}
        }
    }

    /// Removes a finished task, and starts another one if its VMI is desired again.
    fn finished(&mut self, done: Result<Key, tokio::task::JoinError>) {
        match done {
            Ok(key) => {
                self.senders.remove(&key);
                self.owners.remove(&key);
                self.sync(&key);
            }
            Err(error) => {
                error!(%error, "the task of a VMI panicked; its guest keeps running, restart the handler")
            }
        }
    }
}

/// Removes a directory in which no VMI was accepted, or from which it was already removed.
async fn clear(dir: &VmiDir) {
    if !matches!(process::find(&dir.launcher_stamp()), Ok(Found::Unstarted | Found::Gone)) {
        warn!(directory = %dir.path().display(), "a launcher runs for a VMI that is not recorded; it is left alone");
        return;
    }
    if let Ok(Some(plan)) = read_json::<Plan>(&dir.network())
        && let Err(error) = remove_network(plan).await
    {
        warn!(reason = error.reason, "{}", error.message);
        return;
    }
    if let Err(error) = dir.remove() {
        Node::log_error("cannot remove the leftovers of a VMI", &error);
    }
}
