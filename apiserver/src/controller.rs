//! What controllers have in common: they look again when something was written, and when it is time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::store::{DiskError, Key, Object, Store};

/// How soon what failed is tried again: a round that broke off, and what could not be made or written.
pub const RETRY: Duration = Duration::from_secs(10);

/// Who looks after the objects of one kind.
pub trait Controller: Send + 'static {
    /// What they are called.
    const NAME: &'static str;

    /// The objects that may have something to do since this was asked last; at first, all.
    fn changed(&mut self, store: &Store) -> BTreeSet<Key>;

    /// Looks after one object; when to look again though nothing changes.
    ///
    /// # Errors
    /// When something cannot be written; it is tried again.
    fn control(
        &mut self,
        store: &Store,
        object: &Arc<Object>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError>;

    /// Forgets an object that is gone.
    fn forget(&mut self, key: &Key);
}

/// A controller, and when it is to look again.
#[derive(Debug, Default)]
pub struct Rounds<C> {
    pub controller: C,
    due: Due,
}

impl<C: Controller> Rounds<C> {
    pub fn of(controller: C) -> Self {
        Self { controller, due: Due::default() }
    }

    /// Looks at every object that may have something to do, or whose time has come; how long nothing is to be done if
    /// nothing changes. Blocks.
    pub fn round(&mut self, store: &Store) -> Option<Duration> {
        let now = Timestamp::now();
        let controller = &mut self.controller;
        let changed = controller.changed(store);
        self.due.round(changed, now, |key| {
            let Some(object) = store.get(key) else {
                controller.forget(key);
                return None;
            };
            controller.control(store, &object, now).unwrap_or_else(|error| {
                tracing::warn!(%error, "one of the {} cannot be written; it is tried again", C::NAME);
                Some(soon(now))
            })
        })
    }

    /// Goes round until nothing is written any more.
    #[cfg(test)]
    pub fn settle(&mut self, store: &Store) {
        for _ in 0..20 {
            let before = store.revision();
            self.round(store);
            if store.revision() == before {
                return;
            }
        }
        panic!("the {} never settle", C::NAME);
    }

    /// When an object is looked at though nothing changes.
    pub fn due_at(&self, key: &Key) -> Option<Timestamp> {
        self.due.at(key)
    }
}

/// When to try again what failed now.
pub fn soon(now: Timestamp) -> Timestamp {
    now.checked_add(RETRY).unwrap_or(now)
}

/// Controls until the store is gone.
pub async fn control<C: Controller>(store: Arc<Store>, begin: impl Fn() -> C) {
    let begin = || Rounds::of(begin());
    go_from(store, C::NAME, begin, |store, rounds| rounds.round(store)).await;
}

/// Goes round until the store is gone. A round may block; it says how long nothing is to be done if nothing changes, and
/// remembers what it likes from one to the next.
pub async fn go<R: Default + Send + 'static>(
    store: Arc<Store>,
    whose: &'static str,
    round: fn(&Store, &mut R) -> Option<Duration>,
) {
    go_from(store, whose, R::default, round).await;
}

/// The same where there is something to remember from the beginning, and after a round that broke off.
pub async fn go_from<R: Send + 'static>(
    store: Arc<Store>,
    whose: &'static str,
    begin: impl Fn() -> R,
    round: fn(&Store, &mut R) -> Option<Duration>,
) {
    let mut news = store.subscribe();
    let mut memory = None;
    loop {
        news.borrow_and_update();
        let there = Arc::clone(&store);
        let mut taken = memory.take().unwrap_or_else(&begin);
        let done = tokio::task::spawn_blocking(move || (round(&there, &mut taken), taken)).await;
        let wait = match done {
            Ok((again, taken)) => {
                memory = Some(taken);
                again
            }
            Err(error) => {
                tracing::error!(%error, "the controller of {whose} broke off; it is tried again");
                Some(RETRY)
            }
        };
        let clock = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = news.changed() => if changed.is_err() { return },
            () = clock => {}
        }
    }
}

/// When to look at objects again though nothing changes.
#[derive(Debug, Default)]
struct Due(BTreeMap<Key, Timestamp>);

impl Due {
    /// Looks at what has `changed` and at what is due `now`; `look` says when to look again. How long nothing is due then.
    fn round(
        &mut self,
        mut changed: BTreeSet<Key>,
        now: Timestamp,
        mut look: impl FnMut(&Key) -> Option<Timestamp>,
    ) -> Option<Duration> {
        changed.extend(self.0.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()));
        self.0.retain(|key, _| !changed.contains(key));
        for key in changed {
            if let Some(at) = look(&key) {
                self.0.insert(key, at);
            }
        }
        let first = self.0.values().min()?;
        Some(Duration::try_from(first.duration_since(now)).unwrap_or_default())
    }

    fn at(&self, key: &Key) -> Option<Timestamp> {
        self.0.get(key).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_and_what_is_due_is_looked_at_once() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |seconds| now + Duration::from_secs(seconds);
        let key = |name: &str| Key::new("r", "", name);
        let mut due = Due::default();
        let mut seen = Vec::new();
        let both = BTreeSet::from([key("late"), key("soon"), key("never")]);
        let wait = due.round(both, now, |key| {
            seen.push(key.name.clone());
            [("late", 20), ("soon", 5)].iter().find(|(name, _)| *name == key.name).map(|(_, at)| after(*at))
        });
        assert_eq!((wait, seen.len()), (Some(Duration::from_secs(5)), 3));
        let mut seen = Vec::new();
        let wait = due.round(BTreeSet::from([key("soon")]), after(6), |key| {
            seen.push(key.name.clone());
            None
        });
        assert_eq!((wait, seen), (Some(Duration::from_secs(14)), vec!["soon".to_owned()]));
        assert_eq!(due.round(BTreeSet::new(), after(21), |_| None), None, "it is no longer due");
    }
}
