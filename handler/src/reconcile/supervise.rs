//! The node's loop: what the manifests say, told to the task of each name.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::act::remove_network;
use super::machine::{Machine, Want};
use super::record::Record;
use crate::launcher::link::chain;
use crate::launcher::process::{self, Found};
use crate::manifests::Key;
use crate::manifests::catalog::{Entry, catalog};
use crate::manifests::watch::Watcher;
use crate::network::Plan;
use crate::node::Node;
use crate::state::{MachineDir, StateError, read_json};

/// How soon a manifests directory that went away is looked for again.
const DIRECTORY_RETRY: Duration = Duration::from_secs(5);

/// Why the handler cannot work.
#[derive(Debug, Error)]
pub enum SuperviseError {
    /// The manifests directory, at start. Later its loss is waited out.
    #[error("cannot watch the manifests directory {directory}")]
    Manifests {
        /// `--manifests`.
        directory: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The state directory.
    #[error("cannot read what is known of the VMs")]
    State(#[from] StateError),
}

/// The tasks of all names.
struct Tasks {
    node: Arc<Node>,
    tell: BTreeMap<Key, watch::Sender<Want>>,
    /// Which file each existing VMI came from.
    owners: BTreeMap<Key, String>,
    running: JoinSet<Key>,
}

/// Runs the node until `stop`. Guests are left as they are.
///
/// # Errors
/// When manifests or state cannot be read at the start.
pub async fn run(node: Arc<Node>, stop: impl Future<Output = ()>) -> Result<(), SuperviseError> {
    let directory = node.settings.manifests.clone();
    let failed = |source| SuperviseError::Manifests { directory: directory.display().to_string(), source };
    // Before anything is adopted: a directory that cannot be read must not look like one without manifests.
    let mut watcher = Watcher::open(&directory).map_err(failed)?;
    let mut files = watcher.scan().map_err(failed)?;
    let mut tasks = Tasks { node, tell: BTreeMap::new(), owners: BTreeMap::new(), running: JoinSet::new() };
    tasks.adopt().await?;
    tokio::pin!(stop);
    loop {
        tasks.apply(&files);
        tokio::select! {
            () = &mut stop => return Ok(()),
            Some(done) = tasks.running.join_next() => tasks.finished(done),
            changed = watcher.changed() => {
                if let Err(error) = changed {
                    error!(%error, directory = %directory.display(), "the manifests directory is gone; VMs go on as they are");
                    watcher = reopen(&directory).await;
                }
                match watcher.scan() {
                    Ok(now) => files = now,
                    Err(error) => warn!(%error, "the manifests directory cannot be listed; VMs go on as they are"),
                }
            }
        }
    }
}

async fn reopen(directory: &std::path::Path) -> Watcher {
    loop {
        match Watcher::open(directory) {
            Ok(watcher) => {
                info!(directory = %directory.display(), "the manifests directory is back");
                return watcher;
            }
            // There is nothing to watch for it with: its parent may be gone, too.
            Err(_) => tokio::time::sleep(DIRECTORY_RETRY).await,
        }
    }
}

impl Tasks {
    /// Starts a task for every VMI on disk and removes what dead ones left.
    async fn adopt(&mut self) -> Result<(), StateError> {
        for (uid, dir) in self.node.state.machines()? {
            match Record::load(uid, dir.clone()) {
                Ok(Some(record)) if self.tell.contains_key(&record.key()) => {
                    error!(%uid, key = %record.key(), "two directories hold a VMI of this name; this one is left alone");
                }
                Ok(Some(record)) => {
                    let key = record.key();
                    if let Some(file) = record.file() {
                        self.owners.insert(key, file.to_owned());
                    }
                    // Until the manifests are applied, as it was.
                    self.spawn(Machine::adopt(Arc::clone(&self.node), record), Want::Entry(Entry::Held));
                }
                Ok(None) => clear(&dir).await,
                Err(error) => error!(%uid, error = chain(&error), "this VMI is left alone"),
            }
        }
        Ok(())
    }

    fn spawn(&mut self, machine: Machine, want: Want) {
        let key = machine.key.clone();
        let (tell, told) = watch::channel(want);
        self.tell.insert(key, tell);
        self.running.spawn(machine.run(told));
    }

    /// Tells every task what its manifest says.
    fn apply(&mut self, files: &BTreeMap<String, crate::manifests::catalog::FileRead>) {
        let catalog = catalog(files, &self.owners);
        if catalog.refusals != self.node.refusals()
            && let Err(error) = self.node.refuse(catalog.refusals)
        {
            Node::complain("the refused manifests cannot be written down", &error);
        }
        for (key, entry) in &catalog.entries {
            if let Entry::Present { file, .. } = entry {
                self.owners.insert(key.clone(), file.clone());
                if !self.tell.contains_key(key) {
                    let machine = Machine::new(Arc::clone(&self.node), key.clone());
                    self.spawn(machine, Want::Entry(entry.clone()));
                }
            }
        }
        for (key, tell) in &self.tell {
            let want = catalog.entries.get(key).cloned().map_or(Want::Nothing, Want::Entry);
            tell.send_if_modified(|known| {
                let differs = !known.same(&want);
                if differs {
                    *known = want;
                }
                differs
            });
        }
    }

    /// A task has left nothing behind. The next round starts another where its manifest is back.
    fn finished(&mut self, done: Result<Key, tokio::task::JoinError>) {
        match done {
            Ok(key) => {
                self.tell.remove(&key);
                self.owners.remove(&key);
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
        Node::complain("the leftovers of a VMI cannot be removed", &error);
    }
}
