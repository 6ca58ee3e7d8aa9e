//! A cgroup v2 of its own for every launcher, where the handler may make one: a kill of the handler's own cgroup
//! (as a service manager does) then spares the guests, and what a VM uses can be read off one directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;
use uuid::Uuid;

/// How long killed processes may take to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there are no cgroups for launchers.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// No unified hierarchy.
    #[error("no cgroup v2 hierarchy is mounted")]
    NoHierarchy,
    /// It may not be written to.
    #[error("cgroup {path} cannot be made: {source}", path = path.display())]
    Denied {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The cgroup that holds the launchers' own.
#[derive(Debug)]
pub struct Cgroups {
    parent: PathBuf,
}

impl Cgroups {
    /// Makes `vireo` at the top of the unified hierarchy: beside the handler's own cgroup, so that it is not
    /// removed or killed with it.
    ///
    /// # Errors
    /// When there is no unified hierarchy or it may not be changed.
    pub fn find() -> Result<Self, CgroupError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|_| CgroupError::NoHierarchy)?;
        let parent = unified(&mounts).ok_or(CgroupError::NoHierarchy)?.join("vireo");
        make(&parent)?;
        Ok(Self { parent })
    }

    /// Makes the cgroup of one launcher.
    ///
    /// # Errors
    /// When it may not be created.
    pub fn create(&self, uid: Uuid) -> Result<PathBuf, CgroupError> {
        let path = self.parent.join(uid.to_string());
        make(&path)?;
        Ok(path)
    }

    /// The cgroup of one launcher, where there is one.
    pub fn of(&self, uid: Uuid) -> Option<PathBuf> {
        Some(self.parent.join(uid.to_string())).filter(|path| path.is_dir())
    }

    /// Removes the cgroup of a launcher that is gone, and kills what is left in it. No cgroup is success. Blocks, at
    /// most for [`EXIT_TIMEOUT`].
    ///
    /// # Errors
    /// When something still runs in it.
    pub fn remove(&self, uid: Uuid) -> io::Result<()> {
        let path = self.parent.join(uid.to_string());
        match fs::remove_dir(&path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                kill(&path)?;
                await_empty(&path, Instant::now() + EXIT_TIMEOUT)?;
                fs::remove_dir(&path)
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Kills every process of a cgroup: at once where the kernel can (since 5.14), else one after the other.
pub(super) fn kill(path: &Path) -> io::Result<()> {
    match fs::write(path.join("cgroup.kill"), "1") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        done => return done,
    }
    for pid in fs::read_to_string(path.join("cgroup.procs"))?.lines() {
        let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // Fails only when it is gone already.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
    Ok(())
}

/// Waits until no process is left in a cgroup. The kernel reports changes of `cgroup.events` as POLLPRI.
fn await_empty(path: &Path, deadline: Instant) -> io::Result<()> {
    let events = path.join("cgroup.events");
    let file = File::open(&events)?;
    while fs::read_to_string(&events)?.lines().any(|line| line == "populated 1") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let message =
                "processes of the launcher were killed and have not ended: they may wait for storage";
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        let timeout = Timespec::try_from(left).ok();
        poll(&mut [PollFd::new(&file, PollFlags::PRI)], timeout.as_ref())?;
    }
    Ok(())
}

fn make(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::Denied { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Finds the unified hierarchy in a mountinfo, proc(5).
fn unified(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        (filesystem.split(' ').next()? == "cgroup2").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_wherever_it_is_mounted() {
        let hybrid = "30 23 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755\n31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 master:1 - cgroup2 cgroup2 rw\n";
        assert_eq!(unified(hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let legacy = "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(unified(legacy), None);
    }
}
