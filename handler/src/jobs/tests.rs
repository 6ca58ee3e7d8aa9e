use std::io::{Read as _, Write as _};
use std::process::Command;
use std::sync::mpsc;

use super::*;

/// A pipe without a writer. A read from it blocks, like opening a FIFO or reading from a server that is gone.
struct Hang {
    from: Mutex<Option<std::io::PipeReader>>,
    to: std::io::PipeWriter,
}

impl Hang {
    fn new() -> Self {
        let (from, to) = std::io::pipe().unwrap();
        Self { from: Mutex::new(Some(from)), to }
    }

    /// A job that hangs in the kernel until [`Hang::end`].
    fn job(&self) -> impl FnOnce(&JobContext) + Send + 'static {
        let mut from = self.from.lock().unwrap().as_ref().unwrap().try_clone().unwrap();
        move |_| from.read_exact(&mut [0]).unwrap()
    }

    fn end(mut self, jobs: usize) {
        self.to.write_all(&vec![0; jobs]).unwrap();
    }
}

fn pool(deadline: u64) -> Pool {
    let deadline = Duration::from_millis(deadline);
    Pool::new(Limits {
        name: "test",
        total: 2,
        per_namespace: 1,
        threads_per_namespace: 2,
        deadline,
        stall: deadline,
    })
}

#[tokio::test]
async fn a_hanging_job_delays_no_other() {
    let (pool, hang) = (pool(50), Hang::new());
    for _ in 0..2 {
        let timed_out = pool.run("a", hang.job()).await;
        assert_eq!(timed_out, Err(JobError::TimedOut(Duration::from_millis(50))));
    }
    assert_eq!(pool.run("b", |_| 7).await, Ok(7), "its threads are its own");
    assert_eq!(pool.run("a", |_| 7).await, Err(JobError::Hanging(2)));
    hang.end(2);
    let mut again = pool.run("a", |_| 7).await;
    while again == Err(JobError::Hanging(2)) {
        again = pool.run("a", |_| 7).await;
    }
    assert_eq!(again, Ok(7), "once they have ended");
}

#[tokio::test]
async fn what_is_abandoned_ends_at_its_next_checkpoint() {
    let pool = pool(60_000);
    let (sender, events) = mpsc::channel();
    let job = move |job: &JobContext| {
        sender.send("runs").unwrap();
        while job.checkpoint().is_ok() {
            std::thread::yield_now();
        }
        sender.send("ended").unwrap();
    };
    let waits = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run("a", job).await }
    });
    let events = tokio::task::spawn_blocking(move || (events.recv().unwrap(), events));
    let (first, events) = events.await.unwrap();
    assert_eq!(first, "runs");
    waits.abort();
    assert!(waits.await.unwrap_err().is_cancelled());
    assert_eq!(events.recv().unwrap(), "ended");
    assert_eq!(pool.run("a", |_| 7).await, Ok(7), "its turn is over");
}

#[tokio::test]
async fn progress_is_what_counts_until_the_deadline() {
    let limits = Limits { stall: Duration::from_millis(50), ..pool(300).limits };
    let pool = Pool::new(limits);
    let busy = |job: &JobContext| {
        while job.checkpoint().is_ok() {
            std::thread::yield_now();
        }
    };
    assert_eq!(pool.run("a", busy).await, Err(JobError::TimedOut(limits.deadline)));
    let hang = Hang::new();
    assert_eq!(pool.run("a", hang.job()).await, Err(JobError::TimedOut(limits.stall)));
    hang.end(1);
}

#[tokio::test]
async fn a_namespace_has_its_share_and_a_panic_is_reported() {
    let pool = pool(60_000);
    let (hang, other) = (Hang::new(), Hang::new());
    let mut first = Box::pin(pool.run("a", hang.job()));
    let mut second = Box::pin(pool.run("a", other.job()));
    for _ in 0..10 {
        assert!(futures_util::poll!(&mut first).is_pending());
        assert!(futures_util::poll!(&mut second).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(pool.total.available_permits(), 1, "the second one waits for the first");
    assert_eq!(pool.run("b", |_| 7).await, Ok(7));
    hang.end(1);
    assert_eq!(first.await, Ok(()));
    other.end(1);
    assert_eq!(second.await, Ok(()));
    assert_eq!(pool.run("a", |_| panic!("on purpose")).await, Err::<(), _>(JobError::Panicked));
    assert_eq!(pool.run("c", |_| 7).await, Ok(7));
    assert_eq!(pool.namespaces.lock().unwrap().len(), 1, "who has no jobs is forgotten");
}

#[test]
fn a_program_runs_to_its_end_and_its_stderr_is_kept() {
    let job = JobContext::default();
    let shell = |line: &str| child::run(Command::new("sh").args(["-c", line]), &job).unwrap();
    let done = shell("echo complaint >&2; exit 3");
    assert_eq!((done.status.code(), done.stderr.as_str()), (Some(3), "complaint"));
    let long = shell("head -c 1000000 /dev/zero | tr '\\0' x >&2");
    assert!(long.status.success());
    assert_eq!(long.stderr.len(), 4096, "more than fits a pipe");
}

#[test]
fn a_program_ends_with_its_job() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let job = JobContext::default();
    let other = job.clone();
    let line = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 600", pid.display());
    let runs = std::thread::spawn(move || child::run(Command::new("sh").args(["-c", &line]), &other));
    while !pid.exists() {
        std::thread::yield_now();
    }
    job.cancel();
    assert_eq!(runs.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    let pid = std::fs::read_to_string(pid).unwrap();
    assert!(!std::path::Path::new(&format!("/proc/{}", pid.trim())).exists(), "it is gone, and was reaped");
}
