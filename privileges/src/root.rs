//! What a process sees of file systems: a root directory of its own, which nothing of the node is in but what is shown.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_move, mount_remount, unmount,
};
use rustix::process::{chdir, chroot, pivot_root};

/// Programs, libraries and firmware of the system, where the loader finds them.
pub const SYSTEM: [&str; 12] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    // QEMU is an alternative of several packages on some distributions.
    "/etc/alternatives",
    "/etc/ld.so.cache",
    // Where musl finds libraries.
    "/etc/ld-musl-x86_64.path",
    // Systems that have no /usr.
    "/nix/store",
    "/gnu/store",
];
/// Devices without state. KVM and taps are passed open.
pub const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
/// The root has mount points and links alone.
const ROOT_OPTIONS: &std::ffi::CStr = c"mode=755,size=8m,nr_inodes=1k";

/// What a mount needs that has data alone.
const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// What may be done in a directory that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectoryAccess {
    /// Nothing is changed.
    ReadOnly,
    /// What the user's rights allow.
    Writable,
}

/// What is at a path of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Absent,
    Directory,
    File,
    Link(PathBuf),
}

impl Kind {
    fn of(path: &Path) -> Self {
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() => fs::read_link(path).map_or(Self::Absent, Self::Link),
            Ok(metadata) if metadata.is_dir() => Self::Directory,
            Ok(_) => Self::File,
            Err(_) => Self::Absent,
        }
    }
}

/// One path of the node that is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    /// A link, as on the node.
    Link { at: PathBuf, to: PathBuf },
    /// A directory with everything below it, which cannot be changed.
    Directory(PathBuf),
    /// A file, which cannot be changed.
    File(PathBuf),
    /// A device.
    Device(PathBuf),
}

/// The paths of the node that are shown: the system, and these files.
fn plan(shown: &[PathBuf], kind: impl Fn(&Path) -> Kind) -> Vec<Entry> {
    let mut entries = Vec::new();
    for path in SYSTEM.map(PathBuf::from) {
        match kind(&path) {
            Kind::Absent => {}
            Kind::Link(to) => entries.push(Entry::Link { at: path, to }),
            Kind::Directory => entries.push(Entry::Directory(path)),
            Kind::File => entries.push(Entry::File(path)),
        }
    }
    let is_device = |path: &PathBuf| kind(path) != Kind::Absent;
    entries.extend(DEVICES.map(PathBuf::from).into_iter().filter(is_device).map(Entry::Device));
    for path in shown.iter().filter(|path| path.is_absolute()) {
        let entry = Entry::File(path.clone());
        let is_seen =
            SYSTEM.iter().any(|system| path.starts_with(system) && kind(Path::new(system)) != Kind::Absent);
        if !is_seen && !entries.contains(&entry) && matches!(kind(path), Kind::File | Kind::Link(_)) {
            entries.push(entry);
        }
    }
    entries
}

/// Why there is no root directory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}")]
pub struct RootError {
    action: String,
    #[source]
    source: io::Error,
}

impl RootError {
    fn of<E: Into<io::Error>>(action: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self { action: action.into(), source: source.into() }
    }

    /// What the kernel said.
    #[must_use]
    pub fn cause(&self) -> &io::Error {
        &self.source
    }
}

/// A new root directory, while it is below the old one.
#[derive(Debug)]
pub struct Root<'a>(&'a Path);

impl<'a> Root<'a> {
    /// Mounts an empty one over a directory. For a process in a mount namespace of its own.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn mount(directory: &'a Path) -> Result<Self, RootError> {
        // Nothing that is mounted here reaches the node.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .map_err(RootError::of("leave the node's mounts"))?;
        mount("tmpfs", directory, "tmpfs", QUIET, ROOT_OPTIONS)
            .map_err(RootError::of("mount the root directory"))?;
        Ok(Self(directory))
    }

    /// Shows programs and libraries of the system, devices without state, and these files.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn show_system(&self, shown: &[PathBuf]) -> Result<(), RootError> {
        for entry in plan(shown, Kind::of) {
            self.make(&entry).map_err(|error| {
                let (Entry::Link { at, .. } | Entry::Directory(at) | Entry::File(at) | Entry::Device(at)) =
                    &entry;
                RootError::of(format!("show {}", at.display()))(error)
            })?;
        }
        Ok(())
    }

    /// Shows what is in one file system, without its programs and devices. A relative path is below the working directory, which
    /// may be on a file system that was left.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn show_directory(&self, from: &Path, at: &Path, access: DirectoryAccess) -> Result<(), RootError> {
        let flags = match access {
            DirectoryAccess::ReadOnly => QUIET | MountFlags::RDONLY,
            DirectoryAccess::Writable => QUIET,
        };
        let target = self.at(at);
        fs::create_dir_all(&target)
            .and_then(|()| bind(from, &target, flags))
            .map_err(RootError::of(format!("show {}", at.display())))
    }

    /// Makes a file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, at: &Path, content: &[u8]) -> Result<(), RootError> {
        let target = self.at(at);
        make_parent(&target)
            .and_then(|()| fs::write(target, content))
            .map_err(RootError::of(format!("write {}", at.display())))
    }

    /// Shows the processes of this process's own namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn mount_proc(&self) -> Result<(), RootError> {
        let at = self.at(Path::new("/proc"));
        fs::create_dir_all(&at)
            .and_then(|()| Ok(mount("proc", &at, "proc", QUIET | MountFlags::RDONLY, c"")?))
            .map_err(RootError::of("mount /proc"))
    }

    /// Makes it the root directory, which cannot be changed then.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn enter(self) -> Result<(), RootError> {
        self.pivot().map_err(RootError::of("change the root directory"))?;
        mount_remount("/", MountFlags::BIND | QUIET | MountFlags::RDONLY, c"")
            .map_err(RootError::of("protect the root directory"))
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn make(&self, entry: &Entry) -> io::Result<()> {
        let read_only = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        match entry {
            Entry::Link { at, to } => {
                let link = self.at(at);
                make_parent(&link)?;
                std::os::unix::fs::symlink(to, link)
            }
            Entry::Directory(path) => {
                let at = self.at(path);
                fs::create_dir_all(&at)?;
                // /usr/local may be a file system of its own.
                mount_bind_recursive(path, &at)?;
                match protect_tree(&at) {
                    // Kernels before 5.12 protect one file system at a time; users may not write to the others either.
                    Err(Errno::NOSYS) => Ok(mount_remount(&at, MountFlags::BIND | read_only, c"")?),
                    protected => Ok(protected?),
                }
            }
            Entry::File(path) => {
                let at = self.at(path);
                make_file(&at)?;
                bind(path, &at, read_only)
            }
            Entry::Device(path) => {
                let at = self.at(path);
                make_file(&at)?;
                // A device may be used in a read-only file system.
                bind(path, &at, MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NOEXEC)
            }
        }
    }

    fn pivot(&self) -> Result<(), Errno> {
        chdir(self.0)?;
        match pivot_root(".", ".") {
            Ok(()) => unmount(".", UnmountFlags::DETACH)?,
            // The node runs from its initial RAM disk, which cannot be unmounted: it is hidden.
            Err(Errno::INVAL) => {
                mount_move(".", "/")?;
                chroot(".")?;
            }
            Err(error) => return Err(error),
        }
        chdir("/")
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn make_file(path: &Path) -> io::Result<()> {
    make_parent(path)?;
    fs::File::create(path).map(drop)
}

/// Protects the file systems at and below a mount point from changes.
fn protect_tree(at: &Path) -> Result<(), Errno> {
    let path = CString::new(at.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: the kernel reads the path, which ends with a zero, and the attributes, whose size is an argument. Both live until
    // it returns, and it keeps neither.
    #[expect(unsafe_code, reason = "rustix has no mount_setattr")]
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    match answer {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// Shows what is in one file system.
fn bind(from: &Path, at: &Path, flags: MountFlags) -> io::Result<()> {
    mount_bind(from, at)?;
    // A bind mount takes its flags only when it is mounted again.
    Ok(mount_remount(at, MountFlags::BIND | flags, c"")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(path: &Path) -> Kind {
        match path.to_str().unwrap() {
            "/usr" | "/etc/alternatives" | "/srv" | "/home" => Kind::Directory,
            "/lib" | "/bin" => Kind::Link(Path::new("usr").join(path.strip_prefix("/").unwrap())),
            "/etc/ld.so.cache" | "/dev/null" | "/srv/bios" | "/usr/bin/qemu" | "/lib/bios" => Kind::File,
            "/srv/launcher" => Kind::Link("/opt/launcher".into()),
            _ => Kind::Absent,
        }
    }

    #[test]
    fn the_system_is_shown_and_of_the_rest_single_files() {
        let shown = [
            "/srv/launcher",
            "/srv/bios",
            "/srv/bios",
            "/usr/bin/qemu",
            "/lib/bios",
            "/home",
            "/absent",
            "qemu",
        ];
        let link =
            |name: &str| Entry::Link { at: Path::new("/").join(name), to: Path::new("usr").join(name) };
        assert_eq!(
            plan(&shown.map(PathBuf::from), system),
            [
                Entry::Directory("/usr".into()),
                link("bin"),
                link("lib"),
                Entry::Directory("/etc/alternatives".into()),
                Entry::File("/etc/ld.so.cache".into()),
                Entry::Device("/dev/null".into()),
                Entry::File("/srv/launcher".into()),
                Entry::File("/srv/bios".into()),
            ]
        );
    }

    #[test]
    fn nothing_that_may_have_secrets_is_shown() {
        let all = plan(&[], |_| Kind::Directory);
        for secret in ["/etc/shadow", "/etc/kubernetes", "/root", "/home", "/var", "/run", "/dev/sda", "/sys"]
        {
            let is_shown = |entry: &Entry| {
                let (Entry::Link { at, .. } | Entry::Directory(at) | Entry::File(at) | Entry::Device(at)) =
                    entry;
                Path::new(secret).starts_with(at) || at.starts_with(secret)
            };
            assert!(!all.iter().any(is_shown), "{secret}");
        }
    }
}
