use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lz4_flex::block::{compress_prepend_size, decompress_size_prepended};
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
/// It is kept as compressed JSON. The JSON and the value of the objects that were used last are kept beside it; the value
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
    unpacked: Mutex<Weak<Unpacked>>,
    recent: Arc<Recent>,
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
        recent: &Arc<Recent>,
    ) -> Self {
        if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), json!(revision.to_string()));
        }
        let json = value.to_string();
        let packed = compress_prepend_size(json.as_bytes()).into_boxed_slice();
        let unpacked = Arc::new(Unpacked { json: json.into(), value: Arc::new(value) });
        let kept = Mutex::new(Arc::downgrade(&unpacked));
        recent.push(unpacked, size);
        Self { key, revision, size, packed, unpacked: kept, recent: Arc::clone(recent) }
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
        self.recent.push(unpacked, self.size);
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
        let json = decompress_size_prepended(&self.packed).unwrap_or_default();
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

/// What was written or parsed last.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    /// With their bytes of JSON, the oldest first.
    objects: VecDeque<(Arc<Unpacked>, usize)>,
    bytes: usize,
}

impl Recent {
    fn push(&self, object: Arc<Unpacked>, size: usize) {
        // What goes is dropped after the lock, as it may be large.
        let mut dropped = Vec::new();
        let mut recent = lock(&self.0);
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

    fn object(recent: &Arc<Recent>, name: &str, size: usize) -> Object {
        let value = json!({"metadata": {"name": name}, "filler": "x".repeat(size)});
        Object::sized(Key::new("r", "", name), 7, value, size, recent)
    }

    #[test]
    fn the_values_that_were_used_last_are_kept() {
        let recent = Arc::new(Recent::default());
        let is_kept = |object: &Object| lock(&object.unpacked).strong_count() > 0;
        let first = object(&recent, "first", 1);
        assert!(is_kept(&first));
        let json = first.json();
        let large = object(&recent, "large", MOST_RECENT);
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
