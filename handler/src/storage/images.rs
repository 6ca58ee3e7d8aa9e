//! The node's images: files taken out of OCI images once, shared read-only by every VM that uses them.
//!
//! A file's name is the digest of the manifest it came from and of its path there, so an image that changes is
//! another file and one that is known is never unpacked again. The same name is imported by one job at a time
//! (`flock`), into a `.partial` file that becomes the image by a rename once it is on stable storage: a crash or a
//! full disk leaves nothing that looks like an image.

mod collect;
mod error;
mod mounted;
mod named;
mod pull;

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use vireo_api::spec::{ImageRef, PullPolicy};
use vireo_importer::{ImageSelector, LayoutKind, ReadAction, WantedFile};
use vireo_proto::files::ImageFile;

use super::allowed::AllowedPaths;
use super::importer::ImageReader;
use super::node_file;
use super::registry::{PullSecret, RegistrySettings};
use crate::jobs::{JobContext, Jobs};
use crate::launcher::pod::ImageContainer;

use named::NameCache;

pub(super) use collect::hold;
pub use error::ImageError;

/// How often a job checks whether another import of the same file has ended.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// A file of an image.
#[derive(Clone, Debug)]
pub struct Source {
    image: ImageRef,
    file: WantedFile,
    /// The digest of an image that the kubelet has pulled.
    pulled: Option<String>,
    policy: PullPolicy,
    secrets: Vec<PullSecret>,
}

impl Source {
    /// A container disk: the file at `path` in the image, or the only one below `/disk`. It becomes a raw image.
    pub fn container_disk(image: &ImageRef, path: Option<&str>) -> Self {
        Self::new(image, WantedFile::disk(path))
    }

    /// A kernel or initrd at `path` in the image, as it is.
    pub fn boot_file(image: &ImageRef, path: &str) -> Self {
        Self::new(image, WantedFile::boot(path))
    }

    fn new(image: &ImageRef, file: WantedFile) -> Self {
        let (image, policy) = (image.clone(), PullPolicy::IfNotPresent);
        Self { image, file, pulled: None, policy, secrets: Vec::new() }
    }

    /// The same of an image that this node pulls, when, and with which credentials.
    pub fn pull(self, policy: PullPolicy, secrets: Vec<PullSecret>) -> Self {
        Self { policy, secrets, ..self }
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

/// How much of an image has been downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// As manifests name it.
    pub image: String,
    /// Bytes of its layers that are here.
    pub done: u64,
    /// Bytes of its layers; 0 while they are not known.
    pub total: u64,
}

/// An image layout, and which image of it.
#[derive(Debug)]
struct Opened {
    source: OwnedFd,
    layout: LayoutKind,
    image: ImageSelector,
}

/// The image store below the state directory.
#[derive(Clone, Debug)]
pub struct Images(Arc<Store>);

#[derive(Debug)]
struct Store {
    directory: PathBuf,
    allowed: AllowedPaths,
    /// How images of registries are pulled, where no kubelet pulls them.
    registries: Option<RegistrySettings>,
    reader: ImageReader,
    /// What layouts and archives call their images.
    names: NameCache,
    /// The current imports: other jobs wait for them without a permit of the import pool.
    turns: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// Notified when an import finds no space.
    full: Notify,
    /// The images that are being downloaded, by their digests.
    pulls: Mutex<BTreeMap<String, Pull>>,
}

impl Images {
    /// The store in `directory`, which is created with the first image.
    pub fn new(
        directory: PathBuf,
        allowed: AllowedPaths,
        registries: Option<RegistrySettings>,
        reader: ImageReader,
    ) -> Self {
        let (names, turns, full) = (NameCache::default(), Mutex::default(), Notify::new());
        let pulls = Mutex::default();
        Self(Arc::new(Store { directory, allowed, registries, reader, names, turns, full, pulls }))
    }

    /// The images that are being downloaded, and how far that is.
    pub fn pulls(&self) -> Vec<Pull> {
        self.0.pulls.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Removes images that no VMI uses, from time to time until it is dropped: those that were not used for a week, and, where
    /// the file system is nearly full, those that were not used for the longest time. At once when an import finds no space.
    pub async fn collect_garbage(&self) {
        collect::run(self.0.directory.clone(), &self.0.full).await;
    }

    /// The file of an image for a VMI of a namespace; imported if it is not in the store.
    ///
    /// # Errors
    /// When it cannot be, or takes too long.
    pub async fn get(&self, jobs: &Jobs, namespace: &str, source: Source) -> Result<PathBuf, ImageError> {
        match (&source.image, &self.0.registries) {
            (ImageRef::Registry(_), None) => return self.find_pulled(&source),
            (ImageRef::Registry(_), Some(settings)) if !source.image.is_local_name() => {
                return self.pull(jobs, namespace, source, settings).await;
            }
            _ => {}
        }
        let (images, wanted) = (self.clone(), source.clone());
        let look = move |job: &JobContext| {
            let name = wanted.name(&images.identify(&images.open(&wanted.image, job)?, job)?);
            let at = images.at(&name, &wanted);
            Ok::<_, ImageError>((name, collect::mark_used(&at).then_some(at)))
        };
        let (name, found) = jobs.quick.run(namespace, look).await??;
        if let Some(at) = found {
            return Ok(at);
        }
        let turn = self.turn(&name);
        let _turn = turn.lock().await;
        let images = self.clone();
        self.noted(jobs.imports.run(namespace, move |job| images.import(&source, job)).await?)
    }

    /// The file of an image that the kubelet has pulled, which [`import_pulled`](Self::import_pulled) has imported.
    fn find_pulled(&self, source: &Source) -> Result<PathBuf, ImageError> {
        let digest = source.pulled.as_deref().ok_or(ImageError::NoContainer)?;
        let at = self.at(&source.name(digest), source);
        if collect::mark_used(&at) { Ok(at) } else { Err(ImageError::NotImported(source.file.to_string())) }
    }

    /// Imports the files that the container of an image offers, and lets the container end. `digest` is that by which the
    /// kubelet knows the image.
    ///
    /// # Errors
    /// When the files cannot be had or imported, or it takes too long.
    pub(crate) async fn import_pulled(
        &self,
        jobs: &Jobs,
        namespace: &str,
        (digest, container): (&str, ImageContainer),
    ) -> Result<(), ImageError> {
        let offering = container.clone();
        for (file_of_image, file) in jobs.quick.run(namespace, move |_| offering.files()).await?? {
            let image = ImageRef::Registry(digest.to_owned());
            let source = match &file_of_image {
                ImageFile::Disk(path) => {
                    Source::container_disk(&image, path.as_deref().and_then(Path::to_str))
                }
                ImageFile::File(path) => Source::boot_file(&image, &path.to_string_lossy()),
            };
            let key = source.name(digest);
            let at = self.at(&key, &source);
            if collect::mark_used(&at) {
                continue;
            }
            let turn = self.turn(&key);
            let _turn = turn.lock().await;
            let images = self.clone();
            let import = move |job: &JobContext| {
                let action = ReadAction::Copy { file: source.file };
                images.once(&key, &at, (&action, file.into()), job).map(drop)
            };
            self.noted(jobs.imports.run(namespace, import).await?)?;
        }
        jobs.quick.run(namespace, move |_| container.finish()).await?
    }

    /// Has unused images removed where an import found no space: it is tried again.
    fn noted<T>(&self, imported: Result<T, ImageError>) -> Result<T, ImageError> {
        if matches!(imported, Err(ImageError::Full)) {
            self.0.full.notify_one();
        }
        imported
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

    /// Opens an image of the node. Blocks.
    fn open(&self, image: &ImageRef, job: &JobContext) -> Result<Opened, ImageError> {
        if let ImageRef::Registry(name) = image {
            return self.find_named(name, job);
        }
        let path = image.path().ok_or(ImageError::NoContainer)?;
        self.0.allowed.check_image(path)?;
        let (layout, opened) = match (image, self.0.allowed.images.containing(path)) {
            (ImageRef::Layout { .. }, Some((directory, rest))) => {
                let opened = node_file::directory(directory)
                    .and_then(|directory| node_file::directory_beneath(directory, rest));
                (LayoutKind::Directory, opened)
            }
            (ImageRef::Archive { .. }, Some((directory, rest))) => {
                let opened = node_file::directory(directory)
                    .and_then(|directory| node_file::regular_beneath(directory, rest));
                (LayoutKind::Archive, opened.map(OwnedFd::from))
            }
            (ImageRef::Layout { .. }, None) => (LayoutKind::Directory, node_file::directory(path)),
            (ImageRef::Archive { .. }, None) => {
                (LayoutKind::Archive, node_file::regular(path).map(OwnedFd::from))
            }
            (ImageRef::Registry(_), _) => return Err(ImageError::NoContainer),
        };
        let source = opened.map_err(|source| ImageError::Open { path: path.to_owned(), source })?;
        let image = image.tag().map_or(ImageSelector::Only, |tag| ImageSelector::Tag(tag.to_owned()));
        Ok(Opened { source, layout, image })
    }

    /// The digest of an image's manifest. Blocks.
    fn identify(&self, image: &Opened, job: &JobContext) -> Result<String, ImageError> {
        let source = image.source.try_clone().map_err(ImageError::NoImporter)?;
        let action = ReadAction::Identify { layout: image.layout, image: image.image.clone() };
        self.0.reader.identify(&action, source, job)
    }

    /// Imports a file of an image, if it is not in the store. Blocks.
    fn import(&self, source: &Source, job: &JobContext) -> Result<PathBuf, ImageError> {
        let image = self.open(&source.image, job)?;
        let digest = self.identify(&image, job)?;
        self.import_from(image, digest, source, job)
    }

    fn import_from(
        &self,
        image: Opened,
        digest: String,
        source: &Source,
        job: &JobContext,
    ) -> Result<PathBuf, ImageError> {
        let (name, file) = (source.name(&digest), source.file.clone());
        let action = ReadAction::Unpack { layout: image.layout, image: image.image, digest, file };
        self.once(&name, &self.at(&name, source), (&action, image.source), job)
    }

    fn once(
        &self,
        name: &str,
        at: &Path,
        (action, source): (&ReadAction, OwnedFd),
        job: &JobContext,
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
        let made = create(&partial)
            .map_err(store(&partial))
            .and_then(|output| self.0.reader.unpack(action, source, (&output, directory), job))
            .and_then(|_| job.checkpoint().map_err(store(at)))
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

fn store(path: &Path) -> impl Fn(io::Error) -> ImageError {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ImageError::Full,
        _ => ImageError::Store { path: path.clone(), source },
    }
}

/// Makes an empty file.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// Lower-case hexadecimal.
fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
