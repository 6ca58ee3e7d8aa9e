//! What controllers have in common: they look again when something was written, and when it is time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::store::{Key, Store};

/// How soon a round that broke off is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Goes round until the store is gone. A round may block; it says how long nothing is to be done if nothing changes, and
/// remembers what it likes from one to the next.
pub(crate) async fn go<R: Default + Send + 'static>(
    store: Arc<Store>,
    whose: &'static str,
    round: fn(&Store, &mut R) -> Option<Duration>,
) {
    go_from(store, whose, R::default, round).await;
}

/// The same where there is something to remember from the beginning, and after a round that broke off.
pub(crate) async fn go_from<R: Send + 'static>(
    store: Arc<Store>,
    whose: &'static str,
    begin: impl Fn() -> R,
    round: fn(&Store, &mut R) -> Option<Duration>,
) {
    let mut news = store.news();
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
pub(crate) struct Due(BTreeMap<Key, Timestamp>);

impl Due {
    /// Looks at what has `changed` and at what is due `now`; `look` says when to look again. How long nothing is due then.
    pub(crate) fn round(
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

    #[cfg(test)]
    pub(crate) fn at(&self, key: &Key) -> Option<Timestamp> {
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
