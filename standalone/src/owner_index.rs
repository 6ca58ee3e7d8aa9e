//! What belongs to whom, kept up to date by what is written: a controller looks only at what its object has.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vireo_apiserver::resource::Resource;
use vireo_apiserver::store::{Event, Key, Object, Store};

/// What controls an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    uid: String,
}

/// Whose object was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whose {
    /// Somebody's.
    Owner(Owner),
    /// Nobody's.
    Nobody,
}

/// The objects of a resource.
#[derive(Debug)]
pub(crate) struct Children<T> {
    resource: String,
    read: fn(&Value) -> Option<T>,
    all: BTreeMap<Key, (Whose, T)>,
    /// By the owner's UID.
    owned: BTreeMap<String, BTreeSet<Key>>,
}

impl<T> Children<T> {
    /// Nothing yet. What `read` makes nothing of is left out.
    pub(crate) fn of(resource: &Resource, read: fn(&Value) -> Option<T>) -> Self {
        Self { resource: resource.name(), read, all: BTreeMap::new(), owned: BTreeMap::new() }
    }

    /// Looks at everything.
    pub(crate) fn fill(&mut self, store: &Store) {
        self.all.clear();
        self.owned.clear();
        for object in store.list(&self.resource, None).objects {
            self.put(&object);
        }
    }

    /// Heeds one write; whose the object was and is, if it is one of these.
    pub(crate) fn heed(&mut self, event: &Event) -> Vec<Whose> {
        if event.key.resource != self.resource {
            return Vec::new();
        }
        let was = self.take(&event.key);
        let is = if event.stays { self.put(&event.object) } else { None };
        let told: Vec<Whose> = [was, is].into_iter().flatten().collect();
        match told.as_slice() {
            [was, is] if was == is => vec![was.clone()],
            _ => told,
        }
    }

    fn put(&mut self, object: &Object) -> Option<Whose> {
        let read = (self.read)(&object.value)?;
        let whose = whose(object);
        if let Whose::Owner(owner) = &whose {
            self.owned.entry(owner.uid.clone()).or_default().insert(object.key.clone());
        }
        self.all.insert(object.key.clone(), (whose.clone(), read));
        Some(whose)
    }

    fn take(&mut self, key: &Key) -> Option<Whose> {
        let (whose, _) = self.all.remove(key)?;
        if let Whose::Owner(owner) = &whose
            && let Some(set) = self.owned.get_mut(&owner.uid)
        {
            set.remove(key);
            if set.is_empty() {
                self.owned.remove(&owner.uid);
            }
        }
        Some(whose)
    }

    /// One object.
    pub(crate) fn get(&self, key: &Key) -> Option<&T> {
        self.all.get(key).map(|(_, read)| read)
    }

    /// Whose it is.
    pub(crate) fn whose(&self, key: &Key) -> Option<&Whose> {
        self.all.get(key).map(|(whose, _)| whose)
    }

    /// What somebody controls, by name.
    pub(crate) fn owned_by(&self, uid: &str) -> impl Iterator<Item = (&Key, &T)> {
        self.found(self.owned.get(uid))
    }

    fn found<'a>(&'a self, keys: Option<&'a BTreeSet<Key>>) -> impl Iterator<Item = (&'a Key, &'a T)> {
        keys.into_iter().flatten().filter_map(|key| Some((key, self.get(key)?)))
    }
}

fn whose(object: &Object) -> Whose {
    let namespace = object.key.namespace.clone();
    let owners = object.value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let owner = owners.into_iter().flatten().find(|owner| owner.get("controller") == Some(&json!(true)));
    match owner {
        None => Whose::Nobody,
        Some(owner) => {
            let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
            Whose::Owner(Owner { kind: text("kind"), name: text("name"), uid: text("uid"), namespace })
        }
    }
}

/// Reads what an object says of itself and of its state, without what is wanted of it.
pub(crate) fn without_spec<T: DeserializeOwned>(object: &Value) -> Option<T> {
    let mut metadata = object.get("metadata")?.clone();
    if let Some(fields) = metadata.as_object_mut() {
        fields.remove("managedFields");
    }
    serde_json::from_value(json!({"metadata": metadata, "status": object.get("status")})).ok()
}

#[cfg(test)]
mod tests {
    use vireo_apiserver::store::{Change, Changes, Follower};

    use super::*;
    use crate::place;

    #[test]
    fn what_is_written_is_found_where_it_belongs() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let mut children = Children::of(place::vmis(), |value| value.get("spec")?.as_i64());
        let mut follower = Follower::default();
        follower.look(&store);
        let key = place::vmis().key("n", "a");
        let mut told = |children: &mut Children<i64>, value: Option<Value>| {
            let change = |value: Option<Value>, before: Option<Value>| match value {
                Some(value) => Change::Put(value),
                None => Change::Remove(before.unwrap()),
            };
            store
                .write(&key, |before, _| {
                    Ok::<_, ()>(change(value, before.map(|before| before.value.clone())))
                })
                .unwrap();
            let Changes::Delta(events) = follower.look(&store) else { panic!("it was told") };
            events.iter().flat_map(|event| children.heed(event)).collect::<Vec<_>>()
        };
        assert_eq!(told(&mut children, Some(json!({"metadata": {}, "spec": 1}))), [Whose::Nobody]);
        assert_eq!(children.owned_by("u").count(), 0);
        let owner = json!([{"kind": "K", "name": "o", "uid": "u", "controller": true}]);
        let owned = json!({"metadata": {"ownerReferences": owner}, "spec": 2});
        let whose = told(&mut children, Some(owned.clone()));
        let Some(Whose::Owner(owner)) = whose.last() else { panic!("{whose:?}") };
        assert_eq!((whose.len(), owner.kind.as_str(), owner.name.as_str()), (2, "K", "o"));
        assert_eq!(children.owned_by("u").count(), 1);
        let mut other = owned;
        other["spec"] = json!(3);
        assert_eq!(told(&mut children, Some(other)).len(), 1, "it is still the same one's");
        assert_eq!(children.get(&place::vmis().key("n", "a")), Some(&3));
        let mut afresh = Children::of(place::vmis(), |value| value.get("spec")?.as_i64());
        afresh.fill(&store);
        assert_eq!(afresh.owned_by("u").count(), 1);
        assert_eq!(told(&mut children, None).len(), 1);
        assert_eq!(children.owned_by("u").count(), 0);
    }
}
