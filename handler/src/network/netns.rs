//! Network namespaces: created persistently, entered by dedicated threads, and removed.
//!
//! A namespace is kept by a bind mount below `/run/netns`, so that it outlives every process and `ip netns` shows
//! it. A namespace belongs to a thread in Linux; whatever must happen inside one happens on a thread that lives
//! only for it, so no thread of the runtime ever changes its network.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

const DIRECTORY: &str = "/run/netns";

/// Where a namespace of this name is found.
pub fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Makes a namespace that stays until [`remove`], and prepares it before it has a name. One that exists already is kept as
/// it is.
///
/// # Errors
/// When the kernel refuses; it asks for `CAP_SYS_ADMIN`. The inner error is that of `prepare`: there is no namespace then.
pub fn create<E: Send + 'static>(
    name: &str,
    prepare: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> io::Result<Result<(), E>> {
    let path = path(name);
    if exists(&path) {
        return Ok(Ok(()));
    }
    share_directory()?;
    File::create(&path)?;
    let target = path.clone();
    let made = on_own_thread(move || {
        // SAFETY: only UnshareFlags::FILES can make descriptors vanish from other threads; it is not given.
        #[expect(unsafe_code, reason = "rustix marks unshare unsafe for its FILES flag")]
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        if let Err(error) = prepare() {
            return Ok(Err(error));
        }
        mount_bind("/proc/thread-self/ns/net", &target)?;
        Ok(Ok(()))
    });
    let made = made.flatten();
    if !matches!(made, Ok(Ok(()))) {
        // An empty file of that name would look like a namespace to `ip netns`.
        let _ = fs::remove_file(&path);
    }
    made
}

/// Removes a namespace with everything in it. One that does not exist is success.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(name: &str) -> io::Result<()> {
    let path = path(name);
    match unmount(&path, UnmountFlags::DETACH) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a path is a mounted namespace, not just the file one would be mounted on.
pub(super) fn exists(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == NSFS_MAGIC)
}

/// linux/magic.h
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;

/// Makes `/run/netns` a mount of its own that is shared with other mount namespaces, as `ip netns` does:
/// otherwise a copy of our mount elsewhere would keep a removed namespace alive.
fn share_directory() -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    let shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    match mount_change(DIRECTORY, shared) {
        Err(Errno::INVAL) => {
            mount_bind(DIRECTORY, DIRECTORY)?;
            Ok(mount_change(DIRECTORY, shared)?)
        }
        other => Ok(other?),
    }
}

/// Runs something inside a namespace, on a thread of its own. Processes it starts are in the namespace too.
///
/// # Errors
/// When the namespace cannot be entered; what `work` returns is passed through.
pub fn inside<T: Send + 'static>(path: &Path, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let path = path.to_owned();
    on_own_thread(move || enter(&path).map(|()| work()))?
}

/// Moves the calling thread, which must live only for this, into a namespace.
///
/// # Errors
/// When it cannot be entered.
pub(crate) fn enter(path: &Path) -> io::Result<()> {
    let namespace = File::open(path)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Runs something on a thread of its own.
///
/// # Errors
/// When there is no thread; what `work` returns is passed through.
pub(crate) fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let thread = thread::Builder::new().name("netns".to_owned()).spawn(work)?;
    thread.join().map_err(|_| io::Error::other("the thread in the network namespace panicked"))
}
