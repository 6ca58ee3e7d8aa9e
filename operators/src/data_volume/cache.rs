use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use kube::runtime::watcher::Config;
use tokio::sync::watch;
use tracing::{debug, info};
use vireo_client::informer::{Cached, Change, Informer, without_spec};
use vireo_client::{Kind, ObjectKey};

use super::{DataVolume, Storage};
use crate::claim::ClaimState;

/// How often the API server is asked again whether it serves DataVolumes.
const INTERVAL: Duration = Duration::from_secs(30);

type Handler = Box<dyn Fn() + Send + Sync>;

/// The caches of claims and of the DataVolumes that fill them, and whether the cluster has DataVolumes at all.
pub struct StorageCache {
    client: Client,
    data_volumes: Arc<Informer<DataVolume>>,
    claims: Arc<Informer<ClaimState>>,
    /// Absent until the API server has answered.
    served: watch::Sender<Option<bool>>,
    handlers: Mutex<Vec<Handler>>,
}

impl std::fmt::Debug for StorageCache {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("StorageCache").field("served", &*self.served.borrow()).finish_non_exhaustive()
    }
}

impl StorageCache {
    /// Empty caches of DataVolumes and claims.
    pub fn new(client: &Client) -> Arc<Self> {
        Arc::new(Self {
            client: client.clone(),
            data_volumes: Informer::new(Kind::DATA_VOLUME.all(client), Config::default(), without_spec),
            claims: Informer::new(Kind::CLAIM.all(client), Config::default(), ClaimState::read),
            served: watch::Sender::new(None),
            handlers: Mutex::default(),
        })
    }

    fn handlers(&self) -> MutexGuard<'_, Vec<Handler>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a function called for each change of a DataVolume.
    pub fn on_change(&self, handler: impl Fn(&Change<DataVolume>) + Send + Sync + 'static) {
        self.data_volumes.on_change(handler);
    }

    /// Has a function called whenever the cluster begins or ceases to have DataVolumes.
    pub fn on_served(&self, handler: impl Fn() + Send + Sync + 'static) {
        self.handlers().push(Box::new(handler));
    }

    /// Has a function called for each change of a claim.
    pub fn on_claim(&self, handler: impl Fn(&Change<ClaimState>) + Send + Sync + 'static) {
        self.claims.on_change(handler);
    }

    /// Waits until it is known which DataVolumes and claims there are.
    pub async fn synced(&self) {
        self.claims.synced().await;
        // The sender is a field: it is not gone.
        let mut served = self.served.subscribe();
        let is_served = served.wait_for(Option::is_some).await.is_ok_and(|served| *served == Some(true));
        if is_served {
            self.data_volumes.synced().await;
        }
    }

    /// Waits until the cache shows a DataVolume that was written.
    pub async fn shows(&self, revision: u64) {
        self.data_volumes.shows(revision, &[]).await;
    }

    /// Keeps the caches until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.claims.run(), self.run_data_volumes());
    }

    async fn run_data_volumes(&self) {
        loop {
            if self.discover().await {
                tokio::select! {
                    () = self.data_volumes.run() => {}
                    () = self.until_gone() => {}
                }
            } else {
                tokio::time::sleep(INTERVAL).await;
            }
        }
    }

    async fn until_gone(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            if !self.discover().await {
                return;
            }
        }
    }

    /// Asks the API server whether it serves DataVolumes. Where it does not answer, nothing is known to have changed.
    async fn discover(&self) -> bool {
        let before = *self.served.borrow();
        let known = match Kind::DATA_VOLUME.is_served(&self.client).await {
            Ok(known) => known,
            Err(error) => {
                debug!(%error, "the cluster does not say whether it serves DataVolumes");
                // Before the first answer, it is not known whether claims are filled.
                return before.unwrap_or_default();
            }
        };
        self.served.send_replace(Some(known));
        if before.is_some_and(|before| before != known) {
            info!(served = known, "the cluster begins or ceases to serve DataVolumes");
            self.handlers().iter().for_each(|handler| handler());
        }
        known
    }
}

impl Storage for StorageCache {
    fn claim(&self, key: &ObjectKey) -> Option<ClaimState> {
        self.claims.get(key).map(|claim| claim.value.clone())
    }

    fn data_volume(&self, key: &ObjectKey) -> Option<DataVolume> {
        let found: Option<Arc<Cached<DataVolume>>> = self.data_volumes.get(key);
        found.filter(|_| self.serves_data_volumes()).map(|one| one.value.clone())
    }

    fn serves_data_volumes(&self) -> bool {
        *self.served.borrow() == Some(true)
    }
}
