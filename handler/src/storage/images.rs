//! The node's images: files taken out of OCI images once, shared read-only by every VM that uses them.
//!
//! A file's name is the digest of the manifest it came from and of its path there, so an image that changes is
//! another file and one that is known is never unpacked again. The same name is imported by one job at a time
//! (`flock`), into a `.partial` file that becomes the image by a rename once it is on stable storage: a crash or a
//! full disk leaves nothing that looks like an image.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tracing::debug;
use vireo_api::spec::ImageRef;
use vireo_proto::files::{self, ImageFile};

use super::allowed::{AllowedPaths, NotAllowed};
use super::blobs::{BlobError, Blobs, Location, hex_of, plain};
use super::format::{self, Format, FormatError};
use super::node_file::{self, OpenError};
use super::oci::{Found, Image, OciError};
use super::sparse;
use crate::jobs::{JobContext, JobError, Jobs, child};

/// Sectors are 512 bytes: a raw image is padded to whole ones.
const SECTOR: u64 = 512;
/// The largest kernel or initrd.
const BOOT_FILE_LIMIT: u64 = 4 << 30;
/// How often a job checks whether another import of the same file has ended.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// A file of an image.
#[derive(Clone, Debug)]
pub struct Source {
    image: ImageRef,
    file: WantedFile,
    /// The digest of an image that the kubelet has pulled.
    pulled: Option<String>,
}

#[derive(Clone, Debug)]
enum WantedFile {
    /// At a path, or the only one below `/disk`.
    Disk(Option<PathBuf>),
    Boot(PathBuf),
}

impl fmt::Display for WantedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(None) => f.write_str("the file below /disk"),
            Self::Disk(Some(path)) | Self::Boot(path) => write!(f, "/{}", path.display()),
        }
    }
}

impl Source {
    /// A container disk: the file at `path` in the image, or the only one below `/disk`. It becomes a raw image.
    pub fn container_disk(image: &ImageRef, path: Option<&str>) -> Self {
        let path = path.map(|path| plain(Path::new(path)));
        Self { image: image.clone(), file: WantedFile::Disk(path), pulled: None }
    }

    /// A kernel or initrd at `path` in the image, as it is.
    pub fn boot_file(image: &ImageRef, path: &str) -> Self {
        Self { image: image.clone(), file: WantedFile::Boot(plain(Path::new(path))), pulled: None }
    }

    /// The same of an image that the kubelet has pulled and knows by a digest.
    pub fn pulled(self, digest: Option<String>) -> Self {
        Self { pulled: digest, ..self }
    }

    /// The name in the store of the file from an image with this digest.
    fn name(&self, digest: &str) -> String {
        let key = match &self.file {
            WantedFile::Disk(path) => {
                format!("disk\0{digest}\0{}", path.as_deref().unwrap_or(Path::new("")).display())
            }
            WantedFile::Boot(path) => format!("file\0{digest}\0{}", path.display()),
        };
        hex_of(&Sha256::digest(key))
    }
}

/// The image store below the state directory.
#[derive(Clone, Debug)]
pub struct Images(Arc<Store>);

#[derive(Debug)]
struct Store {
    directory: PathBuf,
    allowed: AllowedPaths,
    /// The current imports: other jobs wait for them without a permit of the import pool.
    turns: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

/// Why an image cannot be imported. It does not quote the content of a file of the node.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Not one that manifests may name.
    #[error(transparent)]
    NotAllowed(#[from] NotAllowed),
    /// The layout directory or the archive.
    #[error("cannot open {path}")]
    Open {
        /// As the manifest names it.
        path: PathBuf,
        /// Why.
        source: OpenError,
    },
    /// An image of a registry, where no kubelet pulls it.
    #[error("pulling from a registry is not available here: use oci: or oci-archive:")]
    Registry,
    /// The kubelet has pulled the image, but the store does not have its file.
    #[error(
        "the image store of the node does not have {0}: delete the launcher Pod, and it is imported again"
    )]
    NotImported(String),
    /// The container of the image does not offer its files.
    #[error("cannot get the files of the image from its container")]
    Fetch(#[source] io::Error),
    /// The OCI image.
    #[error(transparent)]
    Oci(#[from] OciError),
    /// Nothing at that path in the image.
    #[error("the image has no file {0}")]
    NoFile(String),
    /// A path that leads to something else.
    #[error("{file} in the image is {what}, not a regular file")]
    NotRegular {
        /// The path in the image.
        file: String,
        /// What is there.
        what: &'static str,
    },
    /// A container disk must hold one disk.
    #[error(
        "the image must hold exactly one file below /disk, or containerDisk.path must name one; it holds {0}"
    )]
    NotOneDisk(usize),
    /// The disk itself.
    #[error("{file} in the image cannot be used")]
    Format {
        /// The path in the image.
        file: String,
        /// Why.
        source: FormatError,
    },
    /// `qemu-img` could not convert it.
    #[error("qemu-img cannot convert the disk image: it is damaged")]
    Convert,
    /// No space is left.
    #[error("no space is left on the node for the disk image")]
    Full,
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
    /// It took too long, or too much hangs already.
    #[error(transparent)]
    Job(#[from] JobError),
}

impl From<BlobError> for ImageError {
    fn from(error: BlobError) -> Self {
        Self::Oci(error.into())
    }
}

impl Images {
    /// The store in `directory`, which is created with the first image.
    pub fn new(directory: PathBuf, allowed: AllowedPaths) -> Self {
        Self(Arc::new(Store { directory, allowed, turns: Mutex::default() }))
    }

    /// The file of an image for a VMI of a namespace; imported if it is not in the store.
    ///
    /// # Errors
    /// When it cannot be, or takes too long.
    pub async fn get(&self, jobs: &Jobs, namespace: &str, source: Source) -> Result<PathBuf, ImageError> {
        if let ImageRef::Registry(_) = source.image {
            return self.find_pulled(&source);
        }
        let (images, wanted) = (self.clone(), source.clone());
        let look = move |job: &JobContext| {
            let name = wanted.name(images.open(&wanted.image, job)?.digest());
            let at = images.at(&name, &wanted);
            Ok::<_, ImageError>((name, at.exists().then_some(at)))
        };
        let (name, found) = jobs.quick.run(namespace, look).await??;
        if let Some(at) = found {
            return Ok(at);
        }
        let turn = self.turn(&name);
        let _turn = turn.lock().await;
        let images = self.clone();
        jobs.imports.run(namespace, move |job| images.import(&source, job)).await?
    }

    /// The file of an image that the kubelet has pulled, which [`import_pulled`](Self::import_pulled) has imported.
    fn find_pulled(&self, source: &Source) -> Result<PathBuf, ImageError> {
        let digest = source.pulled.as_deref().ok_or(ImageError::Registry)?;
        let at = self.at(&source.name(digest), source);
        if at.exists() { Ok(at) } else { Err(ImageError::NotImported(source.file.to_string())) }
    }

    /// Imports the files that the container of an image offers at a socket, and lets the container end. `digest` is that by
    /// which the kubelet knows the image.
    ///
    /// # Errors
    /// When the files cannot be had or imported, or it takes too long.
    pub async fn import_pulled(
        &self,
        jobs: &Jobs,
        namespace: &str,
        (digest, socket): (String, PathBuf),
    ) -> Result<(), ImageError> {
        let fetch = {
            let socket = socket.clone();
            move |_: &JobContext| files::fetch(&socket).map_err(ImageError::Fetch)
        };
        for (name, file) in jobs.quick.run(namespace, fetch).await?? {
            let Some(file_of_image) = ImageFile::parse(&name) else { continue };
            let image = ImageRef::Registry(digest.clone());
            let source = match &file_of_image {
                ImageFile::Disk(path) => {
                    Source::container_disk(&image, path.as_deref().and_then(Path::to_str))
                }
                ImageFile::File(path) => Source::boot_file(&image, &path.to_string_lossy()),
            };
            let key = source.name(&digest);
            let at = self.at(&key, &source);
            if at.exists() {
                continue;
            }
            let turn = self.turn(&key);
            let _turn = turn.lock().await;
            let images = self.clone();
            let import = move |job: &JobContext| {
                let file = File::from(file);
                images.once(&key, &at, job, |partial| unpack(file, &source.file, partial, job)).map(drop)
            };
            jobs.imports.run(namespace, import).await??;
        }
        let finish = move |_: &JobContext| files::finish(&socket).map_err(ImageError::Fetch);
        jobs.quick.run(namespace, finish).await?
    }

    fn turn(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        turns.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
            let turn = Arc::default();
            turns.insert(name.to_owned(), Arc::downgrade(&turn));
            turn
        })
    }

    fn at(&self, name: &str, source: &Source) -> PathBuf {
        let extension = match source.file {
            WantedFile::Disk(_) => "raw",
            WantedFile::Boot(_) => "bin",
        };
        self.0.directory.join(format!("{name}.{extension}"))
    }

    fn open(&self, image: &ImageRef, job: &JobContext) -> Result<Image, ImageError> {
        let path = image.path().ok_or(ImageError::Registry)?;
        self.0.allowed.check_image(path)?;
        let location = match (image, self.0.allowed.images.containing(path)) {
            (ImageRef::Layout { .. }, Some((directory, rest))) => node_file::directory(directory)
                .and_then(|directory| node_file::directory_beneath(directory, rest))
                .map(Location::Directory),
            (ImageRef::Archive { .. }, Some((directory, rest))) => node_file::directory(directory)
                .and_then(|directory| node_file::regular_beneath(directory, rest))
                .map(Location::Archive),
            (ImageRef::Layout { .. }, None) => node_file::directory(path).map(Location::Directory),
            (ImageRef::Archive { .. }, None) => node_file::regular(path).map(Location::Archive),
            (ImageRef::Registry(_), _) => return Err(ImageError::Registry),
        };
        let location = location.map_err(|source| ImageError::Open { path: path.to_owned(), source })?;
        Ok(Image::open(Blobs::open(location, job)?, image.tag())?)
    }

    /// Imports a file of an image, if it is not in the store. Blocks.
    fn import(&self, source: &Source, job: &JobContext) -> Result<PathBuf, ImageError> {
        let image = self.open(&source.image, job)?;
        let name = source.name(image.digest());
        self.once(&name, &self.at(&name, source), job, |partial| match &source.file {
            WantedFile::Disk(path) => {
                let picks = |at: &Path| match path {
                    Some(path) => at == path,
                    None => at.parent() == Some(Path::new("disk")),
                };
                let mut found = image.files(picks, &self.0.directory, job)?;
                if path.is_none() && found.len() != 1 {
                    return Err(ImageError::NotOneDisk(found.len()));
                }
                unpack_disk(regular(&source.file, found.pop_first())?, &source.file, partial, job)
            }
            WantedFile::Boot(path) => {
                let mut found = image.files(|at| at == path, &self.0.directory, job)?;
                let mut file = regular(&source.file, found.pop_first())?;
                copy_out(&mut file, partial, BOOT_FILE_LIMIT, job).map(drop)
            }
        })
    }

    fn once(
        &self,
        name: &str,
        at: &Path,
        job: &JobContext,
        make: impl FnOnce(&Path) -> Result<(), ImageError>,
    ) -> Result<PathBuf, ImageError> {
        let directory = &self.0.directory;
        if at.exists() {
            return Ok(at.to_owned());
        }
        fs::create_dir_all(directory).map_err(store(directory))?;
        let _lock = lock(&directory.join(format!("{name}.lock")), job)?;
        if at.exists() {
            return Ok(at.to_owned());
        }
        let partial = directory.join(format!("{name}.partial"));
        let made = make(&partial)
            .and_then(|()| job.checkpoint().map_err(store(at)))
            .and_then(|()| publish(&partial, at, directory).map_err(store(at)));
        if made.is_err() {
            // Remove a partial file, if there is one.
            let _ = fs::remove_file(&partial);
        }
        made.map(|()| at.to_owned())
    }
}

/// Locks a file. An abandoned job may still hold the lock.
fn lock(path: &Path, job: &JobContext) -> Result<File, ImageError> {
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let lock = lock.map_err(store(path))?;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK) => {
                job.checkpoint().map_err(store(path))?;
                std::thread::sleep(LOCK_RETRY);
            }
            Err(error) => return Err(store(path)(error.into())),
        }
    }
}

/// Puts a file of an image where it is to be in the store.
fn unpack(mut file: File, wanted: &WantedFile, partial: &Path, job: &JobContext) -> Result<(), ImageError> {
    if !file.metadata().map_err(ImageError::Fetch)?.is_file() {
        let what = "a directory or a special file";
        return Err(ImageError::NotRegular { file: wanted.to_string(), what });
    }
    match wanted {
        WantedFile::Disk(_) => unpack_disk(file, wanted, partial, job),
        WantedFile::Boot(_) => copy_out(&mut file, partial, BOOT_FILE_LIMIT, job).map(drop),
    }
}

fn store(path: &Path) -> impl Fn(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ImageError::Full,
        _ => ImageError::Store { path: path.clone(), source },
    }
}

fn regular(wanted: &WantedFile, found: Option<(PathBuf, Found)>) -> Result<File, ImageError> {
    match found {
        Some((_, Found::Regular(file))) => Ok(file),
        Some((_, Found::Other(what))) => Err(ImageError::NotRegular { file: wanted.to_string(), what }),
        None => Err(ImageError::NoFile(wanted.to_string())),
    }
}

fn unpack_disk(mut disk: File, wanted: &WantedFile, to: &Path, job: &JobContext) -> Result<(), ImageError> {
    let format = format::probe(&disk);
    match format.map_err(|source| ImageError::Format { file: wanted.to_string(), source })? {
        Format::Raw => {
            let length = copy_out(&mut disk, to, u64::MAX, job)?;
            let whole = length.next_multiple_of(SECTOR);
            File::options().write(true).open(to).and_then(|file| file.set_len(whole)).map_err(store(to))
        }
        Format::Qcow2 { virtual_size: _ } => convert(&disk, to, job),
    }
}

fn copy_out(from: &mut File, to: &Path, limit: u64, job: &JobContext) -> Result<u64, ImageError> {
    let mut write = || -> io::Result<u64> {
        from.rewind()?;
        let mut out = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(to)?;
        sparse::copy(&mut from.by_ref(), &mut out, limit, job)
    };
    write().map_err(store(to))
}

/// Hands the image to `qemu-img` as an inherited file, so that its name in the image never reaches a command line.
pub(super) fn convert(disk: &File, to: &Path, job: &JobContext) -> Result<(), ImageError> {
    let input = disk.try_clone().map_err(store(to))?;
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-q", "-f", "qcow2", "-O", "raw", "/dev/stdin"]).arg(to);
    let done = child::run(command.stdin(Stdio::from(input)), job).map_err(ImageError::NoQemuImg)?;
    if done.status.success() {
        return Ok(());
    }
    // The message quotes names in the image, which the user may not be allowed to read.
    debug!(status = %done.status, stderr = ?done.stderr, "qemu-img failed");
    Err(match done.stderr.contains("No space left on device") {
        true => ImageError::Full,
        false => ImageError::Convert,
    })
}

fn publish(partial: &Path, at: &Path, directory: &Path) -> io::Result<()> {
    let file = File::open(partial)?;
    file.set_permissions(fs::Permissions::from_mode(0o444))?;
    file.sync_all()?;
    fs::rename(partial, at)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
pub(crate) mod tests;
