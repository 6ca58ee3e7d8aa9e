use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use super::{CAPACITY, Completion, Engine, FileOperation};
use crate::memory::{GuestMemory, Segments};
use crate::sys::vectored;

/// The most threads of one disk.
const LIMIT: usize = 64;
/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);
/// A system call needs little.
const STACK: usize = 64 << 10;

/// Threads that carry out one operation each, and go when there is nothing to do.
pub(super) struct Threads {
    shared: Arc<Shared>,
    files: usize,
    prepared: Vec<Job>,
    running: usize,
}

struct Shared {
    files: Vec<File>,
    memory: GuestMemory,
    state: Mutex<State>,
    /// There is a job, or the end.
    work: Condvar,
    /// A job is over.
    over: Condvar,
    notify: EventFd,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    completed: Vec<Completion>,
    threads: usize,
    idle: usize,
    ended: bool,
}

struct Job {
    tag: usize,
    file: usize,
    operation: Operation,
}

enum Operation {
    Read(u64, Segments),
    Write(u64, Segments, bool),
    Sync,
}

impl Threads {
    pub(super) fn new(files: Vec<File>, memory: GuestMemory) -> io::Result<Self> {
        let count = files.len();
        let notify = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)?;
        let shared = Shared {
            files,
            memory,
            state: Mutex::default(),
            work: Condvar::new(),
            over: Condvar::new(),
            notify,
        };
        Ok(Self { shared: Arc::new(shared), files: count, prepared: Vec::new(), running: 0 })
    }
}

impl Threads {
    /// Reads what the host has in memory: no thread is faster. Whether it had it.
    fn read_cached(&self, file: usize, to: &Segments, offset: u64) -> io::Result<bool> {
        let file = self.shared.files.get(file).ok_or(io::ErrorKind::NotFound)?;
        Ok(vectored::read_cached_at(file.as_fd(), &to.io_vecs(&self.shared.memory)?, offset))
    }

    /// An operation was over at once.
    fn completed(&mut self, tag: usize, moved: u64) -> io::Result<()> {
        self.running += 1;
        self.shared.lock().completed.push(Completion { tag, moved: Ok(moved) });
        self.shared.notify.write(1)
    }
}

impl Engine for Threads {
    fn prepare(&mut self, tag: usize, file: usize, operation: FileOperation<'_>) -> io::Result<()> {
        if tag >= CAPACITY {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = Some(file).filter(|file| *file < self.files).ok_or(io::ErrorKind::NotFound)?;
        let operation = match operation {
            FileOperation::Read { offset, to } => {
                if self.read_cached(file, to, offset)? {
                    return self.completed(tag, to.len());
                }
                Operation::Read(offset, to.clone())
            }
            FileOperation::Write { offset, from, durable } => Operation::Write(offset, from.clone(), durable),
            FileOperation::Sync => Operation::Sync,
        };
        self.prepared.push(Job { tag, file, operation });
        self.running += 1;
        Ok(())
    }

    fn commit(&mut self) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.jobs.extend(self.prepared.drain(..));
        let missing = state.jobs.len().saturating_sub(state.idle).min(LIMIT.saturating_sub(state.threads));
        for _ in 0..missing {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("disk".to_owned()).stack_size(STACK);
            match thread.spawn(move || shared.work()) {
                Ok(_) => state.threads += 1,
                // Those that there are do it, if later.
                Err(error) if state.threads > 0 => {
                    tracing::debug!(%error, "a disk has fewer threads than it needs");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        drop(state);
        self.shared.work.notify_all();
        Ok(())
    }

    fn take_completed(&mut self, completed: &mut Vec<Completion>) {
        // Before the look at what is over, so that nothing is missed.
        let _ = self.shared.notify.read();
        let mut state = self.shared.lock();
        self.running = self.running.saturating_sub(state.completed.len());
        completed.append(&mut state.completed);
    }

    fn wait(&mut self) -> io::Result<()> {
        if self.running == 0 {
            return Ok(());
        }
        let state = self.shared.lock();
        let waited = self.shared.over.wait_while(state, |state| state.completed.is_empty());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    fn source(&self) -> BorrowedFd<'_> {
        #[expect(unsafe_code, reason = "an EventFd lends its descriptor as a number only")]
        // SAFETY: it is open as long as `self` is borrowed.
        let fd = unsafe { BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(&self.shared.notify)) };
        fd
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let mut over = Vec::new();
        self.running -= self.prepared.len();
        while self.running > 0 {
            let _ = self.wait();
            self.take_completed(&mut over);
        }
        self.shared.lock().ended = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a thread.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                let moved = self.carry_out(&job);
                state = self.lock();
                state.completed.push(Completion { tag: job.tag, moved });
                self.over.notify_all();
                if let Err(error) = self.notify.write(1) {
                    tracing::error!(%error, "a disk cannot tell that an operation is over");
                }
                continue;
            }
            if state.ended {
                break;
            }
            state.idle += 1;
            let waits = |state: &mut State| state.jobs.is_empty() && !state.ended;
            let waited = self.work.wait_timeout_while(state, IDLE, waits);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = now;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }

    fn carry_out(&self, job: &Job) -> io::Result<u64> {
        let file = self.files.get(job.file).ok_or(io::ErrorKind::NotFound)?;
        match &job.operation {
            Operation::Read(offset, to) => {
                vectored::read_exact_at(file.as_fd(), to.io_vecs(&self.memory)?, *offset)?;
                Ok(to.len())
            }
            Operation::Write(offset, from, durable) => {
                vectored::write_all_at(file.as_fd(), from.io_vecs(&self.memory)?, *offset)?;
                if *durable {
                    file.sync_data()?;
                }
                Ok(from.len())
            }
            Operation::Sync => file.sync_data().map(|()| 0),
        }
    }
}
