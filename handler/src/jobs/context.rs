use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The context of a job: it reports cancellation and records progress.
#[derive(Debug, Clone)]
pub struct JobContext(Arc<State>);

#[derive(Debug)]
struct State {
    cancelled: AtomicBool,
    started: Instant,
    /// The time of the last checkpoint, since the start.
    milliseconds: AtomicU64,
}

impl Default for JobContext {
    fn default() -> Self {
        let started = Instant::now();
        Self(Arc::new(State { cancelled: AtomicBool::new(false), started, milliseconds: AtomicU64::new(0) }))
    }
}

impl JobContext {
    /// Records progress and checks for cancellation; called between two chunks of work.
    ///
    /// # Errors
    /// When the job was cancelled: it has to stop and to remove what it has begun.
    pub fn checkpoint(&self) -> io::Result<()> {
        if self.0.cancelled.load(Ordering::Relaxed) {
            // Not `Interrupted`, upon which readers of the standard library try again.
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        let passed = u64::try_from(self.0.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.milliseconds.store(passed, Ordering::Relaxed);
        Ok(())
    }

    /// The same reader with a checkpoint before every read.
    pub fn checked<R: Read>(&self, inner: R) -> Checked<R> {
        Checked { inner, context: self.clone() }
    }

    pub(crate) fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }

    /// The time of the last checkpoint, since the job's start.
    pub(super) fn last_checkpoint(&self) -> Duration {
        Duration::from_millis(self.0.milliseconds.load(Ordering::Relaxed))
    }
}

/// A reader that ends with its job.
#[derive(Debug)]
pub struct Checked<R> {
    inner: R,
    context: JobContext,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.context.checkpoint()?;
        self.inner.read(into)
    }
}
