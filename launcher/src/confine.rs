//! Confines this process, before it becomes the launcher of one VM: the node agent starts it as root in its own process
//! ID namespace and in the VM's network namespace. It makes its other namespaces, sees only the files of the system and the
//! directory of its sockets from then on, and gives up every privilege.
//!
//! In a Pod, the container runtime does this, but for the rules of landlock.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use vireo_privileges::Unprivileged;
use vireo_privileges::root::{DirectoryAccess, Root, RootError};

use crate::fault::chain;
use crate::landlock;

/// The variables of the environment that the launcher keeps: those that its options have, and those for its log.
const KEPT_VARIABLES: [&str; 7] = [
    "PATH",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "VIREO_BIOS",
    "VIREO_EFI_CODE",
    "VIREO_EFI_VARIABLES",
    "VIREO_SECCOMP",
];
/// Those of them that name a file which the launcher opens.
const FILE_VARIABLES: [&str; 3] = ["VIREO_BIOS", "VIREO_EFI_CODE", "VIREO_EFI_VARIABLES"];

/// The limits of the launcher and of what it starts.
const LIMITS: [Limit; 4] = [
    Limit { resource: Resource::Core, most: 0, reason: "a core would have the guest's memory" },
    Limit {
        resource: Resource::Nproc,
        most: 4096,
        reason: "processes and threads: vCPUs, workers of disks and viewers are hundreds at most",
    },
    Limit {
        resource: Resource::Memlock,
        most: 64 << 20,
        reason: "locked bytes: the rings of asynchronous I/O, on kernels before 5.12",
    },
    Limit { resource: Resource::Msgqueue, most: 0, reason: "no message queues are used" },
];

/// A limit of setrlimit(2).
struct Limit {
    resource: Resource,
    most: u64,
    #[cfg_attr(not(test), expect(dead_code, reason = "the page of the process has it"))]
    reason: &'static str,
}

/// The namespaces that a launcher makes for itself, and what each is for. The node agent has made two before: that of process IDs
/// and that of the VM's network.
const NAMESPACES: [(UnshareFlags, &str); 3] = [
    (UnshareFlags::NEWNS, "mounts: it sees the files below"),
    (UnshareFlags::NEWIPC, "message queues and shared memory of System V and POSIX"),
    (UnshareFlags::NEWUTS, "host name"),
];

/// How a launcher is confined.
#[derive(Debug, clap::Args)]
pub struct Confinement {
    /// The user and the group that it becomes.
    #[arg(long, value_name = "UID")]
    user: u32,
    /// The VM's directory, where it sees its sockets.
    #[arg(long, value_name = "DIR")]
    directory: PathBuf,
    /// Where its sockets are on the node.
    #[arg(long, value_name = "DIR")]
    sockets: PathBuf,
    /// A file that it sees beside those of the system.
    #[arg(long, value_name = "PATH")]
    show: Vec<PathBuf>,
    /// What it is started with.
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// Why this process cannot be confined.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// It would not be the first process of a namespace.
    #[error("this process has no process ID namespace of its own: only virt-handler starts it")]
    NoNamespace,
    /// It cannot have a root directory of its own.
    #[error(transparent)]
    Root(#[from] RootError),
    /// A system call failed.
    #[error("cannot {action}")]
    System {
        /// What it was for.
        action: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl ConfineError {
    fn of<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { action: action.into(), source: source.into() }
    }
}

/// Confines this process and becomes the launcher. Returns only an error, which it has reported to the node agent over
/// the standard input.
#[must_use]
pub fn run(confinement: &Confinement) -> ConfineError {
    let report = io::stdin().as_fd().try_clone_to_owned();
    let error = match confine(confinement) {
        Err(error) => error,
        Ok(mut command) => ConfineError::of("become the launcher")(command.exec()),
    };
    // Without a node agent, it has no reader.
    let _ = report.map(|report| File::from(report).write_all(chain(&error).as_bytes()));
    error
}

fn confine(confinement: &Confinement) -> Result<Command, ConfineError> {
    if getpid().as_raw_nonzero().get() != 1 {
        return Err(ConfineError::NoNamespace);
    }
    let program = std::env::current_exe().map_err(ConfineError::of("find this program"))?;
    // Of what is made here, others may read everything.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    unshare().map_err(ConfineError::of("make namespaces"))?;
    rustix::system::sethostname(b"launcher").map_err(ConfineError::of("set the host name"))?;
    let environment = environment().map_err(ConfineError::of("find the firmware"))?;
    let named = environment.iter().filter(|(name, _)| FILE_VARIABLES.contains(name));
    let named = named.map(|(_, path)| PathBuf::from(path));
    let shown: Vec<PathBuf> =
        [program.clone()].into_iter().chain(confinement.show.clone()).chain(named).collect();
    let node = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(ConfineError::of("open the root directory of the node"))?;
    change_root(&confinement.directory, &confinement.sockets, &shown)?;
    vireo_privileges::limit(&LIMITS.map(|limit| (limit.resource, limit.most)))
        .map_err(ConfineError::of("set resource limits"))?;
    vireo_privileges::give_up(Some(confinement.user), Unprivileged::Fails)
        .map_err(ConfineError::of("give up privileges"))?;
    landlock::restrict([&*confinement.directory], Some(node.as_fd()))
        .map_err(|error| ConfineError::of("set landlock rules")(io::Error::other(error)))?;
    let mut command = Command::new(program);
    command.args(&confinement.arguments).env_clear().envs(environment).stdin(Stdio::null());
    Ok(command)
}

/// Replaces everything that this process sees of file systems. The VM's `directory` has its sockets then.
fn change_root(directory: &Path, sockets: &Path, shown: &[PathBuf]) -> Result<(), ConfineError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Mounting the root directory hides it.
    let sockets = rustix::fs::openat(CWD, sockets, flags, Mode::empty())
        .map_err(ConfineError::of(format!("open {}", sockets.display())))?;
    let by_number = Path::new("/proc/self/fd").join(sockets.as_raw_fd().to_string());
    let root = Root::mount(directory)?;
    root.show_system(shown)?;
    root.show_directory(&by_number, directory, DirectoryAccess::Writable)?;
    root.mount_proc()?;
    Ok(root.enter()?)
}

/// The environment of the launcher, whose working directory is another one.
fn environment() -> io::Result<Vec<(&'static str, OsString)>> {
    let mut kept = Vec::new();
    for name in KEPT_VARIABLES {
        match std::env::var_os(name) {
            Some(path) if FILE_VARIABLES.contains(&name) => {
                kept.push((name, std::path::absolute(path)?.into()))
            }
            Some(value) => kept.push((name, value)),
            None => {}
        }
    }
    Ok(kept)
}

fn unshare() -> Result<(), Errno> {
    let flags = NAMESPACES.into_iter().map(|(flag, _)| flag).collect();
    // SAFETY: only UnshareFlags::FILES can make descriptors vanish from other threads; it is not given.
    #[expect(unsafe_code, reason = "rustix marks unshare unsafe for its FILES flag")]
    unsafe {
        unshare_unsafe(flags)
    }
}

#[cfg(test)]
mod page;
