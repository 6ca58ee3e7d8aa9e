//! For those who look only at what changed.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Event, Key, Store};

/// The position of a reader in the history of a store.
#[derive(Debug, Default)]
pub struct WatchCursor {
    position: Option<u64>,
}

/// What happened since the last look.
#[derive(Debug)]
pub enum Changes {
    /// The history no longer reaches back to the position, or there was none: list everything.
    Relist,
    /// These writes, oldest first.
    Delta(Vec<Arc<Event>>),
}

impl WatchCursor {
    /// What happened since the last look.
    pub fn look(&mut self, store: &Store) -> Changes {
        if let Some(Ok((position, events))) = self.position.map(|position| store.events_of_all(position)) {
            self.position = Some(position);
            return Changes::Delta(events);
        }
        // What is written between this and the list of everything is reported twice.
        self.position = Some(store.revision());
        Changes::Relist
    }
}

/// Something that is made of objects, brought up to date when it is asked for.
#[derive(Debug, Default)]
pub struct Cached<T>(Mutex<(WatchCursor, Arc<T>)>);

impl<T> Cached<T> {
    /// It as of now: everything that was written before counts. It is made anew only when something that `concerns` it was
    /// written.
    pub fn now(
        &self,
        store: &Store,
        concerns: impl Fn(&Key) -> bool,
        make: impl FnOnce(&Store) -> T,
    ) -> Arc<T> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (cursor, kept) = &mut *known;
        let changed = match cursor.look(store) {
            Changes::Relist => true,
            Changes::Delta(events) => events.iter().any(|event| concerns(&event.key)),
        };
        if changed {
            *kept = Arc::new(make(store));
        }
        Arc::clone(kept)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::{Change, Key};

    #[test]
    fn everything_comes_first_and_then_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("store")).unwrap();
        let put = |resource: &str| {
            let value = json!({"metadata": {}});
            store.write(&Key::new(resource, "", "a"), |_, _| Ok::<_, ()>(Change::Put(value))).unwrap();
        };
        let mut cursor = WatchCursor::default();
        put("r");
        assert!(matches!(cursor.look(&store), Changes::Relist));
        put("s");
        put("t");
        let Changes::Delta(events) = cursor.look(&store) else { panic!("these two are remembered") };
        let resources: Vec<&str> = events.iter().map(|event| event.key.resource.as_str()).collect();
        assert_eq!(resources, ["s", "t"]);
        assert!(matches!(cursor.look(&store), Changes::Delta(events) if events.is_empty()));
    }
}
