//! The events that are still remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use thiserror::Error;

use super::{Key, Object};

/// Events that are remembered at most.
const MOST_EVENTS: usize = 8192;
/// Bytes of JSON in them at most.
const MOST_BYTES: usize = 64 << 20;

/// One write.
#[derive(Debug)]
pub struct Event {
    /// To what.
    pub key: Key,
    /// How it was; absent where it was not.
    pub before: Option<Arc<Object>>,
    /// How it is, or how it was when it went, with the revision of this write.
    pub object: Arc<Object>,
    /// Whether it is still there.
    pub stays: bool,
}

/// A moment that is not remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("too old resource version: {asked} ({oldest})")]
pub struct Expired {
    /// The moment.
    pub asked: u64,
    /// The first one that is remembered.
    pub oldest: u64,
}

/// Events in order of their revisions.
#[derive(Debug)]
pub(super) struct Past {
    /// Everything after this is there.
    horizon: u64,
    events: VecDeque<Arc<Event>>,
    bytes: usize,
}

impl Past {
    pub(super) fn since(revision: u64) -> Self {
        Self { horizon: revision, events: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, event: Arc<Event>) {
        self.bytes += event.object.size;
        self.events.push_back(event);
        while self.events.len() > MOST_EVENTS || (self.bytes > MOST_BYTES && self.events.len() > 1) {
            let Some(oldest) = self.events.pop_front() else { return };
            self.bytes -= oldest.object.size;
            self.horizon = oldest.object.revision;
        }
    }

    /// What happened after `revision`, where `latest` is the last write of all.
    pub(super) fn after(
        &self,
        revision: u64,
        latest: u64,
    ) -> Result<impl Iterator<Item = &Arc<Event>>, Expired> {
        if revision < self.horizon || revision > latest {
            return Err(Expired { asked: revision, oldest: self.horizon });
        }
        let first = self.events.partition_point(|event| event.object.revision <= revision);
        Ok(self.events.range(first..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(revision: u64, size: usize) -> Arc<Event> {
        let key = Key::new("r", "", "a");
        let value = json!({"metadata": {}, "filler": "x".repeat(size)});
        let object = Arc::new(Object::new(key.clone(), revision, value));
        Arc::new(Event { key, before: None, object, stays: true })
    }

    #[test]
    fn it_forgets_the_oldest_by_number_and_by_size() {
        let mut past = Past::since(10);
        for revision in 11..=10 + MOST_EVENTS as u64 + 5 {
            past.push(event(revision, 0));
        }
        let latest = 10 + MOST_EVENTS as u64 + 5;
        assert_eq!(past.after(14, latest).err(), Some(Expired { asked: 14, oldest: 15 }));
        assert_eq!(past.after(15, latest).unwrap().count(), MOST_EVENTS);
        assert_eq!(past.after(latest, latest).unwrap().count(), 0);
        assert!(past.after(latest + 1, latest).is_err(), "the future");
        past.push(event(latest + 1, MOST_BYTES));
        assert_eq!(past.after(latest, latest + 1).unwrap().count(), 1, "the last one stays, however large");
        assert!(past.after(latest - 1, latest + 1).is_err());
    }
}
