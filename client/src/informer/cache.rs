//! Objects by name, and by what controls them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Cached, Change};
use crate::ObjectKey;

/// The objects of an informer.
#[derive(Debug)]
pub(super) struct Cache<T> {
    objects: BTreeMap<ObjectKey, Arc<Cached<T>>>,
    /// After the UID of what controls them.
    owned: BTreeSet<(String, ObjectKey)>,
    uncontrolled: BTreeSet<ObjectKey>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), owned: BTreeSet::new(), uncontrolled: BTreeSet::new() }
    }
}

impl<T> Cache<T> {
    /// Replaces everything; what changed by it.
    pub(super) fn replace(&mut self, new: Vec<Cached<T>>) -> Vec<Change<T>> {
        let mut gone: BTreeSet<ObjectKey> = self.objects.keys().cloned().collect();
        let mut changes = Vec::new();
        for object in new {
            gone.remove(&object.key);
            let known = self.objects.get(&object.key);
            if known.is_none_or(|known| (known.revision, &known.uid) != (object.revision, &object.uid)) {
                changes.push(self.put(object.key.clone(), Some(object)));
            }
        }
        changes.extend(gone.into_iter().map(|key| self.put(key, None)));
        changes
    }

    /// Inserts, replaces or removes an object.
    pub(super) fn put(&mut self, key: ObjectKey, after: Option<Cached<T>>) -> Change<T> {
        let before = self.objects.remove(&key);
        match before.as_ref().map(|before| &before.owner) {
            Some(Some(owner)) => drop(self.owned.remove(&(owner.uid.clone(), key.clone()))),
            Some(None) => drop(self.uncontrolled.remove(&key)),
            None => {}
        }
        let after = after.map(Arc::new);
        if let Some(after) = &after {
            match &after.owner {
                Some(owner) => self.owned.insert((owner.uid.clone(), key.clone())),
                None => self.uncontrolled.insert(key.clone()),
            };
            self.objects.insert(key.clone(), Arc::clone(after));
        }
        Change { key, before, after }
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<Cached<T>>> {
        self.objects.get(key).cloned()
    }

    pub(super) fn owned_by(&self, uid: &str) -> Vec<Arc<Cached<T>>> {
        let first = (uid.to_owned(), ObjectKey::new("", ""));
        let keys = self.owned.range(first..).take_while(|(owner, _)| owner == uid);
        keys.filter_map(|(_, key)| self.get(key)).collect()
    }

    pub(super) fn uncontrolled(&self, namespace: &str) -> Vec<Arc<Cached<T>>> {
        let first = ObjectKey::new(namespace, "");
        let keys = self.uncontrolled.range(first..).take_while(|key| key.namespace == namespace);
        keys.filter_map(|key| self.get(key)).collect()
    }

    pub(super) fn namespace(&self, namespace: &str) -> Vec<Arc<Cached<T>>> {
        let first = ObjectKey::new(namespace, "");
        let all = self.objects.range(first..).take_while(|(key, _)| key.namespace == namespace);
        all.map(|(_, object)| Arc::clone(object)).collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<Cached<T>>> {
        self.objects.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Owner;
    use super::*;

    fn object(name: &str, revision: u64, owner: Option<&str>) -> Cached<()> {
        let owner =
            owner.map(|uid| Owner { kind: "Set".to_owned(), name: "s".to_owned(), uid: uid.to_owned() });
        let uid = format!("uid-{name}");
        Cached { key: ObjectKey::new("n", name), uid, revision, owner, value: () }
    }

    fn names(objects: &[Arc<Cached<()>>]) -> Vec<&str> {
        objects.iter().map(|object| object.key.name.as_str()).collect()
    }

    #[test]
    fn objects_are_found_by_what_controls_them() {
        let mut cache = Cache::default();
        for (name, owner) in [("b", Some("u")), ("a", Some("u")), ("c", None)] {
            cache.put(ObjectKey::new("n", name), Some(object(name, 1, owner)));
        }
        assert_eq!(names(&cache.owned_by("u")), ["a", "b"]);
        assert_eq!(names(&cache.uncontrolled("n")), ["c"]);
        assert_eq!(names(&cache.namespace("n")), ["a", "b", "c"]);
        assert!(cache.namespace("m").is_empty() && cache.uncontrolled("m").is_empty());

        let change = cache.put(ObjectKey::new("n", "a"), Some(object("a", 2, None)));
        assert_eq!(change.owners("Set").collect::<Vec<_>>(), [ObjectKey::new("n", "s")]);
        assert_eq!(
            (names(&cache.owned_by("u")), names(&cache.uncontrolled("n"))),
            (vec!["b"], vec!["a", "c"])
        );
        for name in ["a", "b", "c"] {
            cache.put(ObjectKey::new("n", name), None);
        }
        assert!(cache.all().is_empty() && cache.owned.is_empty() && cache.uncontrolled.is_empty());
    }

    #[test]
    fn a_list_is_only_what_changed() {
        let mut cache = Cache::default();
        let all = cache.replace(vec![object("a", 1, None), object("b", 1, None), object("c", 1, None)]);
        assert_eq!(all.len(), 3);
        let mut another = object("d", 1, None);
        another.uid = "other".to_owned();
        let changes = cache.replace(vec![object("a", 1, None), object("b", 2, None), another]);
        let changes: Vec<_> = changes
            .iter()
            .map(|change| (change.key.name.as_str(), change.before.is_some(), change.after.is_some()))
            .collect();
        assert_eq!(changes, [("b", true, true), ("d", false, true), ("c", true, false)]);
    }
}
