//! Images that are found by their names: `localhost/name[:tag][@digest]`, as container runtimes call the images of their own
//! host. On a node that pulls images itself, no server is asked for them: they are in the layouts and archives that lie directly
//! in the directories of `--images`.
//!
//! Only processes without privileges read what these have ([`ImageReader::list`](super::super::importer::ImageReader::list));
//! the names are kept as long as a file does not change. Where an image only has a tag, its name is that of its layout.

use std::collections::HashMap;
use std::error::Error;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vireo_importer::{ImageName, ImageSelector, LayoutKind, NamedImage, Reference};

use super::super::allowed::list;
use super::super::node_file::{self, OpenError};
use super::pull::parse;
use super::{ImageError, Images, Opened, store};
use crate::jobs::JobContext;
use crate::launcher::link::chain;

/// What files of this name are, beside directories.
const ARCHIVE: &str = ".tar";
/// The tag of a reference that has none.
const LATEST: &str = "latest";
/// A file that changed in this time may change again without another time in its metadata.
const SETTLED: Duration = Duration::from_secs(2);

/// The names of the images of layouts and archives, by their paths, as long as they have not changed.
#[derive(Debug, Default)]
pub(super) struct NameCache(Mutex<HashMap<PathBuf, Known>>);

/// The names that a file had.
type Known = (Stamp, Arc<[NamedImage]>);

/// What changes with the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// A layout or an archive.
struct Candidate {
    path: PathBuf,
    source: OwnedFd,
    layout: LayoutKind,
    /// Of the file with its names.
    stamp: Stamp,
}

impl Stamp {
    fn of(file: &Metadata) -> Self {
        Self {
            file: (file.dev(), file.ino()),
            size: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }

    /// Whether another change would show.
    fn is_settled(&self) -> bool {
        let seconds = u64::try_from(self.changed.0).unwrap_or_default();
        let changed = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        changed
            .and_then(|changed| SystemTime::now().duration_since(changed).ok())
            .is_some_and(|age| age > SETTLED)
    }
}

impl NameCache {
    fn get(&self, path: &Path, stamp: Stamp) -> Option<Arc<[NamedImage]>> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(path).filter(|(known, _)| *known == stamp).map(|(_, images)| Arc::clone(images))
    }

    fn put(&self, path: &Path, stamp: Stamp, images: &Arc<[NamedImage]>) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.retain(|path, _| path.exists());
        names.insert(path.to_owned(), (stamp, Arc::clone(images)));
    }
}

impl Candidate {
    /// What is there under a name in a directory of `--images`, if it can be a layout or an archive.
    fn open(directory: impl AsFd, path: PathBuf, name: &OsStr) -> Result<Option<Self>, OpenError> {
        let is_archive = name.as_encoded_bytes().ends_with(ARCHIVE.as_bytes());
        let (source, layout, names) = match node_file::directory_beneath(&directory, Path::new(name)) {
            Ok(source) => match node_file::regular_beneath(&source, Path::new("index.json")) {
                Ok(index) => (source, LayoutKind::Directory, index.metadata()?),
                Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            },
            Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotADirectory && is_archive => {
                let archive = node_file::regular_beneath(directory, Path::new(name))?;
                let metadata = archive.metadata()?;
                (archive.into(), LayoutKind::Archive, metadata)
            }
            Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(Some(Self { path, source, layout, stamp: Stamp::of(&names) }))
    }

    /// The repository of an image that has a tag alone: the name of the layout, or of the archive without `.tar` and `.oci.tar`.
    fn repository(&self) -> Option<&str> {
        let name = self.path.file_name()?.to_str()?;
        let archive = || name.strip_suffix(ARCHIVE).map(|name| name.strip_suffix(".oci").unwrap_or(name));
        match self.layout {
            LayoutKind::Directory => Some(name),
            LayoutKind::Archive => archive(),
        }
    }

    /// Whether one of its images is wanted. A digest precedes a tag, as runtimes have it.
    fn has(&self, image: &NamedImage, wanted: &Reference) -> bool {
        let (repository, tag) = match &image.name {
            ImageName::Whole { repository, tag } => (Some(repository.as_str()), tag),
            ImageName::Tag(tag) => (self.repository(), tag),
        };
        let is_version = match wanted.digest() {
            Some(digest) => image.digest == digest,
            None => *tag == wanted.tag().unwrap_or(LATEST),
        };
        repository == Some(wanted.repository()) && is_version
    }
}

/// The layouts and archives in a directory of `--images`, in the order of their names. What begins with a dot is not complete.
fn candidates(
    directory: &Path,
) -> Result<impl Iterator<Item = (PathBuf, Result<Candidate, OpenError>)> + use<>, OpenError> {
    let opened = node_file::directory(directory)?;
    let (names, directory) = (node_file::names_in(&opened)?, directory.to_owned());
    let visible = names.into_iter().filter(|name| !name.as_encoded_bytes().starts_with(b"."));
    Ok(visible.filter_map(move |name| {
        let path = directory.join(&name);
        let candidate = Candidate::open(&opened, path.clone(), &name).transpose()?;
        Some((path, candidate))
    }))
}

impl Images {
    /// The image of a local name. Blocks.
    pub(super) fn find_named(&self, name: &str, job: &JobContext) -> Result<Opened, ImageError> {
        let wanted = parse(name)?;
        let directories = self.0.allowed.check_named_image()?;
        let mut unreadable = None;
        let mut skip = |path: &Path, error: &dyn Error| {
            unreadable.get_or_insert_with(|| format!("{} cannot be read: {}", path.display(), chain(error)));
        };
        let mut found: Option<(Candidate, String)> = None;
        for directory in directories {
            let candidates = match candidates(directory) {
                Ok(candidates) => candidates,
                Err(error) => {
                    skip(directory, &error);
                    continue;
                }
            };
            for (path, candidate) in candidates {
                job.checkpoint().map_err(store(&path))?;
                let candidate = match candidate {
                    Ok(candidate) => candidate,
                    Err(error) => {
                        skip(&path, &error);
                        continue;
                    }
                };
                let images = match self.names_of(&candidate, job) {
                    Ok(images) => images,
                    Err(error) if error.is_of_content() => {
                        skip(&path, &error);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                let named = images.iter().filter(|image| candidate.has(image, &wanted));
                let digests: Vec<_> = named.map(|image| &image.digest).collect();
                let [digest, ..] = digests.as_slice() else { continue };
                let (first, known) = found.get_or_insert_with(|| (candidate, (*digest).clone()));
                if digests.iter().any(|digest| *digest != known) {
                    return Err(ImageError::AmbiguousName { first: first.path.clone(), second: path });
                }
            }
        }
        let (Candidate { source, layout, .. }, digest) = found.ok_or_else(|| {
            let directories = list(directories);
            ImageError::NotNamed { directories, unreadable }
        })?;
        Ok(Opened { source, layout, image: ImageSelector::Digest(digest) })
    }

    /// What a layout or an archive calls its images.
    fn names_of(&self, candidate: &Candidate, job: &JobContext) -> Result<Arc<[NamedImage]>, ImageError> {
        let Candidate { path, source, layout, stamp } = candidate;
        if let Some(images) = self.0.names.get(path, *stamp) {
            return Ok(images);
        }
        let source = source.try_clone().map_err(ImageError::NoImporter)?;
        let images: Arc<[NamedImage]> = self.0.reader.list(*layout, source, job)?.into();
        if stamp.is_settled() {
            self.0.names.put(path, *stamp, &images);
        }
        Ok(images)
    }
}

#[cfg(test)]
mod tests;
