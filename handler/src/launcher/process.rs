//! The process runtime: a launcher as a process of this node that outlives its handler.
//!
//! A launcher is recognised after a handler restart by its stamp: the host's boot and the process's own line of
//! `/proc/self/stat`, written by the child before it becomes the launcher. Whatever happens to the handler at
//! whatever moment, a launcher that runs has its stamp on disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, setsid, waitid,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::network::netns;

/// How long a child may take to become an isolated launcher: it mounts a dozen directories.
const CONFINEMENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest error that it reports.
const LONGEST_REPORT: usize = 4096;

/// The parameters of a launcher process.
#[derive(Debug)]
pub struct Start<'a> {
    /// The `virt-launcher` binary.
    pub program: &'a Path,
    /// Its arguments.
    pub arguments: Vec<PathBuf>,
    /// Where its stdout and stderr go.
    pub log: &'a Path,
    /// The stamp file by which it is found after a restart.
    pub stamp: &'a Path,
    /// The network namespace it runs in; the host's when absent.
    pub namespace: Option<&'a Path>,
    /// The cgroups it joins, where they could be made.
    pub cgroups: &'a [PathBuf],
    /// How likely the kernel ends it when the node has no memory left: that of this process when absent.
    pub oom_score_adj: Option<i32>,
    /// How it is isolated, unless it is not.
    pub confinement: Option<Confinement<'a>>,
}

/// What an isolated launcher is and sees. It confines itself before it becomes the launcher (`virt-launcher confine`).
#[derive(Debug)]
pub struct Confinement<'a> {
    /// Its user and group.
    pub user: u32,
    /// Where it sees its sockets.
    pub directory: &'a Path,
    /// Where they are.
    pub sockets: &'a Path,
    /// Files that it sees beside those of the system.
    pub show: Vec<PathBuf>,
}

impl Confinement<'_> {
    /// The arguments of the launcher that come before its own.
    fn arguments(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = vec!["confine".into(), "--user".into(), self.user.to_string().into()];
        all.extend(["--directory".into(), self.directory.to_owned()]);
        all.extend(["--sockets".into(), self.sockets.to_owned()]);
        all.extend(self.show.iter().flat_map(|path| ["--show".into(), path.clone()]));
        all.push("--".into());
        all
    }
}

/// A running launcher process, watched by pidfd: a reused process id is never mistaken for it.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    fd: AsyncFd<OwnedFd>,
}

/// How a process ended; only its parent gets the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It was another handler's child.
    Unknown,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was ended by signal {signal}"),
            Self::Unknown => f.write_str("is gone"),
        }
    }
}

/// Starts a launcher in its own session, namespace and cgroup. Blocks until it runs.
///
/// # Errors
/// When the log or stamp cannot be created, the namespace entered, or the program started.
pub fn spawn(start: &Start<'_>) -> io::Result<Pid> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(start.log)?;
    let mut stamp =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(start.stamp)?;
    stamp.write_all(boot_id()?.as_bytes())?;
    let procs =
        start.cgroups.iter().map(|path| OpenOptions::new().write(true).open(path.join("cgroup.procs")));
    let procs: Vec<File> = procs.collect::<io::Result<_>>()?;
    let oom_score_adj = start.oom_score_adj.map(|score| score.to_string());

    let mut command = Command::new(start.program);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    // What an isolated launcher reports before it becomes one.
    let mut report = None;
    if let Some(confinement) = &start.confinement {
        let (reader, writer) = io::pipe()?;
        command.args(confinement.arguments()).stdin(writer);
        report = Some(reader);
    }
    command.args(&start.arguments);
    let prepare = move || {
        setsid()?;
        close_inherited_descriptors();
        for procs in &procs {
            rustix::io::write(procs, b"0")?;
        }
        if let Some(score) = &oom_score_adj {
            set_oom_score(score)?;
        }
        copy_own_stat(&stamp)
    };
    // SAFETY: between fork and exec only async-signal-safe calls may run: `prepare` makes plain system calls on
    // file descriptors opened before and on a stack buffer; it takes no lock and allocates nothing.
    #[expect(unsafe_code, reason = "a child of its own session can only be made between fork and exec")]
    unsafe {
        command.pre_exec(prepare)
    };
    let (namespace, is_confined) = (start.namespace.map(Path::to_owned), start.confinement.is_some());
    let spawned = netns::on_own_thread(move || {
        namespace.as_deref().map(netns::enter).transpose()?;
        if is_confined {
            unshare_process_ids().map_err(cannot_confine)?;
        }
        // The pipe closes with the command, so that its end is seen.
        command.spawn()
    });
    let started = spawned.and_then(|spawned| spawned).and_then(|child| match report {
        Some(report) => await_confinement(child, report),
        None => Ok(child),
    });
    let child = match started {
        Ok(child) => child,
        Err(error) => {
            // The child may have stamped before it found that there is no such program.
            let _ = fs::remove_file(start.stamp);
            return Err(error);
        }
    };
    i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other("the child has no id"))
}

/// Has the next child of the calling thread be the first process of a new namespace.
fn unshare_process_ids() -> io::Result<()> {
    // SAFETY: only UnshareFlags::FILES can make descriptors vanish from other threads; it is not given.
    #[expect(unsafe_code, reason = "rustix marks unshare unsafe for its FILES flag")]
    unsafe { unshare_unsafe(UnshareFlags::NEWPID) }?;
    Ok(())
}

fn cannot_confine(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!(
        "it cannot be isolated: {error}; where this host does not permit that, --launcher-isolation=none starts launchers \
         that are root on it, which is unsafe"
    ))
}

/// Waits until a child has become the launcher, which closes the pipe.
fn await_confinement(mut child: Child, mut report: PipeReader) -> io::Result<Child> {
    let deadline = Instant::now() + CONFINEMENT_TIMEOUT;
    let failure = read_until(&mut report, deadline);
    match failure {
        Ok(text) if text.is_empty() => Ok(child),
        failure => {
            let _ = child.kill();
            child.wait()?;
            Err(failure.map_or_else(cannot_confine, cannot_confine))
        }
    }
}

fn read_until(report: &mut PipeReader, deadline: Instant) -> io::Result<String> {
    let mut text = Vec::new();
    let mut chunk = [0_u8; LONGEST_REPORT];
    while text.len() < LONGEST_REPORT {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        if poll(&mut [PollFd::new(report, PollFlags::IN)], left.as_ref())? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long"));
        }
        match report.read(&mut chunk)? {
            0 => break,
            length => text.extend_from_slice(chunk.get(..length).unwrap_or_default()),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Marks everything but stdin, stdout and stderr to be closed by exec. The handler's own descriptors are so marked;
/// those that its starter left open (a lock, a pipe) must not live as long as a guest. Kernels before 5.11 cannot.
pub(super) fn close_inherited_descriptors() {
    // SAFETY: with CLOSE_RANGE_CLOEXEC the call closes nothing in this process and touches no memory.
    #[expect(unsafe_code, reason = "rustix has no close_range")]
    unsafe {
        libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
}

/// Sets how readily the kernel kills the calling process where memory is short. Only makes system calls.
///
/// # Errors
/// When the kernel does not permit it.
pub(super) fn set_oom_score(score: &str) -> io::Result<()> {
    let flags = rustix::fs::OFlags::WRONLY;
    let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, rustix::fs::Mode::empty())?;
    rustix::io::write(&file, score.as_bytes())?;
    Ok(())
}

fn copy_own_stat(stamp: &File) -> io::Result<()> {
    let stat = rustix::fs::open(c"/proc/self/stat", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty())?;
    let mut line = [0_u8; 1024];
    let length = rustix::io::read(&stat, &mut line)?;
    rustix::io::write(stamp, line.get(..length).unwrap_or_default())?;
    Ok(())
}

fn boot_id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
}

/// Writes the stamp of a process that was started elsewhere.
///
/// # Errors
/// When the process is gone, or the stamp cannot be written.
pub fn stamp(stamp: &Path, pid: Pid) -> io::Result<()> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))?;
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(stamp)?;
    file.write_all(format!("{}{stat}", boot_id()?).as_bytes())
}

/// The process of a stamp.
#[derive(Debug)]
pub enum Found {
    /// No process ever became the launcher.
    Unstarted,
    /// It was started, and is gone or of an earlier boot.
    Gone,
    /// It runs.
    Running(Process),
}

/// Finds the process that a stamp identifies.
///
/// # Errors
/// When the stamp cannot be read or the process cannot be watched.
pub fn find(stamp: &Path) -> io::Result<Found> {
    let text = match fs::read_to_string(stamp) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Unstarted),
        Err(error) => return Err(error),
    };
    // A truncated stamp: the handler or the child ended before the launcher was executed.
    let Some((boot, stat)) = text.split_once('\n') else { return Ok(Found::Unstarted) };
    let Some(then) = ProcessIdentity::parse(stat) else { return Ok(Found::Unstarted) };
    if boot != boot_id()?.trim_end() {
        return Ok(Found::Gone);
    }
    Ok(Process::open(then)?.map_or(Found::Gone, Found::Running))
}

/// A process id with the start time of its process: together unique within one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessIdentity {
    pid: Pid,
    /// Clock ticks since boot.
    start: u64,
}

impl ProcessIdentity {
    /// Reads a line of `/proc/<pid>/stat`, proc(5). The command name may hold anything, so fields count from its
    /// closing parenthesis.
    pub(super) fn parse(stat: &str) -> Option<Self> {
        let pid = Pid::from_raw(stat.split_once(' ')?.0.parse().ok()?)?;
        let (_, fields) = stat.rsplit_once(") ")?;
        // Field 3 is the first after the name; the start time is field 22.
        let start = fields.split_whitespace().nth(22 - 3)?.parse().ok()?;
        Some(Self { pid, start })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }
}

impl Process {
    fn open(identity: ProcessIdentity) -> io::Result<Option<Self>> {
        let fd = match pidfd_open(identity.pid, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Read after the pidfd was opened: if the line is the stamped process's, so is the pidfd.
        let now = match fs::read_to_string(format!("/proc/{}/stat", identity.pid.as_raw_nonzero())) {
            Ok(stat) => ProcessIdentity::parse(&stat),
            Err(_) => None,
        };
        if now != Some(identity) {
            return Ok(None);
        }
        // SAFETY: the descriptor registered is the one owned by the `OwnedFd` moved in; it is neither replaced nor
        // closed before the `AsyncFd` is dropped.
        #[expect(unsafe_code, reason = "tokio's safe constructor is deprecated")]
        let fd =
            unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)?;
        Ok(Some(Self { pid: identity.pid, fd }))
    }

    /// The process id, for logs.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until the process ends, and returns how it ended.
    pub async fn gone(&self) -> Ending {
        // An error here would mean the pidfd is not pollable, which `AsyncFd` has already ruled out.
        let _ready = self.fd.readable().await;
        self.reap()
    }

    fn reap(&self) -> Ending {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match waitid(WaitId::PidFd(self.fd.get_ref().as_fd()), options) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ending::Code(code),
                (None, Some(signal)) => Ending::Signal(signal),
                (None, None) => Ending::Unknown,
            },
            // ECHILD: it was started by an earlier handler.
            Ok(None) | Err(_) => Ending::Unknown,
        }
    }

    /// Ends the process now. A process that is gone already is success.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL).map(drop)
    }

    /// Kills the launcher and everything that it started: the processes of its own cgroup where it has one, else its
    /// descendants and its session. Processes that are gone already are success. Blocks.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill_all(&self, cgroup: Option<&Path>) -> io::Result<()> {
        let others = match cgroup {
            Some(cgroup) => super::cgroup::kill(cgroup),
            // A stopped launcher starts no processes meanwhile. It is killed last, so that its id is not reused.
            None if self.signal(Signal::STOP)? => super::descendants::kill_descendants(self.pid),
            None => Ok(()),
        };
        self.kill().and(others)
    }

    /// Asks the launcher to shut its guest down within the grace period and to exit. A process that is gone already is
    /// success.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn terminate(&self) -> io::Result<()> {
        self.signal(Signal::TERM).map(drop)
    }

    /// Returns whether the process still existed.
    fn signal(&self, signal: Signal) -> io::Result<bool> {
        match pidfd_send_signal(self.fd.get_ref(), signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
