//! The manifests directory as a [`Source`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::{error, info, warn};
use uuid::Uuid;

use super::desired::{FileRead, Update, desired_vmis};
use super::watch::Watcher;
use super::{Key, Source};

/// The retry interval while the directory is missing.
const RETRY: Duration = Duration::from_secs(5);

/// A directory and the last content of its files.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    watcher: Watcher,
    files: BTreeMap<String, FileRead>,
}

impl Directory {
    /// Reads a directory and starts watching it.
    ///
    /// # Errors
    /// When it cannot be read: that must not look like a directory without manifests.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut watcher = Watcher::open(path)?;
        let files = watcher.scan()?;
        Ok(Self { path: path.to_owned(), watcher, files })
    }

    async fn reopen(&mut self) {
        loop {
            match Watcher::open(&self.path) {
                Ok(watcher) => {
                    info!(directory = %self.path.display(), "the manifests directory is back");
                    self.watcher = watcher;
                    return;
                }
                // Its parent may be gone, too, so there is nothing to watch.
                Err(_) => tokio::time::sleep(RETRY).await,
            }
        }
    }
}

impl Source for Directory {
    async fn ready(&mut self, _: Vec<(Key, Uuid)>) {}

    fn update(&mut self, owners: &BTreeMap<Key, String>) -> Update {
        Update { desired: desired_vmis(&self.files, owners), only: None }
    }

    async fn changed(&mut self) {
        if let Err(error) = self.watcher.changed().await {
            error!(%error, directory = %self.path.display(), "the manifests directory is gone; VMs go on as they are");
            self.reopen().await;
        }
        match self.watcher.scan() {
            Ok(now) => self.files = now,
            Err(error) => warn!(%error, "the manifests directory cannot be listed; VMs go on as they are"),
        }
    }

    fn settle(&mut self, _: &(dyn Fn(&Key, &str) -> bool + Send + Sync)) {}
}
