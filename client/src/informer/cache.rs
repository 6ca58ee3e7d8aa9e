//! Objects by name, and by what controls them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Cached, Change};
use crate::ObjectKey;

/// The objects of an informer.
#[derive(Debug)]
pub(super) struct Cache<T> {
    objects: BTreeMap<ObjectKey, Arc<Cached<T>>>,
    /// By the UID of what controls them.
    owned: HashMap<String, BTreeSet<ObjectKey>>,
    /// By namespace.
    uncontrolled: HashMap<String, BTreeSet<ObjectKey>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), owned: HashMap::new(), uncontrolled: HashMap::new() }
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

    /// Puts an object in its place, or removes it.
    pub(super) fn put(&mut self, key: ObjectKey, after: Option<Cached<T>>) -> Change<T> {
        let before = self.objects.remove(&key);
        if let Some(before) = &before {
            let (index, by) = self.index(before);
            if let Some(keys) = index.get_mut(by) {
                keys.remove(&key);
                if keys.is_empty() {
                    index.remove(by);
                }
            }
        }
        let after = after.map(Arc::new);
        if let Some(after) = &after {
            let (index, by) = self.index(after);
            index.entry(by.to_owned()).or_default().insert(key.clone());
            self.objects.insert(key.clone(), Arc::clone(after));
        }
        Change { key, before, after }
    }

    fn index<'a>(&mut self, object: &'a Cached<T>) -> (&mut HashMap<String, BTreeSet<ObjectKey>>, &'a str) {
        match &object.owner {
            Some(owner) => (&mut self.owned, &owner.uid),
            None => (&mut self.uncontrolled, &object.key.namespace),
        }
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<Arc<Cached<T>>> {
        self.objects.get(key).cloned()
    }

    fn found(&self, keys: Option<&BTreeSet<ObjectKey>>) -> Vec<Arc<Cached<T>>> {
        keys.into_iter().flatten().filter_map(|key| self.get(key)).collect()
    }

    pub(super) fn owned_by(&self, uid: &str) -> Vec<Arc<Cached<T>>> {
        self.found(self.owned.get(uid))
    }

    pub(super) fn uncontrolled(&self, namespace: &str) -> Vec<Arc<Cached<T>>> {
        self.found(self.uncontrolled.get(namespace))
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
