//! Work queue of a controller.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::queues::{self, Counts, Measured, Measures};

/// Keys that wait to be reconciled. As client-go's rate limiting queue: a key that is added several times is handed out
/// once, no key is handed out to two workers, and a key that failed waits exponentially longer.
#[derive(Debug)]
pub struct WorkQueue<K> {
    state: Arc<Mutex<State<K>>>,
    changed: Notify,
    /// Delay after the first failure, and the longest delay.
    backoff: (Duration, Duration),
}

#[derive(Debug)]
struct State<K> {
    /// With the time when they became ready.
    ready: VecDeque<(K, Instant)>,
    /// Ready, or to be ready again once their worker is done.
    dirty: BTreeSet<K>,
    /// With the time when their worker began.
    processing: BTreeMap<K, Instant>,
    /// By the time when they are ready.
    delayed: BTreeSet<(Instant, K)>,
    /// The earliest time of each delayed key.
    due: BTreeMap<K, Instant>,
    failures: HashMap<K, u32>,
    counts: Counts,
}

impl<K: Clone + Ord + Hash> WorkQueue<K> {
    /// An empty queue with these delays after the first failure and at most.
    pub fn new(first: Duration, longest: Duration) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: BTreeSet::new(),
            processing: BTreeMap::new(),
            delayed: BTreeSet::new(),
            due: BTreeMap::new(),
            failures: HashMap::new(),
            counts: Counts::default(),
        };
        Self { state: Arc::new(Mutex::new(state)), changed: Notify::new(), backoff: (first, longest) }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the metrics of this process show the queue under a name.
    pub(crate) fn show(&self, name: &'static str)
    where
        K: Send + 'static,
    {
        let state: Weak<Mutex<State<K>>> = Arc::downgrade(&self.state);
        queues::show(name, state);
    }

    /// Adds a key.
    pub fn add(&self, key: K) {
        if self.lock().add(key) {
            self.changed.notify_one();
        }
    }

    /// Adds a key after a while, or earlier when that was asked for before.
    pub fn add_after(&self, key: K, delay: Duration) {
        let at = Instant::now() + delay;
        let mut state = self.lock();
        if state.due.get(&key).is_some_and(|due| *due <= at) {
            return;
        }
        if let Some(later) = state.due.insert(key.clone(), at) {
            state.delayed.remove(&(later, key.clone()));
        }
        state.delayed.insert((at, key));
        drop(state);
        self.changed.notify_one();
    }

    /// Adds a key that failed, after a delay that doubles with each failure. How often it has failed since it succeeded.
    pub fn add_rate_limited(&self, key: K) -> u32 {
        let mut state = self.lock();
        let failures = state.failures.entry(key.clone()).or_default();
        let delay = self.backoff.0.saturating_mul(1 << (*failures).min(20)).min(self.backoff.1);
        *failures = failures.saturating_add(1);
        let failures = *failures;
        state.counts.retries = state.counts.retries.saturating_add(1);
        drop(state);
        self.add_after(key, delay);
        failures
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &K) {
        self.lock().failures.remove(key);
    }

    /// Returns the next key. [`done`](Self::done) must follow.
    pub async fn next(&self) -> K {
        loop {
            let changed = self.changed.notified();
            let due = {
                let mut state = self.lock();
                let now = Instant::now();
                state.promote(now);
                if let Some((key, since)) = state.ready.pop_front() {
                    state.dirty.remove(&key);
                    state.processing.insert(key.clone(), now);
                    state.counts.queued.observe(now.duration_since(since).as_secs_f64());
                    if !state.ready.is_empty() {
                        // One permit may stand for several keys.
                        self.changed.notify_one();
                    }
                    return key;
                }
                state.delayed.first().map(|(at, _)| *at)
            };
            match due {
                None => changed.await,
                Some(at) => {
                    tokio::select! {
                        () = changed => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// Marks a key as reconciled. It is ready again if it was added meanwhile.
    pub fn done(&self, key: &K) {
        let mut state = self.lock();
        if let Some(since) = state.processing.remove(key) {
            state.counts.worked.observe(since.elapsed().as_secs_f64());
        }
        if state.dirty.contains(key) {
            state.ready.push_back((key.clone(), Instant::now()));
            drop(state);
            self.changed.notify_one();
        }
    }
}

impl<K: Clone + Ord + Hash> State<K> {
    /// Whether a key became ready.
    fn add(&mut self, key: K) -> bool {
        if !self.dirty.insert(key.clone()) {
            return false;
        }
        self.counts.adds = self.counts.adds.saturating_add(1);
        if self.processing.contains_key(&key) {
            return false;
        }
        self.ready.push_back((key, Instant::now()));
        true
    }

    fn promote(&mut self, now: Instant) {
        while self.delayed.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, key)) = self.delayed.pop_first() {
                self.due.remove(&key);
                self.add(key);
            }
        }
    }
}

impl<K: Send> Measured for Mutex<State<K>> {
    fn measures(&self) -> Measures {
        let state = self.lock().unwrap_or_else(PoisonError::into_inner);
        Measures {
            depth: state.ready.len().try_into().unwrap_or(u64::MAX),
            running: state.processing.values().map(Instant::elapsed).collect(),
            counts: state.counts.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const FIRST: Duration = Duration::from_secs(1);

    fn queue() -> WorkQueue<&'static str> {
        WorkQueue::new(FIRST, FIRST * 5)
    }

    fn now(queue: &WorkQueue<&'static str>) -> Option<&'static str> {
        queue.next().now_or_never()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_handed_out_once_and_to_one_worker() {
        let queue = queue();
        for key in ["a", "b", "a"] {
            queue.add(key);
        }
        assert_eq!((now(&queue), now(&queue), now(&queue)), (Some("a"), Some("b"), None));
        queue.add("a");
        assert_eq!(now(&queue), None, "its worker is not done");
        queue.done(&"b");
        queue.done(&"a");
        assert_eq!((now(&queue), now(&queue)), (Some("a"), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_fails_waits_longer_each_time() {
        let queue = queue();
        for seconds in [1, 2, 4, 5, 5] {
            let start = Instant::now();
            queue.add_rate_limited("a");
            assert_eq!(queue.next().await, "a");
            assert_eq!(start.elapsed().as_secs(), seconds);
            queue.done(&"a");
        }
        queue.forget(&"a");
        let start = Instant::now();
        queue.add_rate_limited("a");
        assert_eq!((queue.next().await, start.elapsed()), ("a", FIRST));
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_times_counts() {
        let queue = queue();
        let start = Instant::now();
        for seconds in [5, 2, 9] {
            queue.add_after("a", Duration::from_secs(seconds));
        }
        assert_eq!((queue.next().await, start.elapsed().as_secs()), ("a", 2));
        queue.done(&"a");
        let next = tokio::time::timeout(Duration::from_secs(60), queue.next()).await;
        assert!(next.is_err(), "it was ready once");
    }

    #[tokio::test(start_paused = true)]
    async fn several_workers_share_a_queue() {
        let queue = queue();
        let (one, other) = (queue.next(), queue.next());
        let add = async {
            queue.add("a");
            queue.add("b");
        };
        let (one, other, ()) = tokio::join!(one, other, add);
        assert_eq!(BTreeSet::from([one, other]), BTreeSet::from(["a", "b"]));
    }
}
