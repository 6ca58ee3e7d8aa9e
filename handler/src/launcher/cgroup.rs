//! Cgroups of its own for every launcher, where the handler may make them: a kill of the handler's own cgroup (as a service
//! manager does) then spares the guests, what a VM uses can be read off one directory, and it takes no more than its limits.
//!
//! In the unified hierarchy they are below `vireo` at its top, beside the handler's own. A controller that has a hierarchy of
//! its own (cgroup v1) has them below the handler's own cgroup there.

mod controllers;
mod io_max;
pub mod limits;
mod membership;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use thiserror::Error;
use uuid::Uuid;

pub use controllers::Controller;
use controllers::{enable, own, unified};
pub use io_max::{IoMax, IoMaxError};
use limits::Limits;
pub(crate) use membership::Membership;

/// How long killed processes may take to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often that is checked where the kernel does not report it.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Why there are no cgroups for launchers.
#[derive(Debug, Error)]
pub enum CgroupError {
    /// No unified hierarchy.
    #[error("no hierarchy of cgroups is mounted")]
    NoHierarchy,
    /// It may not be written to.
    #[error("cgroup {path} cannot be made: {source}", path = path.display())]
    Denied {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Some resources cannot be limited.
    #[error("this host does not let the node agent limit: {0}")]
    Unlimited(String),
    /// A limit was not taken.
    #[error("{path} cannot be set: {source}", path = path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The cgroups that hold the launchers' own.
#[derive(Debug)]
pub struct Cgroups {
    /// In the unified hierarchy.
    unified: Option<PathBuf>,
    /// By the controllers that limits can be set of: in the unified hierarchy or another one.
    controllers: BTreeMap<Controller, PathBuf>,
    /// The limits of block I/O that all launchers have.
    io_max: Vec<IoMax>,
}

impl Cgroups {
    /// Makes `vireo` at the top of the unified hierarchy: beside the handler's own cgroup, so that it is not
    /// removed or killed with it; and below the handler's own cgroup in hierarchies of single controllers.
    ///
    /// # Errors
    /// When there is no hierarchy, or none may be changed.
    pub fn find() -> Result<Self, CgroupError> {
        let read = |path| fs::read_to_string(path).map_err(|_| CgroupError::NoHierarchy);
        let (mounts, cgroups) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
        let top = unified(&mounts);
        let made = top.as_ref().map(|top| top.join("vireo")).map(|path| make(&path).map(|()| path));
        let (unified, denied) = match made.transpose() {
            Ok(unified) => (unified, None),
            Err(error) => (None, Some(error)),
        };
        let mut controllers = BTreeMap::new();
        for controller in Controller::ALL {
            let in_unified = top
                .as_ref()
                .zip(unified.as_ref())
                .filter(|(top, vireo)| enable(top, controller) && enable(vireo, controller));
            let alone = || {
                let path = own(controller, &mounts, &cgroups)?.join("vireo");
                make(&path).ok().map(|()| path)
            };
            if let Some(path) = in_unified.map(|(_, vireo)| vireo.clone()).or_else(alone) {
                controllers.insert(controller, path);
            }
        }
        match unified.is_none() && controllers.is_empty() {
            true => Err(denied.unwrap_or(CgroupError::NoHierarchy)),
            false => Ok(Self { unified, controllers, io_max: Vec::new() }),
        }
    }

    /// The same, of which each launcher has these limits of block I/O.
    #[must_use]
    pub fn with_io_max(self, io_max: Vec<IoMax>) -> Self {
        Self { io_max, ..self }
    }

    /// The resources that cannot be limited.
    ///
    /// # Errors
    /// Names them.
    pub fn complete(&self) -> Result<(), CgroupError> {
        let io = Some(Controller::Io).filter(|_| !self.io_max.is_empty());
        let needed = Controller::REQUIRED.into_iter().chain(io);
        let missing = needed.filter(|one| !self.controllers.contains_key(one));
        let missing: Vec<&str> = missing.map(Controller::as_str).collect();
        if missing.is_empty() { Ok(()) } else { Err(CgroupError::Unlimited(missing.join(", "))) }
    }

    /// The cgroups of one launcher, in all hierarchies.
    pub fn paths(&self, uid: Uuid) -> Vec<PathBuf> {
        let parents: BTreeSet<&PathBuf> = self.unified.iter().chain(self.controllers.values()).collect();
        parents.into_iter().map(|parent| parent.join(uid.to_string())).collect()
    }

    /// Makes the cgroups of one launcher.
    ///
    /// # Errors
    /// When one may not be created.
    pub fn create(&self, uid: Uuid) -> Result<Vec<PathBuf>, CgroupError> {
        let paths = self.paths(uid);
        paths.iter().try_for_each(|path| make(path))?;
        Ok(paths)
    }

    /// Sets the limits of a launcher whose cgroups were made.
    ///
    /// # Errors
    /// When one of them cannot be set; the others are.
    pub fn limit(&self, uid: Uuid, limits: &Limits) -> Result<(), CgroupError> {
        let mut done = self.complete();
        for (controller, parent) in &self.controllers {
            let is_v2 = self.unified.as_ref() == Some(parent);
            let files = match controller {
                Controller::Memory => limits.memory_files(is_v2),
                Controller::Pids => limits.pids_files(),
                Controller::Cpu => limits.cpu_files(is_v2),
                Controller::Io => Limits::io_files(is_v2),
            };
            let is_required = Controller::REQUIRED.contains(controller);
            for (name, value) in files {
                let path = parent.join(uid.to_string()).join(name);
                match set(&path, &value) {
                    Err(source) if is_required || source.kind() != io::ErrorKind::NotFound => {
                        done = done.and(Err(CgroupError::Limit { path, source }));
                    }
                    Ok(()) | Err(_) => {}
                }
            }
        }
        done.and(self.limit_io(uid))
    }

    fn limit_io(&self, uid: Uuid) -> Result<(), CgroupError> {
        // Without the controller, it is missing.
        let Some(parent) = self.controllers.get(&Controller::Io) else { return Ok(()) };
        let is_v2 = self.unified.as_ref() == Some(parent);
        let mut done = Ok(());
        for (name, value) in self.io_max.iter().flat_map(|max| max.files(is_v2)) {
            let path = parent.join(uid.to_string()).join(name);
            let limited = set(&path, &value).map_err(|source| CgroupError::Limit { path, source });
            done = done.and(limited);
        }
        done
    }

    /// The cgroup of one launcher in the unified hierarchy, where there is one.
    pub fn of(&self, uid: Uuid) -> Option<PathBuf> {
        Some(self.unified.as_ref()?.join(uid.to_string())).filter(|path| path.is_dir())
    }

    /// Removes the cgroups of a launcher that is gone, and kills what is left in them: those of this handler, and
    /// `others`, of an earlier one that may have been elsewhere. No cgroup is success. Blocks, at most for
    /// [`EXIT_TIMEOUT`].
    ///
    /// # Errors
    /// When something still runs in one.
    pub fn remove(&self, uid: Uuid, others: Vec<PathBuf>) -> io::Result<()> {
        remove_all(uid, self.paths(uid).into_iter().chain(others))
    }
}

/// Removes those cgroups that are named after a launcher, and kills what is left in them. Blocks, as [`Cgroups::remove`].
///
/// # Errors
/// When something still runs in one.
pub fn remove_all(uid: Uuid, paths: impl IntoIterator<Item = PathBuf>) -> io::Result<()> {
    let name = uid.to_string();
    let paths = paths.into_iter().filter(|path| path.file_name().is_some_and(|last| *last == *name));
    let all: BTreeSet<PathBuf> = paths.collect();
    all.iter().try_for_each(|path| remove(path))
}

/// How many processes of a launcher the kernel killed because they had reached its limit of memory.
pub fn oom_kills(paths: &[PathBuf]) -> u64 {
    let count = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse::<u64>().ok());
        line.unwrap_or(0)
    };
    let files =
        paths.iter().flat_map(|path| ["memory.events", "memory.oom_control"].map(|name| path.join(name)));
    files.filter_map(|file| fs::read_to_string(file).ok()).map(count).sum()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            kill(path)?;
            await_empty(path, Instant::now() + EXIT_TIMEOUT)?;
            fs::remove_dir(path)
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Kills every process of a cgroup: at once where the kernel can (since 5.14), else one after the other.
pub(super) fn kill(path: &Path) -> io::Result<()> {
    // Not created: that is denied in a hierarchy without this file.
    match File::options().write(true).open(path.join("cgroup.kill")) {
        Ok(kill) => return rustix::io::write(&kill, b"1").map(drop).map_err(io::Error::from),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
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

/// Waits until no process is left in a cgroup. The kernel reports changes of `cgroup.events` as POLLPRI; other hierarchies
/// have no such file.
fn await_empty(path: &Path, deadline: Instant) -> io::Result<()> {
    let late = || {
        let message = "processes of the launcher were killed and have not ended: they may wait for storage";
        Err(io::Error::new(io::ErrorKind::TimedOut, message))
    };
    let events = path.join("cgroup.events");
    if !events.exists() {
        while !fs::read_to_string(path.join("cgroup.procs"))?.is_empty() {
            if Instant::now() > deadline {
                return late();
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        return Ok(());
    }
    let file = File::open(&events)?;
    while fs::read_to_string(&events)?.lines().any(|line| line == "populated 1") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return late();
        }
        let timeout = Timespec::try_from(left).ok();
        poll(&mut [PollFd::new(&file, PollFlags::PRI)], timeout.as_ref())?;
    }
    Ok(())
}

/// Writes to a file of a cgroup, which is not created.
fn set(path: &Path, value: &str) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    Ok(rustix::io::write(&file, value.as_bytes()).map(drop)?)
}

fn make(path: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::Denied { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
