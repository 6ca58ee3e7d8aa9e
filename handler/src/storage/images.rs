//! The node's images: files taken out of OCI images once, shared read-only by every VM that uses them.
//!
//! A file's name is the digest of the manifest it came from and of its path there, so an image that changes is
//! another file and one that is known is never unpacked again. The same name is imported by one process at a time
//! (`flock`), into a `.partial` file that becomes the image by a rename once it is on stable storage: a crash or a
//! full disk leaves nothing that looks like an image.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use super::blobs::{Blobs, hex_of};
use super::format::{self, Format, FormatError};
use super::oci::{Found, Image, OciError};
use super::sparse;

/// Sectors are 512 bytes: a raw image is padded to whole ones.
const SECTOR: u64 = 512;
/// Nobody's kernel or initrd is larger.
const BOOT_FILE_LIMIT: u64 = 4 << 30;

/// Where an OCI image is on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// `oci:DIR[:TAG]`
    Directory(PathBuf),
    /// `oci-archive:FILE[:TAG]`
    Archive(PathBuf),
}

/// The image store below the state directory.
#[derive(Clone, Debug)]
pub struct Images {
    directory: PathBuf,
}

/// Why an image could not be brought into the store.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The OCI image.
    #[error(transparent)]
    Oci(#[from] OciError),
    /// Nothing at that path in the image.
    #[error("the image has no file {0}")]
    NoFile(PathBuf),
    /// A path that leads to something else.
    #[error("{path} in the image is {what}, not a regular file")]
    NotRegular {
        /// The path in the image.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// A container disk must hold one disk.
    #[error("the image must hold exactly one file below /disk, or containerDisk.path must name one; it holds: {}",
        if .0.is_empty() { "none".to_owned() } else { .0.join(", ") })]
    NotOneDisk(Vec<String>),
    /// The disk itself.
    #[error("{path} in the image cannot be used")]
    Format {
        /// The path in the image.
        path: PathBuf,
        /// Why.
        source: FormatError,
    },
    /// `qemu-img` could not convert it.
    #[error("qemu-img could not convert {path}: {output}")]
    Convert {
        /// The path in the image.
        path: PathBuf,
        /// What it printed.
        output: String,
    },
    /// `qemu-img` could not be started.
    #[error("cannot run qemu-img (Debian package qemu-utils)")]
    NoQemuImg(#[source] io::Error),
    /// The store.
    #[error("cannot write {path} in the image store")]
    Store {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Images {
    /// The store in `directory`, which is made when the first image comes.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The raw image of a container disk: the file at `path` in the image, or the only one below `/disk`.
    pub fn container_disk(
        &self,
        layout: &Layout,
        tag: Option<&str>,
        path: Option<&Path>,
    ) -> Result<PathBuf, ImageError> {
        let image = open(layout, tag)?;
        let wanted = path.map(super::blobs::plain);
        let key =
            format!("disk\0{}\0{}", image.digest(), wanted.as_deref().unwrap_or(Path::new("")).display());
        self.once(&key, "raw", |partial| {
            let picks = |at: &Path| match &wanted {
                Some(wanted) => at == wanted,
                None => at.parent() == Some(Path::new("disk")),
            };
            let mut found = image.files(picks, &self.directory)?;
            if wanted.is_none() && found.len() != 1 {
                let names = found.keys().map(|path| format!("/{}", path.display())).collect();
                return Err(ImageError::NotOneDisk(names));
            }
            let (path, what) =
                found.pop_first().ok_or_else(|| ImageError::NoFile(shown(wanted.unwrap_or_default())))?;
            let mut disk = regular(&path, what)?;
            match format::probe(&disk).map_err(|source| ImageError::Format { path: shown(&path), source })? {
                Format::Raw => {
                    let length = copy_out(&mut disk, partial, u64::MAX)?;
                    let whole = length.next_multiple_of(SECTOR);
                    File::options()
                        .write(true)
                        .open(partial)
                        .and_then(|file| file.set_len(whole))
                        .map_err(store(partial))
                }
                Format::Qcow2 { virtual_size: _ } => convert(&disk, &path, partial),
            }
        })
    }

    /// A kernel or initrd at `path` in the image, as it is.
    pub fn boot_file(&self, layout: &Layout, tag: Option<&str>, path: &Path) -> Result<PathBuf, ImageError> {
        let image = open(layout, tag)?;
        let wanted = super::blobs::plain(path);
        let key = format!("file\0{}\0{}", image.digest(), wanted.display());
        self.once(&key, "bin", |partial| {
            let mut found = image.files(|at| at == wanted, &self.directory)?;
            let what = found.remove(&wanted).ok_or_else(|| ImageError::NoFile(shown(&wanted)))?;
            copy_out(&mut regular(&wanted, what)?, partial, BOOT_FILE_LIMIT).map(drop)
        })
    }

    fn once(
        &self,
        key: &str,
        extension: &str,
        make: impl FnOnce(&Path) -> Result<(), ImageError>,
    ) -> Result<PathBuf, ImageError> {
        let name = hex_of(&Sha256::digest(key));
        let at = self.directory.join(format!("{name}.{extension}"));
        if at.exists() {
            return Ok(at);
        }
        fs::create_dir_all(&self.directory).map_err(store(&self.directory))?;
        let lock_path = self.directory.join(format!("{name}.lock"));
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
        let lock = lock.map_err(store(&lock_path))?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| store(&lock_path)(error.into()))?;
        if at.exists() {
            return Ok(at);
        }
        let partial = self.directory.join(format!("{name}.partial"));
        let made = make(&partial).and_then(|()| publish(&partial, &at, &self.directory).map_err(store(&at)));
        if made.is_err() {
            // Nothing half-written stays; that it may not exist at all is fine.
            let _ = fs::remove_file(&partial);
        }
        made.map(|()| at)
    }
}

fn open(layout: &Layout, tag: Option<&str>) -> Result<Image, OciError> {
    let blobs = match layout {
        Layout::Directory(path) => Blobs::directory(path)?,
        Layout::Archive(path) => Blobs::archive(path)?,
    };
    Image::open(blobs, tag)
}

fn store(path: &Path) -> impl Fn(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| ImageError::Store { path: path.clone(), source }
}

fn shown(path: impl AsRef<Path>) -> PathBuf {
    Path::new("/").join(path)
}

fn regular(path: &Path, what: Found) -> Result<File, ImageError> {
    match what {
        Found::Regular(file) => Ok(file),
        Found::Other(what) => Err(ImageError::NotRegular { path: shown(path), what }),
    }
}

fn copy_out(from: &mut File, to: &Path, limit: u64) -> Result<u64, ImageError> {
    let write = || -> io::Result<u64> {
        from.rewind()?;
        let mut out = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(to)?;
        sparse::copy(&mut from.by_ref(), &mut out, limit)
    };
    let mut write = write;
    write().map_err(store(to))
}

/// Hands the image to `qemu-img` as an inherited file, so that its name in the image never reaches a command line.
pub(super) fn convert(disk: &File, path: &Path, to: &Path) -> Result<(), ImageError> {
    let input = disk.try_clone().map_err(store(to))?;
    let output = Command::new("qemu-img")
        .args(["convert", "-q", "-f", "qcow2", "-O", "raw", "/dev/stdin"])
        .arg(to)
        .stdin(Stdio::from(input))
        .output()
        .map_err(ImageError::NoQemuImg)?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(ImageError::Convert { path: shown(path), output: text });
    }
    Ok(())
}

fn publish(partial: &Path, at: &Path, directory: &Path) -> io::Result<()> {
    let file = File::open(partial)?;
    file.set_permissions(fs::Permissions::from_mode(0o444))?;
    file.sync_all()?;
    fs::rename(partial, at)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
pub(super) mod tests;
