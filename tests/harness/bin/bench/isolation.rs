//! A launcher that the node agent's own function starts, as on a single host: with a user, namespaces, a root directory,
//! landlock rules, a cgroup and filters of its own, and files that it receives open.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use uuid::Uuid;
use vireo_handler::launcher::cgroup::Cgroups;
use vireo_handler::launcher::cgroup::limits::Limits;
use vireo_handler::launcher::process::{self, Confinement, Start};
use vireo_handler::network::netns;
use vireo_proto::LAUNCHER_SOCKET;
use vireo_proto::files::KVM;

use crate::Error;

/// The user and the group of the launcher.
const USER: u32 = 1_900_000_001;
const UID: Uuid = Uuid::from_u128(0xbe7c);
/// Of its network namespace.
const NAME: &str = "bench-launcher";
/// The values are met by no start.
const LIMITS: Limits = Limits { memory: 1 << 30, pids: 4096, cpu: Some(400), cpu_share: 1024 };

/// Before the clock starts: a nested host has cgroups after this.
pub(crate) fn prepare() -> Result<(), Error> {
    let line = "grep -q ' - cgroup' /proc/self/mountinfo || mount -t cgroup2 cgroup2 /sys/fs/cgroup";
    let status = Command::new("sh").args(["-ec", line]).status()?;
    if status.success() { Ok(()) } else { Err(format!("there are no cgroups: {status}").into()) }
}

/// Where the sockets of the launcher of a VM's directory are. It sees them in the directory itself.
pub(crate) fn sockets(directory: &Path) -> PathBuf {
    directory.join("sockets")
}

/// An isolated launcher, with its cgroup and its network.
#[derive(Debug)]
pub(crate) struct Isolated {
    pid: Pid,
    _environment: Environment,
}

/// Cgroups and a network namespace, which are removed with this: the next launcher would fail for them.
#[derive(Debug)]
struct Environment {
    cgroups: Cgroups,
}

impl Drop for Environment {
    fn drop(&mut self) {
        for removed in [self.cgroups.remove(UID, Vec::new()), netns::remove(NAME)] {
            if let Err(error) = removed {
                eprintln!("bench: the environment of a launcher is left over: {error}");
            }
        }
    }
}

impl Isolated {
    /// Starts it: everything that it takes, as the node agent does it for each VM.
    pub(crate) fn spawn(program: &Path, directory: &Path, cgroups: Cgroups) -> Result<Self, Error> {
        let sockets = sockets(directory);
        fs::create_dir(&sockets)?;
        chown(&sockets, Some(USER), Some(USER))?;
        let environment = Environment { cgroups };
        let paths = environment.cgroups.create(UID)?;
        environment.cgroups.limit(UID, &LIMITS)?;
        netns::create(NAME, || Ok::<_, io::Error>(()))??;
        let pid = process::spawn(&Start {
            program,
            arguments: vec!["--socket".into(), directory.join(LAUNCHER_SOCKET)],
            log: &directory.join("launcher.log"),
            stamp: &directory.join("launcher.stamp"),
            namespace: Some(&netns::path(NAME)),
            cgroups: &paths,
            oom_score_adj: Some(0),
            confinement: Some(Confinement { user: USER, directory, sockets: &sockets, show: Vec::new() }),
        })?;
        Ok(Self { pid, _environment: environment })
    }

    /// The process ID in the host.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until the process ends, by itself or killed.
    pub(crate) fn end(self, kill: bool) -> io::Result<()> {
        if kill {
            kill_process(self.pid, Signal::KILL)?;
        }
        waitpid(Some(self.pid), WaitOptions::empty())?;
        Ok(())
    }
}

/// What it receives open for a start from a kernel, or from none: it sees none of these.
pub(crate) fn files(kernel: bool) -> io::Result<Vec<(String, OwnedFd)>> {
    let kvm = OpenOptions::new().read(true).write(true).open(KVM)?;
    let mut files = vec![(KVM.to_owned(), kvm.into())];
    for path in ["/in/vmlinuz", "/in/initrd"].into_iter().filter(|_| kernel) {
        files.push((path.to_owned(), File::open(path)?.into()));
    }
    Ok(files)
}
