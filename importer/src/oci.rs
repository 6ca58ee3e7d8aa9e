//! Files taken out of OCI images (image-spec 1.1: layout, index, manifest, layers with whiteouts).

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, MediaType};

use crate::WantedFile;
use crate::blobs::{BlobError, Blobs, Part, is_about_content, plain, without_content};
use crate::layout::hex_of;
use crate::names::{ImageSelector, NamedImage, localhost_name};
use crate::sparse::{self, Budget};
use crate::tar_headers::{HeaderLimit, stored_size};

/// Names an image in a layout's index: a tag, or a whole name.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The whole name of an image in a layout's index, as containerd, Docker and BuildKit write it.
const CONTAINERD_NAME: &str = "io.containerd.image.name";
/// The most images with names in one layout. The list of them is one answer, which has a limit.
const NAMED_LIMIT: usize = 100;
/// No disk in an image is larger; a guard against decompression bombs.
const FILE_LIMIT: u64 = 16 << 40;
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// An image chosen from a layout.
pub(crate) struct Image {
    blobs: Blobs,
    digest: String,
    manifest: ImageManifest,
}

/// Why a file could not be taken out of an image. Like [`BlobError`], it quotes nothing that is in the image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OciError {
    /// The layout or one of its files.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// Violates the specification.
    #[error("{0} of the image is not valid by the OCI image specification")]
    Document(Part),
    /// No image of that tag.
    #[error("none of the {images} images in the layout has the tag {tag:?}")]
    NoTag {
        /// The tag asked for.
        tag: String,
        /// How many there are.
        images: usize,
    },
    /// It had an image of that digest when it was looked for.
    #[error("the image has changed while it was imported: try again")]
    NoDigest,
    /// More names than an answer takes.
    #[error("the layout names more than {NAMED_LIMIT} images")]
    TooManyNames,
    /// Several images and none was chosen.
    #[error("the layout holds {0} images: add a tag to the reference")]
    Ambiguous(usize),
    /// An index for other platforms, or an empty one.
    #[error("the layout has no image for linux/amd64")]
    NoPlatform,
    /// A layer that is not a tar archive, or compressed in an unknown way.
    #[error("{0} of the image has an unsupported media type: supported are tar, tar+gzip and tar+zstd")]
    LayerType(Part),
    /// A layer that does not match its media type.
    #[error("{0} of the image is damaged, or not a tar archive")]
    DamagedLayer(Part),
    /// A layer with a name or extensions of a file that no image needs.
    #[error("{0} of the image has a file whose headers have more than 1 MiB")]
    HeaderTooLarge(Part),
    /// A second file, where there may be one.
    #[error("the image has several files where one is wanted")]
    SecondFile,
    /// A layer could not be unpacked, or there is no space for its content.
    #[error("cannot unpack {part} of the image")]
    Layer {
        /// Which layer.
        part: Part,
        /// Why.
        source: io::Error,
    },
}

/// What is at a path after all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// A regular file.
    Regular,
    /// Anything else, in words.
    Other(&'static str),
}

impl Image {
    /// Chooses an image.
    pub(crate) fn open(blobs: Blobs, selector: &ImageSelector) -> Result<Self, OciError> {
        let index = index(Part::Index, &blobs.index()?)?;
        let descriptor = choose(index.manifests(), selector)?.clone();
        let descriptor = match descriptor.media_type() {
            MediaType::ImageIndex => {
                let part = Part::NestedIndex;
                let nested = self::index(part, &blobs.verified(part, descriptor.digest().as_ref())?)?;
                for_platform(nested.manifests()).ok_or(OciError::NoPlatform)?.clone()
            }
            _ => descriptor,
        };
        let digest = descriptor.digest().to_string();
        let bytes = blobs.verified(Part::Manifest, &digest)?;
        let manifest = ImageManifest::from_reader(bytes.as_slice());
        let manifest = manifest.map_err(|_quotes| OciError::Document(Part::Manifest))?;
        Ok(Self { blobs, digest, manifest })
    }

    /// The manifest's digest: changes whenever anything in the image does.
    pub(crate) fn digest(&self) -> &str {
        &self.digest
    }

    /// The wanted file after all layers, which is unpacked to `output`. The digest of every layer is verified before this
    /// returns. Layers are read from the last one to the first, so that a file is unpacked only if no later layer hides it.
    pub(crate) fn unpack(
        &self,
        wanted: &WantedFile,
        output: &mut File,
        budget: &mut Budget,
    ) -> Result<Option<Found>, OciError> {
        let mut search = Search { wanted, output, budget, found: None, hidden: BTreeSet::new() };
        let layers: Vec<_> = self.manifest.layers().iter().zip(1..).collect();
        for (layer, number) in layers.into_iter().rev() {
            let part = Part::Layer(number);
            let mut blob = self.blobs.stream(part, layer.digest().as_ref())?;
            let compression = Compression::of(layer.media_type()).ok_or(OciError::LayerType(part))?;
            let damaged = |error: &io::Error| match is_about_content(error) {
                true => OciError::DamagedLayer(part),
                false => OciError::Layer { part, source: without_content(error) },
            };
            let tar = compression.decode(&mut blob).map_err(|error| damaged(&error))?;
            let (tar, limit) = HeaderLimit::new(tar);
            search.apply(tar, &limit, number).map_err(|error| match error {
                ApplyError::SecondFile => OciError::SecondFile,
                ApplyError::Io(_) if limit.is_exceeded() => OciError::HeaderTooLarge(part),
                ApplyError::Io(error) => damaged(&error),
            })?;
            blob.finish()?;
        }
        Ok(search.found.map(|(_, _, found)| found))
    }
}

fn index(part: Part, bytes: &[u8]) -> Result<ImageIndex, OciError> {
    ImageIndex::from_reader(bytes).map_err(|_quotes| OciError::Document(part))
}

fn annotation<'a>(descriptor: &'a Descriptor, name: &str) -> Option<&'a str> {
    descriptor.annotations().as_ref()?.get(name).map(String::as_str)
}

/// The images of a layout for this platform that a reference to `localhost` may mean. What is not valid has no name.
pub(crate) fn named(blobs: &Blobs) -> Result<Vec<NamedImage>, OciError> {
    let index = index(Part::Index, &blobs.index()?)?;
    let mut named = Vec::new();
    for descriptor in index.manifests().iter().filter(|descriptor| is_for_platform(descriptor)) {
        let (whole, reference) = (annotation(descriptor, CONTAINERD_NAME), annotation(descriptor, REF_NAME));
        let Some(name) = localhost_name(whole, reference) else { continue };
        if named.len() == NAMED_LIMIT {
            return Err(OciError::TooManyNames);
        }
        let digest = descriptor.digest().to_string();
        if hex_of(&digest).is_some() {
            named.push(NamedImage { name, digest });
        }
    }
    Ok(named)
}

fn choose<'a>(manifests: &'a [Descriptor], selector: &ImageSelector) -> Result<&'a Descriptor, OciError> {
    match (selector, manifests) {
        (ImageSelector::Tag(tag), _) => manifests
            .iter()
            .find(|descriptor| annotation(descriptor, REF_NAME) == Some(tag))
            .ok_or_else(|| OciError::NoTag { tag: tag.clone(), images: manifests.len() }),
        (ImageSelector::Digest(digest), _) => manifests
            .iter()
            .find(|descriptor| descriptor.digest().as_ref() == digest)
            .ok_or(OciError::NoDigest),
        (ImageSelector::Only, [only]) => Ok(only),
        (ImageSelector::Only, []) => Err(OciError::NoPlatform),
        (ImageSelector::Only, several) => match for_platform(several) {
            Some(one) if several.iter().all(|other| other.platform().is_some()) => Ok(one),
            _ => Err(OciError::Ambiguous(several.len())),
        },
    }
}

fn for_platform(manifests: &[Descriptor]) -> Option<&Descriptor> {
    manifests.iter().find(|descriptor| is_for_platform(descriptor))
}

fn is_for_platform(descriptor: &Descriptor) -> bool {
    descriptor.platform().as_ref().is_none_or(|platform| {
        platform.os().to_string() == "linux" && platform.architecture().to_string() == "amd64"
    })
}

#[derive(Clone, Copy)]
enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Compression {
    fn of(media_type: &MediaType) -> Option<Self> {
        let name = media_type.to_string();
        let layer = name.contains(".layer.") || name.contains(".rootfs.");
        match name.rsplit(['.', '+']).next() {
            Some("tar") if layer => Some(Self::None),
            Some("gzip") if layer => Some(Self::Gzip),
            Some("zstd") if layer => Some(Self::Zstd),
            _ => None,
        }
    }

    fn decode<'a>(self, blob: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
        Ok(match self {
            Self::None => Box::new(blob),
            Self::Gzip => Box::new(flate2::read::MultiGzDecoder::new(blob)),
            Self::Zstd => Box::new(zstd::stream::read::Decoder::new(blob)?),
        })
    }
}

/// The search for one file in layers, from the last one to the first.
struct Search<'a> {
    wanted: &'a WantedFile,
    output: &'a mut File,
    budget: &'a mut Budget,
    /// With its path and the number of its layer.
    found: Option<(PathBuf, usize, Found)>,
    /// What lower layers have at and below these paths is not in the image.
    hidden: BTreeSet<PathBuf>,
}

enum ApplyError {
    SecondFile,
    Io(io::Error),
}

impl From<io::Error> for ApplyError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Search<'_> {
    fn apply(
        &mut self,
        layer: impl Read,
        limit: &crate::tar_headers::Budget,
        number: usize,
    ) -> Result<(), ApplyError> {
        // A layer's whiteouts hide what lower layers brought, wherever in the layer they stand.
        let mut hidden = BTreeSet::new();
        for entry in tar::Archive::new(layer).entries()? {
            let mut entry = entry?;
            limit.next_file(stored_size(&entry)?);
            let path = plain(&entry.path()?);
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let parent = path.parent().unwrap_or(Path::new(""));
            if name == OPAQUE {
                if self.wanted.may_be_below(parent) {
                    hidden.insert(parent.to_owned());
                }
            } else if let Some(name) = name.strip_prefix(WHITEOUT) {
                let path = parent.join(name);
                if self.wanted.may_be_below(&path) {
                    hidden.insert(path);
                }
            } else if self.wanted.is_at(&path) && !entry.header().entry_type().is_dir() {
                self.take(path, &mut entry, number)?;
            }
        }
        self.hidden.append(&mut hidden);
        Ok(())
    }

    fn take(
        &mut self,
        path: PathBuf,
        entry: &mut tar::Entry<'_, impl Read>,
        number: usize,
    ) -> Result<(), ApplyError> {
        if self.hidden.iter().any(|hidden| path.starts_with(hidden)) {
            return Ok(());
        }
        match &self.found {
            Some((found, _, _)) if *found != path => return Err(ApplyError::SecondFile),
            // A later layer replaces it. In one layer, the last one counts.
            Some((_, layer, _)) if *layer != number => return Ok(()),
            _ => {}
        }
        let found = match entry.header().entry_type() {
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                sparse::copy(entry, self.output, FILE_LIMIT, self.budget)?;
                Found::Regular
            }
            tar::EntryType::Symlink => Found::Other("a symbolic link"),
            tar::EntryType::Link => Found::Other("a hard link"),
            _ => Found::Other("a special file"),
        };
        self.found = Some((path, number, found));
        Ok(())
    }
}
