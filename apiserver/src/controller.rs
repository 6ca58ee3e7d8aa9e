//! The reconcile loop of the built-in controllers: they run when something was written, and when a requeue is due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::store::{DiskError, Key, Object, Store};

/// Delay before a retry: of a panicked reconcile, and of objects that could not be created or written.
pub const RETRY: Duration = Duration::from_secs(10);

/// Reconciles the objects of one kind.
pub trait Controller: Send + 'static {
    /// The name of the controller, for logs.
    const NAME: &'static str;

    /// The keys of objects that may need work since the last call; on the first call, all.
    fn changed(&mut self, store: &Store) -> BTreeSet<Key>;

    /// Reconciles one object. Returns when to requeue it even if nothing changes.
    ///
    /// # Errors
    /// When something cannot be written; the object is requeued.
    fn reconcile(
        &mut self,
        store: &Store,
        object: &Arc<Object>,
        now: Timestamp,
    ) -> Result<Option<Timestamp>, DiskError>;

    /// Drops the state of a deleted object.
    fn forget(&mut self, key: &Key);
}

/// A controller with its queue of delayed objects.
#[derive(Debug, Default)]
pub struct Reconciler<C> {
    pub controller: C,
    due: Due,
}

impl<C: Controller> Reconciler<C> {
    pub fn new(controller: C) -> Self {
        Self { controller, due: Due::default() }
    }

    /// Reconciles every object that changed or is due. Returns the delay until the next one is due. Blocks.
    pub fn reconcile(&mut self, store: &Store) -> Option<Duration> {
        let now = Timestamp::now();
        let controller = &mut self.controller;
        let changed = controller.changed(store);
        self.due.take(changed, now, |key| {
            let Some(object) = store.get(key) else {
                controller.forget(key);
                return None;
            };
            controller.reconcile(store, &object, now).unwrap_or_else(|error| {
                tracing::warn!(%error, "controller {} cannot write an object: requeued", C::NAME);
                Some(retry_at(now))
            })
        })
    }

    /// Reconciles until nothing is written any more.
    #[cfg(test)]
    pub fn run_until_idle(&mut self, store: &Store) {
        for _ in 0..20 {
            let before = store.revision();
            self.reconcile(store);
            if store.revision() == before {
                return;
            }
        }
        panic!("controller {} never becomes idle", C::NAME);
    }

    /// When an object is due even if nothing changes.
    pub fn due_at(&self, key: &Key) -> Option<Timestamp> {
        self.due.at(key)
    }
}

/// When to retry what failed now.
pub fn retry_at(now: Timestamp) -> Timestamp {
    now.checked_add(RETRY).unwrap_or(now)
}

/// Runs a controller until the store is closed.
pub async fn run_controller<C: Controller>(store: Arc<Store>, begin: impl Fn() -> C) {
    let begin = || Reconciler::new(begin());
    run_with(store, C::NAME, begin, |store, reconciler| reconciler.reconcile(store)).await;
}

/// Calls `reconcile` after every change until the store is closed. It may block, returns the delay until its next call
/// should nothing change, and keeps state from one call to the next.
pub async fn run<R: Default + Send + 'static>(
    store: Arc<Store>,
    name: &'static str,
    reconcile: fn(&Store, &mut R) -> Option<Duration>,
) {
    run_with(store, name, R::default, reconcile).await;
}

/// The same with an initial state, which is also created anew after a panic.
pub async fn run_with<R: Send + 'static>(
    store: Arc<Store>,
    name: &'static str,
    begin: impl Fn() -> R,
    reconcile: fn(&Store, &mut R) -> Option<Duration>,
) {
    let mut changes = store.subscribe();
    let mut state = None;
    loop {
        changes.borrow_and_update();
        let reconciled = Arc::clone(&store);
        let mut taken = state.take().unwrap_or_else(&begin);
        let done = tokio::task::spawn_blocking(move || (reconcile(&reconciled, &mut taken), taken)).await;
        let wait = match done {
            Ok((requeue_after, taken)) => {
                state = Some(taken);
                requeue_after
            }
            Err(error) => {
                tracing::error!(%error, "controller {name} panicked: retrying");
                Some(RETRY)
            }
        };
        let requeue = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = requeue => {}
        }
    }
}

/// When objects are due even if nothing changes.
#[derive(Debug, Default)]
struct Due(BTreeMap<Key, Timestamp>);

impl Due {
    /// Reconciles what has `changed` and what is due `now`; `reconcile` returns when to requeue. Returns the delay until the
    /// next object is due.
    fn take(
        &mut self,
        mut changed: BTreeSet<Key>,
        now: Timestamp,
        mut reconcile: impl FnMut(&Key) -> Option<Timestamp>,
    ) -> Option<Duration> {
        changed.extend(self.0.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()));
        self.0.retain(|key, _| !changed.contains(key));
        for key in changed {
            if let Some(at) = reconcile(&key) {
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
    fn changed_and_due_objects_are_reconciled_once() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let after = |seconds| now + Duration::from_secs(seconds);
        let key = |name: &str| Key::new("r", "", name);
        let mut due = Due::default();
        let mut seen = Vec::new();
        let both = BTreeSet::from([key("late"), key("soon"), key("never")]);
        let wait = due.take(both, now, |key| {
            seen.push(key.name.clone());
            [("late", 20), ("soon", 5)].iter().find(|(name, _)| *name == key.name).map(|(_, at)| after(*at))
        });
        assert_eq!((wait, seen.len()), (Some(Duration::from_secs(5)), 3));
        let mut seen = Vec::new();
        let wait = due.take(BTreeSet::from([key("soon")]), after(6), |key| {
            seen.push(key.name.clone());
            None
        });
        assert_eq!((wait, seen), (Some(Duration::from_secs(14)), vec!["soon".to_owned()]));
        assert_eq!(due.take(BTreeSet::new(), after(21), |_| None), None, "it is no longer due");
    }
}
