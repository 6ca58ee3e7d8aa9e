//! A cgroup v2 of its own for every launcher, where the handler may make one: a kill of the handler's own cgroup
//! (as a service manager does) then spares the guests, and what a VM uses can be read off one directory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use uuid::Uuid;

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
    /// When it may not be made.
    pub fn create(&self, uid: Uuid) -> Result<PathBuf, CgroupError> {
        let path = self.parent.join(uid.to_string());
        make(&path)?;
        Ok(path)
    }

    /// Removes the cgroup of a launcher that is gone. None is success.
    ///
    /// # Errors
    /// When something still runs in it.
    pub fn remove(&self, uid: Uuid) -> io::Result<()> {
        match fs::remove_dir(self.parent.join(uid.to_string())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
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
