//! For those who look only at what changed.

use std::sync::Arc;

use super::{Event, Store};

/// How far somebody has followed a store.
#[derive(Debug, Default)]
pub struct Follower {
    position: Option<u64>,
}

/// What happened since the last look.
#[derive(Debug)]
pub enum News {
    /// Nobody knows any more, or it is the first look: look at everything.
    Everything,
    /// These writes, oldest first.
    These(Vec<Arc<Event>>),
}

impl Follower {
    /// What happened since the last look.
    pub fn look(&mut self, store: &Store) -> News {
        if let Some(Ok((position, events))) = self.position.map(|position| store.events_of_all(position)) {
            self.position = Some(position);
            return News::These(events);
        }
        // What is written between this and the look at everything is told once more.
        self.position = Some(store.revision());
        News::Everything
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
        let mut follower = Follower::default();
        put("r");
        assert!(matches!(follower.look(&store), News::Everything));
        put("s");
        put("t");
        let News::These(events) = follower.look(&store) else { panic!("these two are remembered") };
        let resources: Vec<&str> = events.iter().map(|event| event.key.resource.as_str()).collect();
        assert_eq!(resources, ["s", "t"]);
        assert!(matches!(follower.look(&store), News::These(events) if events.is_empty()));
    }
}
