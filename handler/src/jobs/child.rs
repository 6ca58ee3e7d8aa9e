//! Programs that jobs run.

use std::io::{self, Read};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};

use super::JobContext;

/// How often a cancelled job is checked for.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How many bytes of standard error are kept.
const STDERR_LIMIT: usize = 4096;

/// How a program ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code or signal.
    pub status: ExitStatus,
    /// The beginning of what it wrote to standard error.
    pub stderr: String,
}

/// Killed and reaped when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only where it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end. It is killed when the job is cancelled, and when this process ends.
///
/// # Errors
/// When it cannot be started or watched, and when the job is cancelled.
pub fn run(command: &mut Command, job: &JobContext) -> io::Result<Finished> {
    watch(command.stdout(Stdio::null()), job, &mut |_| {})
}

/// The same; `output` gets what it writes to standard output, as it comes.
///
/// # Errors
/// As those of [`run`].
pub fn run_with_output(
    command: &mut Command,
    job: &JobContext,
    output: &mut dyn FnMut(&[u8]),
) -> io::Result<Finished> {
    watch(command.stdout(Stdio::piped()), job, output)
}

fn watch(command: &mut Command, job: &JobContext, output: &mut dyn FnMut(&[u8])) -> io::Result<Finished> {
    command.stderr(Stdio::piped());
    // SAFETY: between fork and exec only async-signal-safe calls may run, and this is one plain system call.
    #[expect(unsafe_code, reason = "only the child itself can ask to die with its parent")]
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?))
    };
    let mut child = Running(command.spawn()?);
    let pidfd = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty())?;
    let (mut stdout, mut stderr) = (child.0.stdout.take(), child.0.stderr.take());
    if let Some(stdout) = &stdout {
        fcntl_setfl(stdout, OFlags::NONBLOCK)?;
    }
    if let Some(stderr) = &stderr {
        fcntl_setfl(stderr, OFlags::NONBLOCK)?;
    }
    let mut errors = Vec::new();
    let mut keep = |read: &[u8]| {
        let space = STDERR_LIMIT.saturating_sub(errors.len());
        errors.extend(read.iter().take(space));
    };
    loop {
        job.checkpoint()?;
        let mut waiting = vec![PollFd::new(&pidfd, PollFlags::IN)];
        let streams =
            [stdout.as_ref().map(|stream| stream.as_fd()), stderr.as_ref().map(|stream| stream.as_fd())];
        let streams = streams.into_iter().flatten();
        waiting.extend(streams.map(|stream| PollFd::from_borrowed_fd(stream, PollFlags::IN)));
        match poll(&mut waiting, Some(&POLL_INTERVAL)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // First, so that what it wrote before it ended is read after that.
        let ended = child.0.try_wait()?;
        if stdout.as_mut().is_some_and(|stdout| drain(stdout, output)) {
            stdout = None;
        }
        if stderr.as_mut().is_some_and(|stderr| drain(stderr, &mut keep)) {
            stderr = None;
        }
        if let Some(status) = ended {
            return Ok(Finished { status, stderr: String::from_utf8_lossy(&errors).trim().to_owned() });
        }
    }
}

/// Reads the available output. Returns whether the stream has ended.
fn drain(stream: &mut impl Read, output: &mut dyn FnMut(&[u8])) -> bool {
    let mut chunk = [0; STDERR_LIMIT];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => return true,
            Ok(read) => output(chunk.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}
