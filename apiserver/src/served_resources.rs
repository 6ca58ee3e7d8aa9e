//! What is served now: the table's rows, and what CustomResourceDefinitions add to them.

use std::sync::Arc;

use crate::resource::{self, CUSTOM_RESOURCE_DEFINITIONS, Registry, Resource};
use crate::store::{Cached, Key, Store};

/// What is served at one moment.
#[derive(Debug, Default, Clone)]
pub struct ServedResources {
    registry: Arc<Registry>,
    custom: Vec<Arc<Resource>>,
}

impl ServedResources {
    fn of(registry: &Arc<Registry>, store: &Store) -> Self {
        let definitions = store.list(&CUSTOM_RESOURCE_DEFINITIONS.name(), None).objects;
        Self {
            registry: Arc::clone(registry),
            custom: definitions
                .iter()
                .filter_map(|object| resource::served(&object.value()))
                .map(Arc::new)
                .collect(),
        }
    }

    /// Everything.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.registry.all().chain(&self.custom)
    }

    /// The resource of a [name](Resource::name).
    pub fn named(&self, name: &str) -> Option<&Arc<Resource>> {
        self.registry.named(name).or_else(|| self.custom.iter().find(|row| row.name() == name))
    }

    /// The resource of a group, version and plural.
    pub fn at(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.all().find(|row| row.group == group && row.version == version && row.plural == plural)
    }

    /// The resource of an `apiVersion` and a `kind`.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.all().find(|row| row.kind == kind && row.api_version() == api_version)
    }

    /// Where an object of a kind is, for one that refers to it from a namespace. None for a kind that is not served.
    pub fn key(&self, (api_version, kind): (&str, &str), namespace: &str, name: &str) -> Option<Key> {
        let row = self.of_kind(api_version, kind)?;
        Some(row.key(if row.namespaced { namespace } else { "" }, name))
    }
}

/// The served of a store, brought up to date when it is asked for.
#[derive(Debug, Default)]
pub struct ServedResourcesCache {
    registry: Arc<Registry>,
    kept: Cached<ServedResources>,
}

impl ServedResourcesCache {
    /// Of a server that always serves this.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry, kept: Cached::default() }
    }

    /// What is always served.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// What is served now: everything that was written before counts.
    pub fn now(&self, store: &Store) -> Arc<ServedResources> {
        let definitions = CUSTOM_RESOURCE_DEFINITIONS.name();
        let of = |store: &Store| ServedResources::of(&self.registry, store);
        self.kept.now(store, |key| key.resource == definitions, of)
    }
}
