//! Files taken out of OCI images (image-spec 1.1: layout, index, manifest, layers with whiteouts).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, MediaType};

use super::blobs::{BlobError, Blobs, Part, is_about_content, plain, without_content};
use super::sparse;
use crate::jobs::JobContext;

/// Names an image in a layout's index.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// No disk in an image is larger; a guard against decompression bombs.
const FILE_LIMIT: u64 = 16 << 40;
const WHITEOUT: &str = ".wh.";
const OPAQUE: &str = ".wh..wh..opq";

/// An image chosen from a layout.
pub(super) struct Image {
    blobs: Blobs,
    digest: String,
    manifest: ImageManifest,
}

/// Why a file could not be taken out of an image. Like [`BlobError`], it quotes nothing that is in the image.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
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
    /// A layer could not be unpacked, or there is no space for its content.
    #[error("cannot unpack {part} of the image")]
    Layer {
        /// Which layer.
        part: Part,
        /// Why.
        source: io::Error,
    },
}

/// The content at a path after all layers.
pub(super) enum Found {
    /// A regular file, its content in the file given.
    Regular(File),
    /// Anything else, in words.
    Other(&'static str),
}

impl Image {
    /// Chooses an image; without a tag the layout must hold just one.
    pub(super) fn open(blobs: Blobs, tag: Option<&str>) -> Result<Self, OciError> {
        let index = index(Part::Index, &blobs.index()?)?;
        let descriptor = choose(index.manifests(), tag)?.clone();
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
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// Everything at paths that `wanted` picks, after all layers; regular files are unpacked into unnamed files in
    /// `scratch`. Every layer's digest is verified before this returns.
    pub(super) fn files(
        &self,
        wanted: impl Fn(&Path) -> bool,
        scratch: &Path,
        job: &JobContext,
    ) -> Result<BTreeMap<PathBuf, Found>, OciError> {
        let mut found = BTreeMap::new();
        for (layer, number) in self.manifest.layers().iter().zip(1..) {
            let part = Part::Layer(number);
            let mut blob = self.blobs.stream(part, layer.digest().as_ref())?;
            let compression = Compression::of(layer.media_type()).ok_or(OciError::LayerType(part))?;
            // A few bytes may unpack to any length, so the output is checked for cancellation, too.
            let applied = compression
                .decode(&mut blob)
                .and_then(|tar| apply(job.checked(tar), &wanted, (scratch, job), &mut found));
            applied.map_err(|error| match is_about_content(&error) {
                true => OciError::DamagedLayer(part),
                false => OciError::Layer { part, source: without_content(&error) },
            })?;
            blob.finish()?;
        }
        Ok(found)
    }
}

fn index(part: Part, bytes: &[u8]) -> Result<ImageIndex, OciError> {
    ImageIndex::from_reader(bytes).map_err(|_quotes| OciError::Document(part))
}

fn ref_name(descriptor: &Descriptor) -> Option<&str> {
    descriptor.annotations().as_ref()?.get(REF_NAME).map(String::as_str)
}

fn choose<'a>(manifests: &'a [Descriptor], tag: Option<&str>) -> Result<&'a Descriptor, OciError> {
    match (tag, manifests) {
        (Some(tag), _) => manifests
            .iter()
            .find(|descriptor| ref_name(descriptor) == Some(tag))
            .ok_or_else(|| OciError::NoTag { tag: tag.to_owned(), images: manifests.len() }),
        (None, [only]) => Ok(only),
        (None, []) => Err(OciError::NoPlatform),
        (None, several) => match for_platform(several) {
            Some(one) if several.iter().all(|other| other.platform().is_some()) => Ok(one),
            _ => Err(OciError::Ambiguous(several.len())),
        },
    }
}

fn for_platform(manifests: &[Descriptor]) -> Option<&Descriptor> {
    let fits = |descriptor: &&Descriptor| {
        descriptor.platform().as_ref().is_none_or(|platform| {
            platform.os().to_string() == "linux" && platform.architecture().to_string() == "amd64"
        })
    };
    manifests.iter().find(fits)
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

fn apply(
    layer: impl Read,
    wanted: &impl Fn(&Path) -> bool,
    (scratch, job): (&Path, &JobContext),
    found: &mut BTreeMap<PathBuf, Found>,
) -> io::Result<()> {
    // A layer's whiteouts hide what lower layers brought, wherever in the layer they stand.
    let mut added = BTreeMap::new();
    for entry in tar::Archive::new(layer).entries()? {
        let mut entry = entry?;
        let path = plain(&entry.path()?);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let parent = path.parent().unwrap_or(Path::new("")).to_owned();
        if name == OPAQUE {
            found.retain(|known, _| !known.starts_with(&parent));
        } else if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            let hidden = parent.join(hidden);
            found.retain(|known, _| !known.starts_with(&hidden));
        } else if wanted(&path) {
            let kind = entry.header().entry_type();
            let what = match kind {
                tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                    let mut file = tempfile::tempfile_in(scratch)?;
                    sparse::copy(&mut entry, &mut file, FILE_LIMIT, job)?;
                    Found::Regular(file)
                }
                tar::EntryType::Directory => continue,
                tar::EntryType::Symlink => Found::Other("a symbolic link"),
                tar::EntryType::Link => Found::Other("a hard link"),
                _ => Found::Other("a special file"),
            };
            added.insert(path, what);
        }
    }
    found.append(&mut added);
    Ok(())
}
