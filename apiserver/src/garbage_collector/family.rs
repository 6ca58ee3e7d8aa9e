//! Owner references and the index of dependents.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::served_resources::ServedResources;
use crate::store::{Key, Object};

/// An owner as its dependent names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) uid: &'a str,
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
}

impl Owner<'_> {
    /// Where it is, for a dependent in this namespace. None for a kind that is not served.
    pub(super) fn key(&self, served: &ServedResources, namespace: &str) -> Option<Key> {
        served.key((self.api_version, self.kind), namespace, self.name)
    }
}

/// The owners of an object.
pub(super) fn owners(object: &Value) -> impl Iterator<Item = Owner<'_>> {
    let references = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    references.into_iter().flatten().map(|reference| {
        let text = |field| reference.get(field).and_then(Value::as_str).unwrap_or_default();
        Owner { uid: text("uid"), api_version: text("apiVersion"), kind: text("kind"), name: text("name") }
    })
}

/// Dependents by the UIDs of their owners.
#[derive(Debug, Default)]
pub(super) struct Dependents(BTreeSet<(String, Key)>);

impl Dependents {
    pub(super) fn add(&mut self, served: &ServedResources, object: &Object) {
        // An owner that is not served waits for no dependents.
        let namespace = &object.key.namespace;
        for owner in owners(&object.value_once()).filter(|owner| owner.key(served, namespace).is_some()) {
            self.0.insert((owner.uid.to_owned(), object.key.clone()));
        }
    }

    pub(super) fn remove(&mut self, object: &Object) {
        for owner in owners(&object.value()) {
            self.0.remove(&(owner.uid.to_owned(), object.key.clone()));
        }
    }

    /// The dependents of an owner.
    pub(super) fn of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Key> {
        let first = (uid.to_owned(), Key::new("", "", ""));
        self.0.range(first..).take_while(move |(owner, _)| owner == uid).map(|(_, key)| key)
    }
}
