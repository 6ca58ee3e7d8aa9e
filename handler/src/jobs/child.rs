//! Programs that jobs run.

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};

use super::JobContext;

/// How soon a program ends that nobody waits for any more.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Of what a program complains, this many bytes are kept.
const COMPLAINT: usize = 4096;

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

/// Runs a program to its end. It is killed when the job is to end, and when this process does.
///
/// # Errors
/// When it cannot be started or watched, and when the job is to end.
pub fn run(command: &mut Command, job: &JobContext) -> io::Result<Finished> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only async-signal-safe calls may run, and this is one plain system call.
    #[expect(unsafe_code, reason = "only the child itself can ask to die with its parent")]
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?))
    };
    let mut child = Running(command.spawn()?);
    let pidfd = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty())?;
    let mut stderr = child.0.stderr.take();
    if let Some(stderr) = &stderr {
        fcntl_setfl(stderr, OFlags::NONBLOCK)?;
    }
    let mut complaint = Vec::new();
    loop {
        job.checkpoint()?;
        let mut waiting = vec![PollFd::new(&pidfd, PollFlags::IN)];
        waiting.extend(stderr.as_ref().map(|stderr| PollFd::from_borrowed_fd(stderr.as_fd(), PollFlags::IN)));
        match poll(&mut waiting, Some(&PATIENCE)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        // First, so that what it wrote before it ended is read after that.
        let ended = child.0.try_wait()?;
        if stderr.as_mut().is_some_and(|stderr| drain(stderr, &mut complaint)) {
            stderr = None;
        }
        if let Some(status) = ended {
            return Ok(Finished { status, stderr: String::from_utf8_lossy(&complaint).trim().to_owned() });
        }
    }
}

/// Reads what is there; whether nothing more will come.
fn drain(stderr: &mut ChildStderr, complaint: &mut Vec<u8>) -> bool {
    let mut chunk = [0; COMPLAINT];
    loop {
        match stderr.read(&mut chunk) {
            Ok(0) => return true,
            Ok(read) => {
                let room = COMPLAINT.saturating_sub(complaint.len());
                complaint.extend(chunk.iter().take(read.min(room)));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
        }
    }
}
