//! The loop of a controller.

use std::error::Error;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use crate::queue::WorkQueue;

/// Delay after the first failure, and the longest.
pub const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(300));

/// After how many failures a key is reported.
const PERSISTENT: u32 = 6;

/// When an object is reconciled again without a change.
pub type Requeue = Option<Duration>;

/// Brings objects of one kind to what they are to be.
pub trait Reconcile: Send + Sync {
    /// What identifies an object.
    type Key: Clone + Ord + Hash + Send + Sync + std::fmt::Display + 'static;
    /// Why it is to be tried again.
    type Error: Error + Send + 'static;

    /// Of the controller, in log messages and metrics.
    const NAME: &'static str;

    /// Reconciles an object, which may be gone.
    fn reconcile(&self, key: &Self::Key) -> impl Future<Output = Result<Requeue, Self::Error>> + Send;
}

/// A queue with the usual delays.
pub fn queue<K: Clone + Ord + Hash>() -> Arc<WorkQueue<K>> {
    Arc::new(WorkQueue::new(RETRY.0, RETRY.1))
}

/// Reconciles what is in the queue with a number of workers, until it is dropped.
pub async fn run<R: Reconcile>(reconciler: &R, queue: &WorkQueue<R::Key>, workers: usize) {
    queue.show(R::NAME);
    let workers: FuturesUnordered<_> = (0..workers).map(|_| work(reconciler, queue)).collect();
    workers.for_each(|()| async {}).await;
}

async fn work<R: Reconcile>(reconciler: &R, queue: &WorkQueue<R::Key>) {
    loop {
        let key = queue.next().await;
        match reconciler.reconcile(&key).await {
            Ok(requeue) => {
                queue.forget(&key);
                if let Some(delay) = requeue {
                    queue.add_after(key.clone(), delay);
                }
            }
            Err(error) => {
                let error = &error as &dyn Error;
                let failures = queue.add_rate_limited(key.clone());
                match failures {
                    // Conflicts with other writers are usual, and over after a few attempts.
                    PERSISTENT => {
                        tracing::warn!(error, object = %key, controller = R::NAME, failures, "a reconciliation keeps failing");
                    }
                    _ => {
                        tracing::debug!(error, object = %key, controller = R::NAME, "a reconciliation is tried again");
                    }
                }
            }
        }
        queue.done(&key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::time::Instant;

    use super::*;

    #[derive(Default)]
    struct Fails {
        attempts: AtomicUsize,
        succeeded: Notify,
    }

    impl Reconcile for Fails {
        type Key = String;
        type Error = std::io::Error;
        const NAME: &'static str = "test";

        async fn reconcile(&self, _: &String) -> Result<Requeue, Self::Error> {
            if self.attempts.fetch_add(1, Ordering::Relaxed) < 3 {
                return Err(std::io::Error::other("not yet"));
            }
            self.succeeded.notify_one();
            Ok(Some(Duration::from_secs(1000)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_retried_and_successes_requeued_as_requested() {
        let (fails, queue) = (Fails::default(), queue());
        queue.add("key".to_owned());
        let start = Instant::now();
        tokio::select! {
            () = run(&fails, &queue, 2) => {}
            () = async {
                fails.succeeded.notified().await;
                assert_eq!(start.elapsed(), RETRY.0 * 7, "after 1, 2 and 4 delays");
                fails.succeeded.notified().await;
            } => {}
        }
        assert_eq!(fails.attempts.load(Ordering::Relaxed), 5);
        assert!(start.elapsed() >= Duration::from_secs(1000));
    }
}
