//! Caches of objects that a client reads, kept by watches.

mod cache;
mod object;

use std::fmt::Debug;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures_util::{StreamExt as _, pin_mut};
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

use crate::ObjectKey;
use cache::Cache;
use object::Object;

/// How long a controller waits for the events of its own writes.
const SHOWS: Duration = Duration::from_secs(30);

/// The object that controls another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its kind.
    pub kind: String,
    /// Its name, in the namespace of what it controls.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A cached object.
#[derive(Debug)]
pub struct Cached<T> {
    /// Namespace and name.
    pub key: ObjectKey,
    /// UID.
    pub uid: String,
    /// Resource version.
    pub revision: u64,
    /// What controls it.
    pub owner: Option<Owner>,
    /// The object, as far as the client reads it.
    pub value: T,
}

impl<T> Deref for Cached<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// How an object changed.
#[derive(Debug)]
pub struct Change<T> {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Absent when it is new.
    pub before: Option<Arc<Cached<T>>>,
    /// Absent when it is gone.
    pub after: Option<Arc<Cached<T>>>,
}

impl<T> Change<T> {
    /// As it was and as it is.
    pub fn versions(&self) -> impl Iterator<Item = &Cached<T>> {
        self.before.iter().chain(&self.after).map(|one| &**one)
    }

    /// The names of the objects of a kind that control it, or did.
    pub fn owners(&self, kind: &str) -> impl Iterator<Item = ObjectKey> {
        let owners = self.versions().filter_map(|one| one.owner.as_ref());
        owners
            .filter(move |owner| owner.kind == kind)
            .map(|owner| ObjectKey::new(&self.key.namespace, &owner.name))
    }
}

/// The resource version of an object, as the number that it is.
pub fn revision(object: &DynamicObject) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// How a client reads an object.
pub type Read<T> = fn(Value) -> Result<T, serde_json::Error>;

/// Reads all of an object.
///
/// # Errors
/// When it is none.
pub fn whole<T: DeserializeOwned>(object: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(object)
}

/// Reads an object without its spec.
///
/// # Errors
/// When it is none.
pub fn without_spec<T: DeserializeOwned>(mut object: Value) -> Result<T, serde_json::Error> {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("spec");
    }
    serde_json::from_value(object)
}

type Handler<T> = Box<dyn Fn(&Change<T>) + Send + Sync>;

/// The cache of one resource, which several controllers may share. [`run`](Self::run) keeps it.
pub struct Informer<T> {
    api: Api<Object>,
    config: watcher::Config,
    read: Read<T>,
    cache: RwLock<Cache<T>>,
    handlers: Mutex<Vec<Handler<T>>>,
    /// The latest resource version that the cache shows; absent before the first list.
    shown: watch::Sender<Option<u64>>,
}

impl<T> Debug for Informer<T> {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Informer").field("path", &self.api.resource_url()).finish_non_exhaustive()
    }
}

impl<T: Send + Sync + 'static> Informer<T> {
    /// An empty cache of these objects.
    pub fn new(api: Api<DynamicObject>, config: watcher::Config, read: Read<T>) -> Arc<Self> {
        let path = api.resource_url().to_owned();
        Arc::new(Self {
            api: Api::all_with(api.into_client(), &path),
            config,
            read,
            cache: RwLock::default(),
            handlers: Mutex::default(),
            shown: watch::Sender::new(None),
        })
    }

    fn cache(&self) -> RwLockReadGuard<'_, Cache<T>> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn cache_mut(&self) -> RwLockWriteGuard<'_, Cache<T>> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn handlers(&self) -> MutexGuard<'_, Vec<Handler<T>>> {
        self.handlers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a function called for each change. It must return soon: it adds keys to a queue. For objects that the cache
    /// has, it is called at once.
    pub fn on_change(&self, handler: impl Fn(&Change<T>) + Send + Sync + 'static) {
        let mut handlers = self.handlers();
        for object in self.all() {
            handler(&Change { key: object.key.clone(), before: None, after: Some(object) });
        }
        handlers.push(Box::new(handler));
    }

    /// Keeps the cache until it is dropped.
    pub async fn run(&self) {
        let watcher = watcher::watcher(self.api.clone(), self.config.clone());
        let events = watcher.default_backoff();
        pin_mut!(events);
        let mut listed = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => listed.push(object),
                Ok(Event::InitDone) => self.replace(std::mem::take(&mut listed)),
                Ok(Event::Apply(object)) => self.apply(object),
                Ok(Event::Delete(object)) => self.delete(&object),
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        path = self.api.resource_url(),
                        "cannot watch; it is tried again"
                    );
                }
            }
        }
    }

    fn parse(&self, object: Object) -> Option<Cached<T>> {
        let key = ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any());
        let (uid, revision) = (object.uid().unwrap_or_default(), object.revision());
        let owner = object.owner_references().iter().find(|owner| owner.controller == Some(true));
        let owner = owner.map(|owner| Owner {
            kind: owner.kind.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        });
        match (self.read)(object.value) {
            Ok(value) => Some(Cached { key, uid, revision, owner, value }),
            Err(error) => {
                tracing::warn!(%error, object = %key, path = self.api.resource_url(), "cannot read an object; it is ignored");
                None
            }
        }
    }

    fn replace(&self, objects: Vec<Object>) {
        let latest = objects.iter().map(Object::revision).max().unwrap_or_default();
        let new: Vec<Cached<T>> = objects.into_iter().filter_map(|object| self.parse(object)).collect();
        let handlers = self.handlers();
        let changes = self.cache_mut().replace(new);
        for change in changes {
            handlers.iter().for_each(|handler| handler(&change));
        }
        drop(handlers);
        self.shows_now(latest);
    }

    fn apply(&self, object: Object) {
        let revision = object.revision();
        let key = ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any());
        let after = self.parse(object);
        self.change(key, after, revision);
    }

    fn delete(&self, object: &Object) {
        let key = ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any());
        self.change(key, None, object.revision());
    }

    fn change(&self, key: ObjectKey, after: Option<Cached<T>>, revision: u64) {
        let handlers = self.handlers();
        let change = self.cache_mut().put(key, after);
        handlers.iter().for_each(|handler| handler(&change));
        drop(handlers);
        self.shows_now(revision);
    }

    fn shows_now(&self, revision: u64) {
        self.shown.send_modify(|shown| *shown = Some(shown.unwrap_or_default().max(revision)));
    }

    /// Waits for the first list.
    pub async fn synced(&self) {
        // The sender is a field: it is not gone.
        let _ = self.shown.subscribe().wait_for(Option::is_some).await;
    }

    /// Waits until the cache shows a write, and until these objects are gone from it. It gives up after a while, as a list
    /// may skip a write.
    pub async fn shows(&self, revision: u64, gone: &[(ObjectKey, String)]) {
        let mut shown = self.shown.subscribe();
        let is_gone =
            |(key, uid): &(ObjectKey, String)| self.get(key).is_none_or(|object| object.uid != *uid);
        let all =
            shown.wait_for(|shown| shown.is_some_and(|shown| shown >= revision) && gone.iter().all(is_gone));
        if tokio::time::timeout(SHOWS, all).await.is_err() {
            let path = self.api.resource_url();
            tracing::warn!(revision, path, "the cache does not show a write of this process");
        }
    }

    /// One object.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<Cached<T>>> {
        self.cache().get(key)
    }

    /// The objects that the object of this UID controls, by name.
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<Cached<T>>> {
        self.cache().owned_by(uid)
    }

    /// The objects of a namespace that nothing controls, by name.
    pub fn uncontrolled(&self, namespace: &str) -> Vec<Arc<Cached<T>>> {
        self.cache().uncontrolled(namespace)
    }

    /// The objects of a namespace, by name.
    pub fn namespace(&self, namespace: &str) -> Vec<Arc<Cached<T>>> {
        self.cache().namespace(namespace)
    }

    /// All objects, by namespace and name.
    pub fn all(&self) -> Vec<Arc<Cached<T>>> {
        self.cache().all()
    }
}

#[cfg(test)]
mod tests;
