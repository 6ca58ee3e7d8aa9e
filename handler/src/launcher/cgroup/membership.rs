//! The cgroups of a launcher, for another process that joins them.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use super::controllers::directory;

/// The files by which a process joins the cgroups of another one.
#[derive(Debug)]
pub(crate) struct Membership(Vec<File>);

impl Membership {
    /// The cgroups of a launcher in all hierarchies, but for their roots. In a container, the node agent may see its own cgroups
    /// alone; the launcher's parent is the container runtime, which made the launcher's.
    ///
    /// # Errors
    /// When the launcher has ended, or one of its cgroups cannot be joined.
    pub(crate) fn of(launcher: i32) -> io::Result<Self> {
        let cgroups = fs::read_to_string(format!("/proc/{launcher}/cgroup"))?;
        let status = fs::read_to_string(format!("/proc/{launcher}/status"))?;
        Self::seen_by("self", &cgroups).or_else(|_| Self::seen_by(parent(&status)?, &cgroups))
    }

    fn seen_by(observer: &str, cgroups: &str) -> io::Result<Self> {
        let mounts = fs::read_to_string(format!("/proc/{observer}/mountinfo"))?;
        let root = PathBuf::from(format!("/proc/{observer}/root"));
        let open = |directory: PathBuf| {
            let below = directory.strip_prefix("/").unwrap_or(&directory);
            File::options().write(true).open(root.join(below).join("cgroup.procs"))
        };
        Ok(Self(directories(&mounts, cgroups)?.into_iter().map(open).collect::<io::Result<_>>()?))
    }

    /// Moves the calling process there. Only makes system calls, which is all that is permitted between fork and exec.
    ///
    /// # Errors
    /// When the kernel does not permit it.
    pub(crate) fn join(&self) -> io::Result<()> {
        for procs in &self.0 {
            rustix::io::write(procs, b"0")?;
        }
        Ok(())
    }
}

/// The directories of the cgroups of a `/proc/PID/cgroup` by a mountinfo. A process in the root of a hierarchy is in no cgroup of it.
fn directories(mounts: &str, cgroups: &str) -> io::Result<Vec<PathBuf>> {
    let lines: Vec<&str> = cgroups.lines().filter(|line| !line.ends_with(":/")).collect();
    let absent = |line: &str| io::Error::other(format!("the launcher's cgroup {line} cannot be joined"));
    lines.iter().map(|line| directory(mounts, line).ok_or_else(|| absent(line))).collect()
}

/// The process ID of the parent in `/proc/PID/status`.
fn parent(status: &str) -> io::Result<&str> {
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    line.map(str::trim).ok_or_else(|| io::Error::other("the launcher has no parent"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const MOUNTS: &str = "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /own /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";

    #[test]
    fn all_cgroups_are_joined_or_none() {
        let cgroups = "5:cpu,cpuacct:/kubepods/pod1/a\n4:memory:/own/a\n1:name=systemd:/b\n0::/\n";
        let expected = ["cpu,cpuacct/kubepods/pod1/a", "memory/a", "systemd/b"];
        let expected = expected.map(|path| Path::new("/sys/fs/cgroup").join(path));
        assert_eq!(directories(MOUNTS, cgroups).unwrap(), expected);
        for outside in ["4:memory:/others/a\n", "3:pids:/a\n", "0::/a\n"] {
            assert!(directories(MOUNTS, outside).is_err(), "{outside}");
        }
        assert_eq!(directories(MOUNTS, "0::/\n").unwrap(), Vec::<PathBuf>::new(), "it is in none");
    }

    #[test]
    fn the_parent_is_read_from_the_status() {
        assert_eq!(parent("Name:\tvirt-launcher\nPid:\t7\nPPid:\t5\n").unwrap(), "5");
        assert!(parent("Name:\tx\n").is_err());
    }
}
