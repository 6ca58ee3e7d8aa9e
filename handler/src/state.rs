//! The state directory: its files and how they are written.
//!
//! It holds everything that the handler keeps across its restart. A running guest needs none of it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;
use tokio::time::{Instant, sleep};
use uuid::Uuid;
use vireo_api::names::{SOCKETS_DIRECTORY, claim_directory, projected_files};
use vireo_api::spec::{Filesystem, FilesystemSource};
use vireo_proto::files::FILES_SOCKET;
use vireo_proto::{
    CONSOLE_HISTORY_SOCKET, CONSOLE_SOCKET, LAUNCHER_SOCKET, RUN_DIRECTORY, USB_REDIRECTION_SOCKETS,
    VNC_SOCKET,
};

/// `sun_path` has 108 bytes with its end.
const LONGEST_SOCKET: usize = 107;
/// The directory of shared file systems, below that of the sockets.
const FILESYSTEMS: &str = "filesystems";
/// How long to wait for a lock or socket of a killed process: the kernel takes a while to release a large process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Why the state directory cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// A directory or file could not be created or read.
    #[error("cannot {verb} {path}", path = path.display())]
    Io {
        /// What was tried: "create", "write", ...
        verb: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// Another handler holds the lock.
    #[error("{path} is in use by another virt-handler or vireo; give this one its own --state-dir", path = path.display())]
    InUse {
        /// The state directory.
        path: PathBuf,
    },
    /// The path of a unix socket is limited (unix(7)).
    #[error(
        "{path} is too long: sockets below it need a path of at most {LONGEST_SOCKET} bytes; choose a --state-dir that is {by} bytes shorter",
        path = path.display()
    )]
    TooLong {
        /// The state directory.
        path: PathBuf,
        /// How many bytes too long.
        by: usize,
    },
    /// A file of the handler is not valid.
    #[error("{path} is damaged", path = path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// The parse error.
        #[source]
        source: serde_json::Error,
    },
}

impl StateError {
    fn io(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { verb, path, source }
    }
}

/// `--state-dir`.
#[derive(Debug, Clone)]
pub struct StateDir {
    root: PathBuf,
    /// Launchers run in Pods.
    pods: bool,
}

/// The lock of a state directory; released when dropped.
#[derive(Debug)]
pub struct StateLock {
    _file: OwnedFd,
}

impl StateDir {
    /// Names a state directory without touching it, for readers.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), pods: false }
    }

    /// The same for launchers in Pods.
    pub(crate) fn of_pods(self) -> Self {
        Self { pods: true, ..self }
    }

    /// Creates the directory with its parts and takes its lock. A killed handler holds the lock until the kernel has
    /// released the process; this waits for that.
    ///
    /// # Errors
    /// When a directory cannot be created, or another handler runs on it.
    pub async fn take(&self) -> Result<StateLock, StateError> {
        let longest = self.vmi_dir(Uuid::nil()).launcher_socket().as_os_str().len();
        if let Some(by) = longest.checked_sub(LONGEST_SOCKET).filter(|by| *by > 0) {
            return Err(StateError::TooLong { path: self.root.clone(), by });
        }
        for dir in [self.root.clone(), self.root.join("vmis"), self.root.join("kept"), self.images()] {
            make_private(&dir)?;
        }
        let path = self.lock_file();
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(StateError::io("open", &path))?;
        let lock = async || flock(&file, FlockOperation::NonBlockingLockExclusive);
        match retry_while_held(lock, |error| *error == Errno::WOULDBLOCK).await {
            Ok(()) => Ok(StateLock { _file: file.into() }),
            Err(Errno::WOULDBLOCK) => Err(StateError::InUse { path: self.root.clone() }),
            Err(error) => Err(StateError::io("lock", &path)(error.into())),
        }
    }

    /// Whether a handler serves this directory now. (Trying its lock could make a starting handler fail.)
    pub fn is_served(&self) -> bool {
        UnixStream::connect(self.endpoint()).is_ok()
    }

    fn lock_file(&self) -> PathBuf {
        self.root.join("handler.lock")
    }

    /// The HTTP endpoint's socket.
    pub fn endpoint(&self) -> PathBuf {
        self.root.join("handler.sock")
    }

    /// The content-addressed image store.
    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The files that a VM keeps for its next VMI. Only the administrator removes them.
    pub fn kept(&self, namespace: &str, name: &str) -> PathBuf {
        self.root.join("kept").join(namespace).join(name)
    }

    /// The rejected manifests, for `virt-handler status`.
    pub fn rejections(&self) -> PathBuf {
        self.root.join("refusals.json")
    }

    /// The directory of one VMI.
    pub fn vmi_dir(&self, uid: Uuid) -> VmiDir {
        VmiDir { path: self.root.join("vmis").join(uid.to_string()), pod: self.pods }
    }

    /// The directories of all VMIs. Names that are not UIDs are left alone.
    ///
    /// # Errors
    /// When the directory exists and cannot be read.
    pub fn vmi_dirs(&self) -> Result<Vec<(Uuid, VmiDir)>, StateError> {
        let path = self.root.join("vmis");
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(StateError::io("read", &path)(error)),
        };
        let mut dirs = Vec::new();
        for entry in entries {
            let entry = entry.map_err(StateError::io("read", &path))?;
            if let Some(uid) = entry.file_name().to_str().and_then(|name| Uuid::parse_str(name).ok()) {
                dirs.push((uid, self.vmi_dir(uid)));
            }
        }
        dirs.sort_by_key(|(uid, _)| *uid);
        Ok(dirs)
    }

    /// The users of isolated launchers.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub(crate) fn users(&self) -> Result<BTreeSet<u32>, StateError> {
        // Directories are removed after everything that ran as their users.
        Ok(self.vmi_dirs()?.iter().filter_map(|(_, dir)| dir.user()).collect())
    }
}

/// `STATE/vmis/<uid>`: all files of one VMI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmiDir {
    path: PathBuf,
    /// Its launcher runs in a Pod.
    pod: bool,
}

impl VmiDir {
    /// Creates the directory and the VMI's runtime directory in it.
    ///
    /// # Errors
    /// When they cannot be created.
    pub fn create(&self) -> Result<(), StateError> {
        make_private(&self.path)?;
        make_private(&self.run())
    }

    /// Removes all files of the VMI. A missing directory is success.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn remove(&self) -> Result<(), StateError> {
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StateError::io("remove", &self.path)(error))
            }
            _ => Ok(()),
        }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The accepted VMI with its status.
    pub fn vmi(&self) -> PathBuf {
        self.path.join("vmi.json")
    }

    /// The plan of the VM's network, written before any of it exists.
    pub fn network(&self) -> PathBuf {
        self.path.join("network.json")
    }

    /// What the guest takes over of its Pod.
    pub fn pod_interfaces(&self) -> PathBuf {
        self.path.join("pod-interfaces.json")
    }

    /// The stamp that identifies this VMI's launcher process.
    pub fn launcher_stamp(&self) -> PathBuf {
        self.path.join("launcher.stamp")
    }

    /// The cgroups of its launcher, written before they are made.
    pub(crate) fn cgroups(&self) -> PathBuf {
        self.path.join("cgroups.json")
    }

    /// The CPUs that its VM has for itself.
    pub(crate) fn cpus(&self) -> PathBuf {
        self.path.join("cpus")
    }

    /// Exists when the guest was shut down because its node shuts down.
    pub fn node_shutdown(&self) -> PathBuf {
        self.path.join("node-shutdown")
    }

    /// Where the launcher's sockets are.
    fn sockets(&self) -> PathBuf {
        let own = self.own_sockets();
        match self.pod {
            true => self.pod_link(),
            false if own.is_dir() => own,
            // It is not isolated, as launchers of earlier releases.
            false => self.path.clone(),
        }
    }

    /// The directory of the sockets of an isolated launcher, which belongs to its user.
    pub(crate) fn own_sockets(&self) -> PathBuf {
        self.path.join("sockets")
    }

    /// The user of an isolated launcher.
    pub(crate) fn user(&self) -> Option<u32> {
        let owner = fs::symlink_metadata(self.own_sockets()).ok()?.uid();
        // It was made, and not given away.
        (owner != 0).then_some(owner)
    }

    /// Makes the directory of the sockets of an isolated launcher.
    ///
    /// # Errors
    /// When it cannot be created or given to the user.
    pub(crate) fn create_sockets(&self, user: u32) -> Result<(), StateError> {
        let path = self.own_sockets();
        make_private(&path)?;
        std::os::unix::fs::lchown(&path, Some(user), Some(user)).map_err(StateError::io("give away", &path))
    }

    /// Removes the directory of the sockets of an isolated launcher.
    ///
    /// # Errors
    /// When it is there and cannot be removed.
    pub(crate) fn remove_sockets(&self) -> Result<(), StateError> {
        let path = self.own_sockets();
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StateError::io("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// The link to the volume of the launcher Pod with the sockets. Their own paths may be too long for a socket.
    pub(crate) fn pod_link(&self) -> PathBuf {
        self.path.join("pod")
    }

    /// The launcher's gRPC socket.
    pub fn launcher_socket(&self) -> PathBuf {
        self.sockets().join(LAUNCHER_SOCKET)
    }

    /// The launcher's socket for open files.
    pub(crate) fn files_socket(&self) -> PathBuf {
        self.sockets().join(FILES_SOCKET)
    }

    /// The directory of the launcher's sockets as the launcher sees it. An isolated one sees them instead of the VMI's
    /// directory, so that their paths are not longer.
    pub(crate) fn launcher_view(&self) -> PathBuf {
        if self.pod { SOCKETS_DIRECTORY.into() } else { self.path.clone() }
    }

    /// Where the launcher sees a file system that its guest shares: as the kubelet mounts it, else below its sockets.
    pub(crate) fn filesystem(&self, filesystem: &Filesystem) -> PathBuf {
        let name = filesystem.name();
        match (self.pod, filesystem.source()) {
            (true, FilesystemSource::Projected(_)) => projected_files(name).into(),
            (true, FilesystemSource::ContainerPath { path }) => path.into(),
            (true, FilesystemSource::Claim { .. }) => claim_directory(name).into(),
            (false, _) => self.launcher_view().join(FILESYSTEMS).join(name),
        }
    }

    /// The directory of the file systems that a guest shares, where the node agent makes them.
    pub(crate) fn filesystems(&self) -> PathBuf {
        self.sockets().join(FILESYSTEMS)
    }

    /// The guest's serial console.
    pub fn console_socket(&self) -> PathBuf {
        self.sockets().join(CONSOLE_SOCKET)
    }

    /// The guest's serial console, with its history first.
    pub fn console_history_socket(&self) -> PathBuf {
        self.sockets().join(CONSOLE_HISTORY_SOCKET)
    }

    /// The log of the guest's serial console until it ended, as plain text.
    pub fn console_log(&self) -> PathBuf {
        self.path.join("console.log")
    }

    /// The guest's display.
    pub fn vnc_socket(&self) -> PathBuf {
        self.sockets().join(VNC_SOCKET)
    }

    /// The slots for USB devices of clients.
    pub fn usb_redirection_sockets(&self) -> [PathBuf; USB_REDIRECTION_SOCKETS.len()] {
        USB_REDIRECTION_SOCKETS.map(|socket| self.sockets().join(socket))
    }

    /// The launcher's stdout and stderr.
    pub fn launcher_log(&self) -> PathBuf {
        self.path.join("launcher.log")
    }

    /// `LaunchRequest.runtime_dir`, where the handler makes it.
    pub fn run(&self) -> PathBuf {
        self.path.join(RUN_DIRECTORY)
    }
}

/// Retries while a killed process still holds a resource. `is_held` identifies such an error.
///
/// # Errors
/// Any other error, and the last one after the timeout.
pub async fn retry_while_held<T, E>(
    mut take: impl AsyncFnMut() -> Result<T, E>,
    is_held: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begin = Instant::now();
    loop {
        match take().await {
            Err(error) if is_held(&error) && begin.elapsed() < LOCK_TIMEOUT => sleep(PAUSE).await,
            other => return other,
        }
    }
}

fn make_private(path: &Path) -> Result<(), StateError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(StateError::io("create", path))
}

/// Replaces a file as a whole: a reader sees the old content or the new, also after a power cut.
///
/// # Errors
/// When it cannot be written; the old content is then still there.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<(), StateError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut name = path.file_name().unwrap_or(OsStr::new("file")).to_owned();
    name.push(".new");
    let fresh = directory.join(name);
    let written = (|| {
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&fresh, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        // Best effort: on a full disk the half-written file is part of the problem.
        let _ = fs::remove_file(&fresh);
    }
    written.map_err(StateError::io("write", path))
}

/// Reads a JSON file of the handler; `None` when it does not exist.
///
/// # Errors
/// When it exists and cannot be read or understood.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StateError::io("read", path)(error)),
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        Err(source) => Err(StateError::Damaged { path: path.to_owned(), source }),
    }
}

/// Writes a value as JSON, [atomically](write_atomically).
///
/// # Errors
/// When it cannot be written.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), StateError> {
    let bytes = serde_json::to_vec_pretty(value)
        .map_err(|source| StateError::Damaged { path: path.to_owned(), source })?;
    write_atomically(path, &bytes)
}

#[cfg(test)]
mod tests;
