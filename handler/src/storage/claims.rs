//! Persistent volume claims on this node: one directory, in it `<namespace>/<claim>/disk.img`.
//!
//! Only this module knows the path of a claim's disk. `vireo` creates it from the objects of its API, an administrator
//! for `virt-handler --manifests`; in a cluster it is a mounted volume.

mod dumps;
mod pool;
mod upload;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::importer::ImageReader;
use super::volumes::{VolumeError, host_disk};

pub(crate) use dumps::DumpDirectory;
use pool::Promises;
pub use pool::{Reservation, Size};
pub use upload::{Filled, Upload, UploadError};

/// What KubeVirt calls the disk in a claim's file system.
const DISK: &str = "disk.img";
/// Sizes are whole pages, so that every sector size fits.
const PAGE: u64 = 4096;
/// Marks a disk that no VM may use before its image is uploaded.
const AWAITED: &str = "image.awaited";

/// Why a claim's disk cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// It does not exist.
    #[error("PVC {namespace}/{name} does not exist, waiting for it to appear")]
    Absent {
        /// The claim's.
        namespace: String,
        /// The claim's.
        name: String,
    },
    /// It exists and has no disk.
    #[error("PVC {namespace}/{name} is {state}")]
    Unbound {
        /// The claim's.
        namespace: String,
        /// The claim's.
        name: String,
        /// Its phase and why: `Pending: there is no space`.
        state: String,
    },
    /// It exists, and its disk is not there, or not there any more.
    #[error("PVC {namespace}/{name} has no disk, waiting for it to appear: {path} does not exist")]
    NoDisk {
        /// The claim's.
        namespace: String,
        /// The claim's.
        name: String,
        /// Where it is.
        path: PathBuf,
    },
    /// It exists and waits for its image.
    #[error("PVC {namespace}/{name} waits for its image, which virtctl image-upload brings")]
    NoImage {
        /// The claim's.
        namespace: String,
        /// The claim's.
        name: String,
    },
    /// It has no room for a memory dump.
    #[error("PVC {namespace}/{name} has {size}: a dump of the guest's memory needs {wanted}")]
    TooSmall {
        /// The claim's.
        namespace: String,
        /// The claim's.
        name: String,
        /// Its size.
        size: Size,
        /// The guest's memory.
        wanted: Size,
    },
    /// It exists and its disk cannot be used.
    #[error(transparent)]
    Disk(#[from] VolumeError),
}

/// The claims of a node.
#[derive(Debug, Clone)]
pub struct Claims {
    root: PathBuf,
    reader: ImageReader,
    /// How much of the pool may be promised, in percent.
    overcommit: u64,
    promises: Promises,
    unbound: Arc<Mutex<States>>,
}

/// The phases of claims that have no disk, with the reasons, by their namespaces and names.
type States = BTreeMap<(String, String), String>;

impl Claims {
    /// The claims below a directory.
    pub fn below(root: PathBuf, reader: ImageReader) -> Self {
        Self { root, reader, overcommit: 100, promises: Promises::default(), unbound: Arc::default() }
    }

    /// The path of a claim's disk. Namespaces and names are DNS names, so the path stays in the directory.
    pub fn path(&self, namespace: &str, name: &str) -> PathBuf {
        self.directory(namespace, name).join(DISK)
    }

    fn directory(&self, namespace: &str, name: &str) -> PathBuf {
        self.root.join(namespace).join(name)
    }

    /// A claim's disk, which must exist and have its image. Blocks.
    ///
    /// # Errors
    /// When it is not, or is not a regular file.
    pub fn find(&self, namespace: &str, name: &str) -> Result<PathBuf, ClaimError> {
        let path = self.disk(namespace, name)?;
        match self.awaits_image(namespace, name) {
            true => Err(ClaimError::NoImage { namespace: namespace.to_owned(), name: name.to_owned() }),
            false => Ok(path),
        }
    }

    /// The same, whether or not the image has come. Blocks.
    ///
    /// # Errors
    /// When it is not there, or is not a regular file.
    pub fn disk(&self, namespace: &str, name: &str) -> Result<PathBuf, ClaimError> {
        let path = self.path(namespace, name);
        match host_disk(&path, None) {
            Ok(()) => Ok(path),
            Err(VolumeError::Absent(_)) => {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                // It comes with the disk, and goes with the claim.
                let has_directory = path.parent().is_some_and(Path::is_dir);
                Err(match self.unbound(&namespace, &name) {
                    Some(state) => ClaimError::Unbound { namespace, name, state },
                    None if has_directory && !self.awaits_image(&namespace, &name) => {
                        ClaimError::NoDisk { namespace, name, path }
                    }
                    None => ClaimError::Absent { namespace, name },
                })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The phase of a claim that has no disk, and why it has none, if that is recorded.
    fn unbound(&self, namespace: &str, name: &str) -> Option<String> {
        self.states().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    fn states(&self) -> MutexGuard<'_, States> {
        self.unbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the phase of a claim without a disk and its reason, or removes them. Returns whether that is new. It is
    /// kept in memory only, so that it works when the disk is full.
    pub fn explain(&self, namespace: &str, name: &str, state: Option<String>) -> bool {
        let key = (namespace.to_owned(), name.to_owned());
        let before = match state.clone() {
            Some(state) => self.states().insert(key, state),
            None => self.states().remove(&key),
        };
        before != state
    }

    /// Whether a claim waits for an image: then no VM starts from it. Blocks.
    pub fn awaits_image(&self, namespace: &str, name: &str) -> bool {
        self.directory(namespace, name).join(AWAITED).exists()
    }

    /// Records on disk whether a claim waits for an image. Returns whether that is new. Blocks.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn await_image(&self, namespace: &str, name: &str, awaited: bool) -> io::Result<bool> {
        let directory = self.directory(namespace, name);
        let path = directory.join(AWAITED);
        if path.exists() == awaited {
            return Ok(false);
        }
        if awaited {
            fs::create_dir_all(&directory)?;
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
        Ok(true)
    }

    /// Creates a claim's disk of at least this many bytes, or enlarges it. The file is sparse. Returns its size.
    /// Blocks.
    ///
    /// # Errors
    /// When it cannot be created, or the pool has no space for it beside what was promised to other claims.
    pub fn provide(&self, namespace: &str, name: &str, bytes: u64) -> Result<u64, VolumeError> {
        let path = self.path(namespace, name);
        let open = |source| VolumeError::Open { path: path.clone(), source };
        let wanted = bytes.div_ceil(PAGE).saturating_mul(PAGE);
        let has = match host_disk(&path, None) {
            Ok(()) => Some(fs::metadata(&path).map_err(open)?.len()),
            Err(VolumeError::Absent(_)) => None,
            Err(error) => return Err(error),
        };
        if let Some(has) = has.filter(|has| *has >= wanted) {
            return Ok(has);
        }
        fs::create_dir_all(self.directory(namespace, name)).map_err(open)?;
        let _reserved = self.reserve(&path, wanted - has.unwrap_or(0))?;
        if has.is_some() {
            let file = OpenOptions::new().write(true).open(&path).map_err(open)?;
            file.set_len(wanted).and_then(|()| file.sync_all()).map_err(open)?;
        } else {
            self.make(&path, wanted).map_err(open)?;
        }
        Ok(wanted)
    }

    /// Creates a disk atomically, also with regard to a crash.
    fn make(&self, path: &Path, bytes: u64) -> io::Result<()> {
        let partial = path.with_extension("partial");
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.set_len(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        let inside = path.ancestors().skip(1).take_while(|directory| directory.starts_with(&self.root));
        for directory in inside {
            File::open(directory)?.sync_all()?;
        }
        Ok(())
    }

    /// The directory beside a claim's disk for a memory dump of so many bytes. Blocks.
    ///
    /// # Errors
    /// When the claim has no disk or is smaller, or the directory cannot be opened.
    pub(crate) fn dump_directory(
        &self,
        (namespace, claim): (&str, &str),
        bytes: u64,
    ) -> Result<DumpDirectory, ClaimError> {
        let disk = self.disk(namespace, claim)?;
        let failed = |path: &Path, source| VolumeError::Open { path: path.to_owned(), source };
        let size = fs::metadata(&disk).map_err(|error| failed(&disk, error))?.len();
        fits_dump((namespace, claim), size, bytes)?;
        let directory = self.directory(namespace, claim);
        Ok(DumpDirectory::open(directory.clone()).map_err(|error| failed(&directory, error))?)
    }

    /// Removes a claim's disk, if there is one, with all that lies beside it. Blocks.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, namespace: &str, name: &str) -> io::Result<()> {
        match fs::remove_dir_all(self.directory(namespace, name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }
}

/// Whether a claim of a size has room for a memory dump of so many bytes.
///
/// # Errors
/// When it has not.
pub(crate) fn fits_dump((namespace, name): (&str, &str), size: u64, bytes: u64) -> Result<(), ClaimError> {
    if size >= bytes {
        return Ok(());
    }
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    Err(ClaimError::TooSmall { namespace, name, size: Size(size), wanted: Size(bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_made_grows_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::below(dir.path().join("claims"), ImageReader::InProcess);
        let absent = claims.find("a", "data").unwrap_err().to_string();
        assert_eq!(absent, "PVC a/data does not exist, waiting for it to appear");
        assert_eq!(claims.provide("a", "data", 5000).unwrap(), 8192);
        let path = claims.find("a", "data").unwrap();
        assert_eq!(path, dir.path().join("claims/a/data/disk.img"));
        fs::write(&path, [7; 8192]).unwrap();
        assert_eq!(claims.provide("a", "data", 4096).unwrap(), 8192, "it never shrinks");
        assert_eq!(claims.provide("a", "data", 1 << 20).unwrap(), 1 << 20);
        let written = fs::read(&path).unwrap();
        assert_eq!((written.len(), &written[..8192]), (1 << 20, &[7; 8192][..]));
        let huge = claims.provide("a", "data", 1 << 60).unwrap_err();
        assert!(matches!(huge, VolumeError::PoolFull { .. }), "{huge}");
        claims.remove("a", "data").unwrap();
        claims.remove("a", "data").unwrap();
        assert!(claims.find("a", "data").is_err());
    }

    #[test]
    fn a_claim_is_not_found_before_its_image_is_uploaded() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::below(dir.path().join("claims"), ImageReader::InProcess);
        assert!(!claims.await_image("a", "data", false).unwrap(), "there is nothing to wait for");
        assert!(claims.await_image("a", "data", true).unwrap());
        assert!(!claims.await_image("a", "data", true).unwrap());
        assert!(matches!(claims.find("a", "data"), Err(ClaimError::Absent { .. })), "nor a disk");
        claims.provide("a", "data", 4096).unwrap();
        let waits = claims.find("a", "data").unwrap_err();
        assert!(matches!(waits, ClaimError::NoImage { .. }), "{waits}");
        assert!(claims.disk("a", "data").is_ok() && claims.begin_upload("a", "data").is_ok());
        assert!(claims.await_image("a", "data", false).unwrap());
        assert!(claims.find("a", "data").is_ok());
        claims.await_image("a", "data", true).unwrap();
        claims.remove("a", "data").unwrap();
        assert!(!claims.await_image("a", "data", false).unwrap(), "it goes with the claim");
    }

    #[test]
    fn a_memory_dump_lies_beside_the_disk_of_a_claim() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::below(dir.path().to_owned(), ImageReader::InProcess);
        let directory = |bytes| claims.dump_directory(("a", "data"), bytes);
        assert!(matches!(directory(1).unwrap_err(), ClaimError::Absent { .. }));
        claims.provide("a", "data", 1 << 20).unwrap();
        let dumps = directory(1 << 20).unwrap();
        assert_eq!(dumps.path(), dir.path().join("a/data"));
        let (name, _) = dumps.create("web-dumps-", jiff::Timestamp::UNIX_EPOCH).unwrap();
        assert!(dumps.path().join(&name).exists() && claims.find("a", "data").is_ok());
        let small = directory(2 << 20).unwrap_err().to_string();
        assert_eq!(small, "PVC a/data has 1 MiB: a dump of the guest's memory needs 2 MiB");
        claims.remove("a", "data").unwrap();
        assert!(!dumps.path().join(&name).exists(), "it goes with the claim");
    }

    #[test]
    fn a_claim_without_a_disk_has_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::below(dir.path().to_owned(), ImageReader::InProcess);
        let others = claims.clone();
        let pending = || Some("Pending: no space".to_owned());
        assert!(!claims.explain("a", "data", None), "there is nothing to say");
        assert!(claims.explain("a", "data", pending()) && !claims.explain("a", "data", pending()));
        assert_eq!(others.find("a", "data").unwrap_err().to_string(), "PVC a/data is Pending: no space");
        assert!(claims.explain("a", "data", None));
        assert!(matches!(others.find("a", "data"), Err(ClaimError::Absent { .. })));
        claims.explain("a", "data", pending());
        claims.provide("a", "data", 4096).unwrap();
        assert!(others.find("a", "data").is_ok(), "the disk counts");
        claims.explain("a", "data", None);
        fs::remove_file(claims.path("a", "data")).unwrap();
        let lost = others.find("a", "data").unwrap_err();
        assert!(matches!(lost, ClaimError::NoDisk { .. }), "{lost}");
        claims.remove("a", "data").unwrap();
        assert!(matches!(others.find("a", "data"), Err(ClaimError::Absent { .. })));
    }

    #[test]
    fn what_lies_there_and_is_no_file_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let claims = Claims::below(dir.path().to_owned(), ImageReader::InProcess);
        let path = claims.path("a", "data");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert!(matches!(claims.find("a", "data"), Err(ClaimError::Disk(VolumeError::NotRegular(_)))));
        assert!(claims.provide("a", "data", 4096).is_err());
    }
}
