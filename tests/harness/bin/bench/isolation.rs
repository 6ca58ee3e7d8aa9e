//! A launcher that the node agent's own function starts, as on a single host: with a user, namespaces, a root directory,
//! landlock rules, a cgroup and filters of its own, and files that it receives open.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use vireo_handler::launcher::process::{self, Confinement, Start};
use vireo_handler::network::netns;
use vireo_proto::LAUNCHER_SOCKET;
use vireo_proto::files::KVM;

use crate::Error;

/// The user and the group of the launcher.
const USER: u32 = 1_900_000_001;
const CGROUPS: &str = "/sys/fs/cgroup";
/// Of its cgroup and of its network namespace.
const NAME: &str = "bench-launcher";
/// What is set in a cgroup; the values are met by no start.
const LIMITS: [(&str, &str); 3] =
    [("memory.max", "1073741824"), ("pids.max", "4096"), ("cpu.max", "400000 100000")];

/// Before the clock starts, in the host: once, there are cgroups.
pub(crate) fn prepare() -> Result<(), Error> {
    let line = format!(
        "mountpoint -q {CGROUPS} || mount -t cgroup2 cgroup2 {CGROUPS}; \
         echo '+memory +pids +cpu' >{CGROUPS}/cgroup.subtree_control"
    );
    let status = Command::new("sh").args(["-ec", &line]).status()?;
    if status.success() { Ok(()) } else { Err(format!("there are no cgroups of version 2: {status}").into()) }
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

/// A cgroup and a network namespace, which are removed with this: the next launcher would fail for them.
#[derive(Debug)]
struct Environment {
    cgroup: PathBuf,
}

impl Drop for Environment {
    fn drop(&mut self) {
        for removed in [fs::remove_dir(&self.cgroup), netns::remove(NAME)] {
            if let Err(error) = removed {
                eprintln!("bench: the environment of a launcher is left over: {error}");
            }
        }
    }
}

impl Isolated {
    /// Starts it: everything that it takes, as the node agent does it for each VM.
    pub(crate) fn spawn(directory: &Path) -> Result<Self, Error> {
        let sockets = sockets(directory);
        fs::create_dir(&sockets)?;
        chown(&sockets, Some(USER), Some(USER))?;
        let cgroup = Path::new(CGROUPS).join(NAME);
        fs::create_dir(&cgroup)?;
        let environment = Environment { cgroup: cgroup.clone() };
        for (limit, value) in LIMITS {
            fs::write(cgroup.join(limit), value)?;
        }
        netns::create(NAME, || Ok::<_, io::Error>(()))??;
        let pid = process::spawn(&Start {
            program: Path::new("/in/virt-launcher"),
            arguments: vec!["--socket".into(), directory.join(LAUNCHER_SOCKET)],
            log: &directory.join("launcher.log"),
            stamp: &directory.join("launcher.stamp"),
            namespace: Some(&netns::path(NAME)),
            cgroups: std::slice::from_ref(&cgroup),
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

/// What it receives open for a start from a kernel: it sees none of these.
pub(crate) fn files() -> io::Result<Vec<(String, OwnedFd)>> {
    let kvm = OpenOptions::new().read(true).write(true).open(KVM)?;
    let mut files = vec![(KVM.to_owned(), kvm.into())];
    for path in ["/in/vmlinuz", "/in/initrd"] {
        files.push((path.to_owned(), File::open(path)?.into()));
    }
    Ok(files)
}
