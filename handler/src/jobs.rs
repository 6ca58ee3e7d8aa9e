//! Blocking host operations on behalf of VMIs: opening what a manifest names, unpacking images, running `qemu-img`.
//!
//! Such an operation may never return: a read from a server that is gone cannot be interrupted. Each job therefore runs
//! on its own thread, has a deadline, and can be abandoned. Its caller then continues at once, its permit of the pool
//! is free, and the thread ends at its next [`JobContext::checkpoint`] or when its system call returns. The number of
//! such threads is limited for each namespace.

pub mod child;
mod context;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Span;

pub use context::{Checked, JobContext};

/// How many jobs a pool runs and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The name of its threads.
    pub name: &'static str,
    /// Jobs that run at the same time.
    pub total: usize,
    /// Of these, jobs of one namespace.
    pub per_namespace: usize,
    /// Threads of one namespace, including abandoned threads that hang.
    pub threads_per_namespace: usize,
    /// How long a job may take from its start.
    pub deadline: Duration,
    /// How long it may go without a checkpoint.
    pub stall: Duration,
}

/// Inspects files of the node and creates small ones.
const QUICK: Limits = Limits {
    name: "storage",
    total: 32,
    per_namespace: 16,
    threads_per_namespace: 32,
    deadline: Duration::from_secs(60),
    stall: Duration::from_secs(60),
};

/// Unpacks images of gigabytes.
const IMPORTS: Limits = Limits {
    name: "import",
    total: 4,
    per_namespace: 2,
    threads_per_namespace: 16,
    deadline: Duration::from_secs(60 * 60),
    // The last write to a slow disk reaches no checkpoint while it waits for what was written before it.
    stall: Duration::from_secs(5 * 60),
};

/// The pools of a node.
#[derive(Debug, Clone)]
pub struct Jobs {
    /// For operations that normally take milliseconds.
    pub quick: Pool,
    /// For operations that take minutes.
    pub imports: Pool,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { quick: Pool::new(QUICK), imports: Pool::new(IMPORTS) }
    }
}

/// Why a job has no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JobError {
    /// It took too long or hung, and was cancelled.
    #[error("timed out after {} s", .0.as_secs())]
    TimedOut(Duration),
    /// Too many earlier jobs of its namespace have not ended.
    #[error("timed out: {0} earlier operations of this namespace hang")]
    Hanging(usize),
    /// It panicked.
    #[error("the operation broke off")]
    Panicked,
    /// No thread can be started.
    #[error("the node has no thread for it")]
    NoThread,
}

/// Runs jobs on threads of its own, as many as its [`Limits`] allow. The others wait for their turn.
#[derive(Debug, Clone)]
pub struct Pool {
    limits: Limits,
    total: Arc<Semaphore>,
    namespaces: Arc<Mutex<BTreeMap<String, Namespace>>>,
}

/// The free permits of a namespace.
#[derive(Debug, Clone)]
struct Namespace {
    active: Arc<Semaphore>,
    threads: Arc<Semaphore>,
}

/// Cancels a job when its caller stops waiting.
struct CancelOnDrop(JobContext);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Pool {
    /// A pool without jobs.
    pub fn new(limits: Limits) -> Self {
        Self { limits, total: Arc::new(Semaphore::new(limits.total)), namespaces: Arc::default() }
    }

    /// Runs a job of a namespace once it is its turn. Dropping the future abandons the job.
    ///
    /// # Errors
    /// When it takes too long, or cannot be run.
    pub async fn run<T: Send + 'static>(
        &self,
        namespace: &str,
        job: impl FnOnce(&JobContext) -> T + Send + 'static,
    ) -> Result<T, JobError> {
        let share = self.share(namespace);
        let _active = acquire(Arc::clone(&share.active)).await?;
        // Only abandoned threads hold a permit for longer than the deadline.
        let thread = timeout(self.limits.deadline, acquire(share.threads))
            .await
            .map_err(|_| JobError::Hanging(self.limits.threads_per_namespace))??;
        // Held by the caller and not by the thread: an abandoned job that hangs does not block others.
        let _turn = acquire(Arc::clone(&self.total)).await?;

        let context = JobContext::default();
        let _abandon = CancelOnDrop(context.clone());
        let (sender, receiver) = oneshot::channel();
        let (given, span) = (context.clone(), Span::current());
        let run = move || {
            let _thread = thread;
            let done = span.in_scope(|| job(&given));
            // The caller may have stopped waiting.
            let _ = sender.send(done);
        };
        let spawned = std::thread::Builder::new().name(self.limits.name.to_owned()).spawn(run);
        spawned.map_err(|_| JobError::NoThread)?;
        self.wait(receiver, &context).await
    }

    async fn wait<T>(&self, mut receiver: oneshot::Receiver<T>, context: &JobContext) -> Result<T, JobError> {
        let Limits { deadline, stall, .. } = self.limits;
        let started = Instant::now();
        loop {
            let stalled = started + context.last_checkpoint() + stall;
            tokio::select! {
                done = &mut receiver => return done.map_err(|_| JobError::Panicked),
                () = sleep_until(stalled.min(started + deadline)) => {}
            }
            if started.elapsed() >= deadline {
                return Err(JobError::TimedOut(deadline));
            }
            if started.elapsed() >= context.last_checkpoint() + stall {
                return Err(JobError::TimedOut(stall));
            }
        }
    }

    fn share(&self, namespace: &str) -> Namespace {
        let Limits { per_namespace, threads_per_namespace, .. } = self.limits;
        let mut namespaces = self.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop the entries of idle namespaces.
        namespaces.retain(|_, share| {
            Arc::strong_count(&share.active) > 1
                || share.active.available_permits() < per_namespace
                || share.threads.available_permits() < threads_per_namespace
        });
        let fresh = || Namespace {
            active: Arc::new(Semaphore::new(per_namespace)),
            threads: Arc::new(Semaphore::new(threads_per_namespace)),
        };
        namespaces.entry(namespace.to_owned()).or_insert_with(fresh).clone()
    }
}

/// None of these semaphores is ever closed.
async fn acquire(semaphore: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, JobError> {
    semaphore.acquire_owned().await.map_err(|_| JobError::Panicked)
}

#[cfg(test)]
mod tests;
