//! The node's loop: what its source of VMIs says, told to the task of each name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, warn};
use uuid::Uuid;

use super::act::remove_network;
use super::desired::Desired;
use super::machine::Machine;
use super::record::Record;
use crate::launcher::link::chain;
use crate::launcher::process::{self, Found};
use crate::manifests::catalog::{Entry, Update};
use crate::manifests::{Key, Origin, Source};
use crate::network::Plan;
use crate::node::Node;
use crate::state::{MachineDir, StateError, read_json};

/// Why the handler cannot work.
#[derive(Debug, Error)]
pub enum SuperviseError {
    /// The state directory.
    #[error("cannot read what is known of the VMs")]
    State(#[from] StateError),
}

/// The tasks of all names.
struct Tasks {
    node: Arc<Node>,
    tell: BTreeMap<Key, watch::Sender<Desired>>,
    /// What is wanted of each name; a name that is missing is not wanted.
    wants: BTreeMap<Key, Desired>,
    /// Which file each existing VMI came from.
    owners: BTreeMap<Key, String>,
    /// UIDs of VMIs whose directory is there and whose record cannot be read: a launcher may run for them.
    unreadable: BTreeSet<Uuid>,
    running: JoinSet<Key>,
}

/// Runs the VMIs of a source until `stop`. Guests are left as they are.
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
        tell: BTreeMap::new(),
        wants: BTreeMap::new(),
        owners: BTreeMap::new(),
        unreadable: BTreeSet::new(),
        running: JoinSet::new(),
    };
    let adopted = tasks.adopt().await?;
    tokio::pin!(stop);
    // Until then, what runs is left as it is.
    tokio::select! {
        () = &mut stop => return Ok(()),
        () = source.ready(adopted) => {}
    }
    loop {
        let update = source.update(&tasks.owners);
        tasks.apply(update);
        source.settle(&|key, uid| tasks.tell.contains_key(key) || tasks.is_unreadable(uid));
        tokio::select! {
            () = &mut stop => return Ok(()),
            Some(done) = tasks.running.join_next() => tasks.finished(done),
            () = source.changed() => {}
        }
    }
}

impl Tasks {
    /// Starts a task for every VMI on disk and removes what dead ones left. The VMIs that are objects of an API, with their
    /// UIDs.
    async fn adopt(&mut self) -> Result<Vec<(Key, Uuid)>, StateError> {
        let mut objects = Vec::new();
        for (uid, dir) in self.node.state.machines()? {
            match Record::load(uid, dir.clone()) {
                Ok(Some(record)) if self.tell.contains_key(&record.key()) => {
                    error!(%uid, key = %record.key(), "two directories hold a VMI of this name; this one is left alone");
                }
                Ok(Some(record)) => {
                    let key = record.key();
                    match record.file() {
                        Some(file) => drop(self.owners.insert(key, file.to_owned())),
                        None => objects.push((key, uid)),
                    }
                    // Until the manifests are applied, as it was.
                    self.spawn(Machine::adopt(Arc::clone(&self.node), record), Desired::Entry(Entry::Held));
                }
                Ok(None) => clear(&dir).await,
                Err(error) => {
                    error!(%uid, error = chain(&error), "this VMI is left alone");
                    self.unreadable.insert(uid);
                }
            }
        }
        Ok(objects)
    }

    fn spawn(&mut self, machine: Machine, desired: Desired) {
        let key = machine.key.clone();
        let (tell, told) = watch::channel(desired);
        self.tell.insert(key, tell);
        self.running.spawn(machine.run(told));
    }

    /// Gives every task what is wanted of its name.
    fn apply(&mut self, Update { mut catalog, only }: Update) {
        if only.is_none()
            && catalog.refusals != self.node.refusals()
            && let Err(error) = self.node.refuse(catalog.refusals)
        {
            Node::log_error("the refused manifests cannot be written down", &error);
        }
        let all =
            || self.tell.keys().chain(self.wants.keys()).chain(catalog.entries.keys()).cloned().collect();
        let keys: BTreeSet<Key> = only.unwrap_or_else(all);
        for key in keys {
            let gone =
                || catalog.graces.get(&key).map_or(Desired::Nothing, |seconds| Desired::Gone(*seconds));
            let desired = catalog.entries.remove(&key).map_or_else(gone, Desired::Entry);
            self.wants.insert(key.clone(), desired);
            self.follow(&key);
        }
    }

    /// Brings the task of a name up to date, and starts one where there is none.
    fn follow(&mut self, key: &Key) {
        let Some(desired) = self.wants.get(key).cloned() else { return };
        if let Some((_, Origin::File(file))) = desired.manifest() {
            self.owners.insert(key.clone(), file.clone());
        }
        match self.tell.get(key) {
            Some(tell) => {
                tell.send_if_modified(|known| {
                    let differs = !known.same(&desired);
                    if differs {
                        *known = desired;
                    }
                    differs
                });
            }
            None if matches!(desired.manifest(), Some((_, Origin::Object(uid))) if self.unreadable.contains(uid)) =>
            {
                error!(vmi = %key, "a launcher may run for this VMI, whose record cannot be read; it is left alone");
            }
            None if desired.manifest().is_some() => {
                let machine = Machine::new(Arc::clone(&self.node), key.clone());
                self.spawn(machine, desired);
            }
            None if matches!(desired, Desired::Nothing | Desired::Gone(_)) => drop(self.wants.remove(key)),
            None => {}
        }
    }

    /// Whether there is a directory for a VMI whose record cannot be read.
    fn is_unreadable(&self, uid: &str) -> bool {
        uid.parse().is_ok_and(|uid: Uuid| self.unreadable.contains(&uid))
    }

    /// A task has left nothing behind. Another one starts where its VMI is wanted again.
    fn finished(&mut self, done: Result<Key, tokio::task::JoinError>) {
        match done {
            Ok(key) => {
                self.tell.remove(&key);
                self.owners.remove(&key);
                self.follow(&key);
            }
            Err(error) => {
                error!(%error, "the task of a VMI panicked; its guest goes on, restart the handler")
            }
        }
    }
}

/// Removes a directory in which no VMI was accepted, or from which it was already removed.
async fn clear(dir: &MachineDir) {
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
        Node::log_error("the leftovers of a VMI cannot be removed", &error);
    }
}
