//! A launcher that is isolated as by the node agent of a single host (`handler/src/launcher/process.rs`): a user, namespaces,
//! a root directory, landlock rules, a cgroup and filters of its own, and files that it receives open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use vireo_proto::LAUNCHER_SOCKET;
use vireo_proto::files::KVM;

use crate::Error;

/// The user and the group of the launcher.
const USER: u32 = 1_900_000_001;
const CGROUPS: &str = "/sys/fs/cgroup";
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

/// An isolated launcher, and its cgroup.
#[derive(Debug)]
pub(crate) struct Isolated {
    pub(crate) child: Child,
    cgroup: PathBuf,
}

impl Isolated {
    /// Starts it: everything that it takes, as the node agent does it for each VM.
    pub(crate) fn spawn(directory: &Path) -> Result<Self, Error> {
        let sockets = sockets(directory);
        fs::create_dir(&sockets)?;
        chown(&sockets, Some(USER), Some(USER))?;
        let cgroup = Path::new(CGROUPS).join("bench-launcher");
        fs::create_dir(&cgroup)?;
        for (limit, value) in LIMITS {
            fs::write(cgroup.join(limit), value)?;
        }
        let (mut report, writer) = io::pipe()?;
        let mut command = Command::new("/in/virt-launcher");
        command.args(["confine", "--user", &USER.to_string(), "--directory"]).arg(directory);
        command.arg("--sockets").arg(&sockets).args(["--", "--socket"]).arg(directory.join(LAUNCHER_SOCKET));
        command.stdin(writer).stdout(Stdio::null());
        // Namespaces of process IDs and of the network are those of the thread that starts it.
        let spawn = move || {
            unshare()?;
            command.spawn()
        };
        let spawned = std::thread::spawn(spawn).join().map_err(|_| "the thread that starts it panicked")?;
        let isolated = Self { child: spawned?, cgroup };
        fs::write(isolated.cgroup.join("cgroup.procs"), isolated.child.id().to_string())?;
        let mut failure = String::new();
        report.read_to_string(&mut failure)?;
        if failure.is_empty() { Ok(isolated) } else { Err(failure.into()) }
    }

    /// Removes what is left once the process has ended.
    pub(crate) fn remove(&self) -> io::Result<()> {
        fs::remove_dir(&self.cgroup)
    }
}

fn unshare() -> io::Result<()> {
    // SAFETY: only UnshareFlags::FILES can make descriptors vanish from other threads; it is not given.
    #[expect(unsafe_code, reason = "rustix marks unshare unsafe for its FILES flag")]
    unsafe { unshare_unsafe(UnshareFlags::NEWPID | UnshareFlags::NEWNET) }?;
    Ok(())
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
