//! Caches of objects that a controller reads, and how far behind its own writes they are.

use std::time::Duration;

use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use tokio::sync::watch;

/// How long a controller waits for the events of its own writes.
const LIMIT: Duration = Duration::from_secs(30);

/// What happened to a cache.
#[derive(Debug)]
pub(crate) enum Change {
    /// It was filled, at first or anew.
    Relist,
    /// One object is new, has changed or is gone.
    Delta(Box<DynamicObject>),
}

/// The cache of one resource.
pub(crate) struct Informer {
    pub(crate) store: Store<DynamicObject>,
    revision: watch::Receiver<u64>,
}

/// The resource version of an object, as the number that it is.
pub(crate) fn revision(object: &DynamicObject) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

impl Informer {
    /// A cache, which is kept while the changes are read. `strip` removes what the controller does not look at.
    pub(crate) fn new(
        api: Api<DynamicObject>,
        resource: ApiResource,
        strip: fn(&mut DynamicObject),
    ) -> (Self, impl Stream<Item = Result<Change, watcher::Error>> + Send) {
        let writer = reflector::store::Writer::new(resource);
        let (sender, receiver) = watch::channel(0);
        let informer = Self { store: writer.as_reader(), revision: receiver };
        let events = watcher::watcher(api, watcher::Config::default()).default_backoff().modify(strip);
        // The reflector shows a new list when it is complete.
        let mut listed = 0;
        let changes = reflector::reflector(writer, events).try_filter_map(move |event| {
            let change = match event {
                Event::Init => None,
                Event::InitApply(object) => {
                    listed = revision(&object).max(listed);
                    None
                }
                Event::InitDone => Some((listed, Change::Relist)),
                Event::Apply(object) | Event::Delete(object) => {
                    Some((revision(&object), Change::Delta(Box::new(object))))
                }
            };
            let change = change.map(|(revision, change)| {
                sender.send_modify(|seen| *seen = revision.max(*seen));
                change
            });
            async { Ok(change) }
        });
        (informer, changes.boxed())
    }

    /// Waits until the cache shows a write, and until these UIDs are gone from it; at most a while, as a new list may skip a
    /// write.
    pub(crate) async fn shows(&self, revision: u64, gone: &[String]) {
        let mut seen = self.revision.clone();
        let shows = async {
            loop {
                let reached = *seen.borrow_and_update() >= revision;
                let is_gone =
                    |uid: &String| self.store.find(|one| one.metadata.uid.as_ref() == Some(uid)).is_none();
                if reached && gone.iter().all(is_gone) || seen.changed().await.is_err() {
                    return;
                }
            }
        };
        if tokio::time::timeout(LIMIT, shows).await.is_err() {
            tracing::warn!(revision, "the cache does not show a write of this controller");
        }
    }
}
