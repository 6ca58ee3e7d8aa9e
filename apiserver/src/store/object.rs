use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lz4_flex::block::{compress_prepend_size_with_dict, decompress_size_prepended_with_dict};
use serde_json::{Map, Value, json};

use super::limits::size_of;

/// What an object is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// `plural.group`, or the plural alone in the core group.
    pub resource: String,
    /// Empty for what has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// Puts a key together.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self { resource: resource.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Whether it names something of this resource, in this namespace if one is given.
    pub fn is_of(&self, resource: &str, namespace: Option<&str>) -> bool {
        self.resource == resource && namespace.is_none_or(|namespace| self.namespace == namespace)
    }
}

/// An object as a write left it.
///
/// It is kept as JSON that is compressed with another object of its resource as dictionary: they have their field names and
/// much else in common. The JSON and the value of the objects that were used last are kept beside it; the value
/// alone takes several times the memory of the JSON.
pub struct Object {
    /// What it is called.
    pub key: Key,
    /// The write.
    pub revision: u64,
    /// Bytes of JSON, as [`Limits`](super::Limits) count them.
    pub size: usize,
    /// LZ4, after the number of bytes.
    packed: Box<[u8]>,
    dictionary: Arc<[u8]>,
    unpacked: Mutex<Weak<Unpacked>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Unpacked {
    json: Arc<str>,
    value: Arc<Value>,
}

impl Object {
    /// Stamps a value with its revision.
    pub fn new(key: Key, revision: u64, value: Value) -> Self {
        let size = size_of(&value);
        Self::sized(key, revision, value, size, &Arc::default())
    }

    /// Stamps a value of a known size with its revision.
    pub(super) fn sized(
        key: Key,
        revision: u64,
        mut value: Value,
        size: usize,
        shared: &Arc<Shared>,
    ) -> Self {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), json!(revision.to_string()));
        }
        let json = value.to_string();
        let dictionary = shared.dictionary(&key.resource, &json);
        let packed = compress_prepend_size_with_dict(json.as_bytes(), &dictionary).into_boxed_slice();
        let unpacked = Arc::new(Unpacked { json: json.into(), value: Arc::new(value) });
        let kept = Mutex::new(Arc::downgrade(&unpacked));
        shared.push(unpacked, size);
        Self { key, revision, size, packed, dictionary, unpacked: kept, shared: Arc::clone(shared) }
    }

    /// With the revision as its `metadata.resourceVersion`.
    pub fn value(&self) -> Arc<Value> {
        let mut kept = lock(&self.unpacked);
        if let Some(unpacked) = kept.upgrade() {
            return Arc::clone(&unpacked.value);
        }
        let json = self.unpack();
        let value = parse(&json);
        let unpacked = Arc::new(Unpacked { json, value: Arc::clone(&value) });
        *kept = Arc::downgrade(&unpacked);
        self.shared.push(unpacked, self.size);
        value
    }

    /// The same for readers of all objects: a value that is parsed for it does not evict others from the cache.
    pub fn value_once(&self) -> Arc<Value> {
        let kept = lock(&self.unpacked).upgrade();
        kept.map_or_else(|| parse(&self.unpack()), |unpacked| Arc::clone(&unpacked.value))
    }

    /// A copy of the value.
    pub fn to_value(&self) -> Value {
        Arc::unwrap_or_clone(self.value())
    }

    /// The value as JSON.
    pub fn json(&self) -> Arc<str> {
        let kept = lock(&self.unpacked).upgrade();
        kept.map_or_else(|| self.unpack(), |unpacked| Arc::clone(&unpacked.json))
    }

    fn unpack(&self) -> Arc<str> {
        // It was made of a string.
        let json = decompress_size_prepended_with_dict(&self.packed, &self.dictionary).unwrap_or_default();
        String::from_utf8(json).unwrap_or_default().into()
    }

    /// Whether a value is equal but for its revision.
    pub(super) fn is_same(&self, value: &Value) -> bool {
        let (Value::Object(has), Value::Object(new)) = (&*self.value(), value) else { return false };
        has.len() == new.len()
            && has.iter().all(|(name, has)| match (name.as_str(), new.get(name)) {
                ("metadata", Some(new)) => is_same_metadata(has, new),
                (_, new) => new == Some(has),
            })
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, revision, .. } = self;
        form.debug_struct("Object")
            .field("key", key)
            .field("revision", revision)
            .field("json", &self.json())
            .finish_non_exhaustive()
    }
}

/// The value of a stored object, which was made of one.
fn parse(json: &str) -> Arc<Value> {
    Arc::new(serde_json::from_str(json).unwrap_or_default())
}

fn is_same_metadata(has: &Value, new: &Value) -> bool {
    let (Value::Object(has), Value::Object(new)) = (has, new) else { return has == new };
    fn fields(of: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
        of.iter().filter(|(name, _)| *name != "resourceVersion")
    }
    fields(has).eq(fields(new))
}

/// Bytes of JSON in the objects whose values are kept. In memory a value is about five times as large.
const MOST_RECENT: usize = 2 << 20;

/// The longest dictionary.
const LONGEST_DICTIONARY: usize = 16 << 10;

/// What the objects of a store share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    recent: Mutex<Recent>,
    /// JSON of one object of each resource.
    dictionaries: Mutex<HashMap<String, Arc<[u8]>>>,
}

/// What was written or parsed last.
#[derive(Debug, Default)]
struct Recent {
    /// With their bytes of JSON, the oldest first.
    objects: VecDeque<(Arc<Unpacked>, usize)>,
    bytes: usize,
}

impl Shared {
    /// The dictionary for an object. It is that object itself if it is much longer than the dictionary of its resource: objects
    /// get longer with their status. Objects that were compressed before keep their dictionary.
    fn dictionary(&self, resource: &str, json: &str) -> Arc<[u8]> {
        let mut dictionaries = lock(&self.dictionaries);
        let known = dictionaries.get(resource);
        let much_longer = known.map_or(0, |known| known.len() + known.len() / 4);
        if json.len() > LONGEST_DICTIONARY || json.len() <= much_longer {
            return known.map(Arc::clone).unwrap_or_default();
        }
        let dictionary: Arc<[u8]> = json.as_bytes().into();
        dictionaries.insert(resource.to_owned(), Arc::clone(&dictionary));
        dictionary
    }

    fn push(&self, object: Arc<Unpacked>, size: usize) {
        // What goes is dropped after the lock, as it may be large.
        let mut dropped = Vec::new();
        let mut recent = lock(&self.recent);
        recent.bytes += size;
        recent.objects.push_back((object, size));
        while recent.bytes > MOST_RECENT
            && recent.objects.len() > 1
            && let Some((oldest, size)) = recent.objects.pop_front()
        {
            recent.bytes -= size;
            dropped.push(oldest);
        }
        drop(recent);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(shared: &Arc<Shared>, name: &str, size: usize) -> Object {
        let value = json!({"metadata": {"name": name}, "filler": "x".repeat(size)});
        Object::sized(Key::new("r", "", name), 7, value, size, shared)
    }

    #[test]
    fn objects_of_a_resource_are_compressed_with_one_of_them() {
        let shared = Arc::new(Shared::default());
        let text = |object: &Object| object.unpack().to_string();
        let pod = |name: &str, status: Value| {
            let value =
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "status": status});
            let key = Key::new("pods", "default", name);
            (value.clone(), Object::sized(key, 7, value, 0, &shared))
        };
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"},
            {"type": "PodScheduled", "status": "True"}, {"type": "Initialized", "status": "True"}]});
        let (_, first) = pod("first", json!({}));
        let (_, longer) = pod("longer", status.clone());
        let (_, alike) = pod("alike", status.clone());
        let alone = Object::new(Key::new("pods", "default", "alike"), 7, alike.to_value());
        assert!(Arc::ptr_eq(&alike.dictionary, &longer.dictionary), "the longer one is the dictionary");
        assert!(!Arc::ptr_eq(&alike.dictionary, &first.dictionary));
        let whole = lz4_flex::block::compress(text(&alone).as_bytes()).len();
        assert!(alike.packed.len() * 4 < whole, "{} of {whole} bytes", alike.packed.len());
        for (name, object) in [("first", first), ("longer", longer), ("alike", alike)] {
            let status = if name == "first" { json!({}) } else { status.clone() };
            let (mut value, _) = pod(name, status);
            value["metadata"]["resourceVersion"] = json!("7");
            assert_eq!(text(&object), value.to_string());
        }
        let (_, huge) = pod("huge", json!("x".repeat(LONGEST_DICTIONARY)));
        assert!(text(&huge).len() > LONGEST_DICTIONARY);
        assert!(lock(&shared.dictionaries)["pods"].len() < LONGEST_DICTIONARY, "it is no dictionary");
    }

    #[test]
    fn the_values_that_were_used_last_are_kept() {
        let shared = Arc::new(Shared::default());
        let is_kept = |object: &Object| lock(&object.unpacked).strong_count() > 0;
        let first = object(&shared, "first", 1);
        assert!(is_kept(&first));
        let json = first.json();
        let large = object(&shared, "large", MOST_RECENT);
        assert!(!is_kept(&first), "a newer one replaced it");
        assert!(is_kept(&large), "the last one stays, however large");
        assert_eq!(first.json(), json);
        assert_eq!(first.value_once().to_string(), *json);
        assert!(!is_kept(&first) && is_kept(&large), "nothing was replaced");
        let value = first.value();
        assert_eq!(value.pointer("/metadata"), Some(&json!({"name": "first", "resourceVersion": "7"})));
        assert!(Arc::ptr_eq(&value, &first.value()), "it is parsed once");
        assert!(!is_kept(&large));
        assert_eq!(*json, value.to_string());
    }
}
