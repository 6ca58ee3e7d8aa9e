//! The files of an image, which the node agent opens in a launcher Pod: in a container of the image that the kubelet has
//! started, or in the container `compute`, where the image is a volume.
//!
//! Users can run programs of theirs in a container of the image, and write to volumes of its Pod. What the image has is
//! therefore only what its root file system has, which is read-only there, without the file systems that are mounted on it;
//! and its process is only one that the kernel knows in that container.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Dir, FileType, OFlags, ResolveFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use vireo_api::names::image_mount;
use vireo_proto::files::{self, DISKS, ImageFile};

use super::root::Root;
use crate::storage::ImageError;

/// A container of an image in a launcher Pod.
#[derive(Debug, Clone)]
pub(crate) struct ImageContainer {
    /// The socket at which it offers files.
    pub(crate) socket: PathBuf,
    /// The ID that the runtime gave it, as in the status of the Pod.
    pub(crate) id: String,
}

impl ImageContainer {
    /// The files that it offers, open. Blocks.
    ///
    /// # Errors
    /// When it offers none, is not what offers them, or the image does not have them.
    pub(crate) fn files(&self) -> Result<Vec<(ImageFile, File)>, ImageError> {
        let (process, names) = files::offered(&self.socket).map_err(ImageError::Fetch)?;
        let root = self.root(process)?;
        let files = names.iter().filter_map(|name| ImageFile::parse(name));
        files.map(|file| Ok((file.clone(), open(&root, &file)?))).collect()
    }

    /// Lets it end. Blocks.
    ///
    /// # Errors
    /// When it does not answer at its socket.
    pub(crate) fn finish(&self) -> Result<(), ImageError> {
        files::finish(&self.socket).map_err(ImageError::Fetch)
    }

    /// The root file system of a process, which must be in this container.
    fn root(&self, process: Pid) -> Result<Root, ImageError> {
        self.root_of(process).map_err(ImageError::Fetch)?.ok_or(ImageError::Foreign)
    }

    /// The same; `None` for a process elsewhere.
    fn root_of(&self, process: Pid) -> io::Result<Option<Root>> {
        let id = process.as_raw_nonzero().get();
        let watched = pidfd_open(process, PidfdFlags::empty())?;
        let root = Root::of(id)?;
        let is_its = is_in_container(&fs::read_to_string(format!("/proc/{id}/cgroup"))?, &self.id);
        // With a user namespace of its own, a process can have another root.
        let users = |process: &str| fs::metadata(format!("/proc/{process}/ns/user")).map(|file| file.ino());
        let is_plain = users(&id.to_string())? == users("self")?;
        if has_ended(&watched)? {
            // Its ID may have become another one's.
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        Ok((is_its && is_plain).then_some(root))
    }
}

/// An image that is a volume of a launcher Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageVolume {
    /// The launcher.
    pub(crate) pid: i32,
    /// The volume.
    pub(crate) name: String,
}

impl ImageVolume {
    /// Opens a file of it. What is mounted at its directory is the root of its links. Blocks.
    ///
    /// # Errors
    /// When the launcher has ended, or the image does not have it.
    pub(crate) fn file(&self, file: &ImageFile) -> Result<File, ImageError> {
        let root = Root::of(self.pid).map_err(ImageError::Mounted)?;
        file_of_volume(&root, &self.name, file)
    }
}

fn file_of_volume(launcher: &Root, volume: &str, file: &ImageFile) -> Result<File, ImageError> {
    let mounted = launcher.at_directory(Path::new(&image_mount(volume))).map_err(ImageError::Mounted)?;
    open(&mounted, file)
}

fn has_ended(process: &OwnedFd) -> io::Result<bool> {
    Ok(poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default()))? > 0)
}

/// Whether a process with these cgroups is in the container with an ID such as `containerd://1f0e…`.
fn is_in_container(cgroups: &str, id: &str) -> bool {
    let Some((_, id)) = id.split_once("://") else { return false };
    // Runtimes put their own name before it, with systemd: `cri-containerd-1f0e….scope`.
    let is_its = |part: &str| {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        part.strip_suffix(id).is_some_and(|before| before.is_empty() || before.ends_with('-'))
    };
    id.len() >= 32 && cgroups.lines().any(|line| line.split(['/', ':']).any(is_its))
}

/// Opens a file of the image whose root file system this is.
fn open(root: &Root, file: &ImageFile) -> Result<File, ImageError> {
    let path = match file {
        ImageFile::Disk(Some(path)) | ImageFile::File(path) => path.clone(),
        ImageFile::Disk(None) => only_disk(root)?,
    };
    beneath(root, &path, OFlags::RDONLY).map(File::from).map_err(|source| failed(&path, source))
}

fn failed(path: &Path, source: io::Error) -> ImageError {
    match source.kind() {
        io::ErrorKind::NotFound => ImageError::NoFile(path.display().to_string()),
        io::ErrorKind::CrossesDevices => ImageError::Foreign,
        _ => ImageError::OpenFile { file: path.display().to_string(), source },
    }
}

/// The only file in the directory for disks.
fn only_disk(root: &Root) -> Result<PathBuf, ImageError> {
    let directory = match beneath(root, Path::new(DISKS), OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ImageError::NotOneDisk(0)),
        opened => opened.map_err(|source| failed(Path::new(DISKS), source))?,
    };
    let listed = |errno: rustix::io::Errno| failed(Path::new(DISKS), errno.into());
    let (mut found, mut count) = (None, 0_usize);
    for entry in Dir::new(directory).map_err(listed)? {
        let entry = entry.map_err(listed)?;
        let path = Path::new(DISKS).join(&*entry.file_name().to_string_lossy());
        let is_file = match entry.file_type() {
            FileType::RegularFile => true,
            FileType::Symlink | FileType::Unknown => {
                let opened = beneath(root, &path, OFlags::RDONLY).map(File::from);
                opened.and_then(|file| file.metadata()).is_ok_and(|file| file.is_file())
            }
            _ => false,
        };
        if is_file {
            found = Some(path);
            count = count.saturating_add(1);
        }
    }
    found.filter(|_| count == 1).ok_or(ImageError::NotOneDisk(count))
}

/// Opens what a path leads to in this file system, and in no other that is mounted on it.
fn beneath(root: &Root, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    root.open(path, flags, ResolveFlags::NO_XDEV)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::symlink;

    use super::*;

    const ID: &str = "containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn a_process_is_in_the_container_that_its_cgroup_names() {
        let hex = ID.split_once("://").unwrap().1;
        let other = hex.replace('0', "1");
        for (cgroups, expected) in [
            (format!("4:memory:/kubepods/besteffort/pod0f0e/{hex}\n1:cpu:/\n"), true),
            (format!("0::/kubepods.slice/kubepods-pod0f0e.slice/cri-containerd-{hex}.scope\n"), true),
            (format!("0::/kubepods.slice/kubepods-pod0f0e.slice/crio-{hex}.scope/container\n"), true),
            (format!("0::/kubepods.slice/kubepods-pod0f0e.slice/cri-containerd-{other}.scope\n"), false),
            (format!("0::/kubepods/pod0f0e/a{hex}\n"), false),
            ("0::/kubepods/pod0f0e\n".to_owned(), false),
        ] {
            assert_eq!(is_in_container(&cgroups, ID), expected, "{cgroups}");
        }
        assert!(!is_in_container("0::/\n", ""));
        assert!(!is_in_container("0::/a\n", "containerd://a"), "it is too short for an ID");
    }

    #[test]
    fn files_are_those_of_the_image() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path()).unwrap();
        let disk = || open(&root, &ImageFile::Disk(None)).unwrap_err();
        assert!(matches!(disk(), ImageError::NotOneDisk(0)));
        let at = directory.path().join("disk");
        fs::create_dir_all(at.join("lost+found")).unwrap();
        assert!(matches!(disk(), ImageError::NotOneDisk(0)));
        fs::write(directory.path().join("a.qcow2"), "image").unwrap();
        // The root is the image's.
        symlink("/a.qcow2", at.join("a.qcow2")).unwrap();
        symlink("/etc/passwd", at.join("passwd")).unwrap();
        let mut content = String::new();
        open(&root, &ImageFile::Disk(None)).unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "image");
        fs::write(at.join("b.img"), "").unwrap();
        assert!(matches!(disk(), ImageError::NotOneDisk(2)));
        let named = ImageFile::Disk(Some("/disk/b.img".into()));
        assert_eq!(open(&root, &named).unwrap().metadata().unwrap().len(), 0);
        let absent = open(&root, &ImageFile::File("/vmlinuz".into())).unwrap_err();
        assert!(matches!(&absent, ImageError::NoFile(path) if path == "/vmlinuz"), "{absent}");
    }

    #[test]
    fn files_of_an_image_volume_are_beneath_it() {
        let directory = tempfile::tempdir().unwrap();
        let launcher = Root::at(directory.path()).unwrap();
        let disk = |path: Option<&str>| {
            file_of_volume(&launcher, "volumeroot", &ImageFile::Disk(path.map(PathBuf::from)))
        };
        assert!(matches!(disk(None), Err(ImageError::Mounted(_))));
        // As in a container, where /var/run leads to /run.
        fs::create_dir(directory.path().join("var")).unwrap();
        symlink("/run", directory.path().join("var/run")).unwrap();
        let image = directory.path().join("run/kubevirt-private/images/volumeroot");
        fs::create_dir_all(image.join("disk")).unwrap();
        assert!(matches!(disk(None), Err(ImageError::NotOneDisk(0))));
        fs::write(directory.path().join("secret"), "of the launcher").unwrap();
        fs::write(image.join("real"), "image").unwrap();
        symlink("/real", image.join("disk/root.qcow2")).unwrap();
        let mut content = String::new();
        disk(None).unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, "image");
        for target in ["/secret", "../../../../../secret", "../../secret"] {
            symlink(target, image.join("out")).unwrap();
            assert!(matches!(disk(Some("/out")), Err(ImageError::NoFile(_))), "{target}");
            fs::remove_file(image.join("out")).unwrap();
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, image.join("disk/fifo"), rustix::fs::Mode::RUSR).unwrap();
        assert!(disk(None).is_ok(), "a fifo is no disk");
        fs::write(image.join("disk/other.img"), "").unwrap();
        assert!(matches!(disk(None), Err(ImageError::NotOneDisk(2))));
        assert!(disk(Some("/disk/other.img")).is_ok());
    }

    #[test]
    fn what_is_mounted_on_the_image_is_not_of_it() {
        let root = Root::at(Path::new("/")).unwrap();
        let foreign = open(&root, &ImageFile::File("/proc/version".into())).unwrap_err();
        assert!(matches!(foreign, ImageError::Foreign), "{foreign}");
    }

    #[test]
    fn files_are_taken_from_a_process_of_the_container_alone() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("disk.sock");
        let container = ImageContainer { socket: socket.clone(), id: ID.to_owned() };
        assert!(matches!(container.files(), Err(ImageError::Fetch(_))));
        let listener = files::listener(&socket).unwrap();
        std::thread::spawn(move || files::offer(listener.as_fd(), &["file:/etc/passwd".to_owned()]));
        assert!(matches!(container.files(), Err(ImageError::Foreign)), "this process is in no container");
    }
}
