//! A process that belongs to a VM: QEMU, or one beside the hypervisor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

/// How much of its stderr a fault carries.
const STDERR_TAIL: usize = 4096;

/// A process that runs; killed when dropped.
#[derive(Debug)]
pub(super) struct ChildProcess {
    child: Child,
    /// Ends with the tail of its stderr.
    stderr: JoinHandle<String>,
}

impl ChildProcess {
    /// Starts a program with these descriptors, which the caller has open meanwhile. It dies with the launcher, whose log has
    /// its stderr.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn spawn(
        mut command: Command,
        program: &'static str,
        inherited: Vec<RawFd>,
    ) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A signal for our group is for us: QEMU would take SIGTERM for a power cut.
            .process_group(0)
            .kill_on_drop(true);
        before_exec(&mut command, inherited);
        let mut child = command.spawn()?;
        info!(program, pid = child.id(), "process started");
        let stderr = match child.stderr.take() {
            Some(pipe) => tokio::spawn(tail(pipe, program)),
            None => tokio::spawn(std::future::ready(String::new())),
        };
        Ok(Self { child, stderr })
    }

    /// Its ID; `None` once it was waited for.
    pub(super) fn id(&self) -> Option<i32> {
        self.child.id().and_then(|id| i32::try_from(id).ok())
    }

    /// Waits for its end, and says how it came. May be cancelled.
    pub(super) async fn ended(&mut self, name: &str) -> String {
        let status = self.child.wait().await.ok();
        let stderr = (&mut self.stderr).await.unwrap_or_default();
        with_stderr(&format!("{name} {}", describe_status(status)), &stderr)
    }

    /// Waits until it has ended by itself; at the deadline it is killed.
    pub(super) async fn end(&mut self, deadline: Instant) -> Option<ExitStatus> {
        if let Ok(status) = timeout_at(deadline, self.child.wait()).await {
            return status.ok();
        }
        if let Some(pid) = self.id().and_then(Pid::from_raw) {
            // Fails only when it is gone already.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        self.child.wait().await.ok()
    }

    /// The same, with the tail of its stderr.
    pub(super) async fn reap(mut self, deadline: Instant) -> (Option<ExitStatus>, String) {
        let status = self.end(deadline).await;
        (status, self.stderr.await.unwrap_or_default())
    }
}

/// In the child: die with the launcher, and keep these descriptors, which the caller has open until the child exists.
fn before_exec(command: &mut Command, inherited: Vec<RawFd>) {
    let parent = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The launcher may have died before the line above.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        for &fd in &inherited {
            keep_open(fd)?;
        }
        Ok(())
    };
    #[expect(unsafe_code, reason = "pre_exec is the only way to do something between fork and exec")]
    // SAFETY: between fork and exec only async-signal-safe work is allowed; `prepare` makes system calls through
    // rustix, which wraps none of them in a lock or an allocation, and walks a vector that exists already.
    unsafe {
        command.pre_exec(prepare);
    }
}

fn keep_open(fd: RawFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "the number of a descriptor crosses fork, its owner does not")]
    // SAFETY: callers of `before_exec` own the descriptor until the child exists, and this runs before its exec.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(fcntl_setfd(fd, FdFlags::empty())?)
}

/// Logs a program's stderr, and keeps its end.
async fn tail(pipe: ChildStderr, program: &'static str) -> String {
    let mut lines = BufReader::new(pipe);
    let mut last = VecDeque::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is cut, not collected.
        match (&mut lines).take(STDERR_TAIL as u64).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {
                warn!(target: "qemu", program, "{}", String::from_utf8_lossy(&line).trim_end());
                last.extend(&line);
                last.drain(..last.len().saturating_sub(STDERR_TAIL));
            }
        }
    }
    String::from_utf8_lossy(last.make_contiguous()).into_owned()
}

/// `what`, followed by a program's stderr.
pub(super) fn with_stderr(what: &str, stderr: &str) -> String {
    match stderr.trim() {
        "" => what.to_owned(),
        text => format!("{what}: {}", text.replace('\n', "; ")),
    }
}

/// How a process went, for people.
pub(super) fn describe_status(status: Option<ExitStatus>) -> String {
    match status.map(|status| (status.code(), status.signal())) {
        Some((_, Some(signal))) => format!("was killed by signal {signal}"),
        Some((Some(code), None)) => format!("exited with code {code}"),
        Some((None, None)) | None => "is gone".to_owned(),
    }
}
