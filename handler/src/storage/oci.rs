//! Files taken out of OCI images (image-spec 1.1: layout, index, manifest, layers with whiteouts).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, MediaType};

use super::blobs::{BlobError, Blobs, plain};
use super::sparse;

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

/// Why a file could not be taken out of an image.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// The layout or one of its files.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// Not what the specification says it should be.
    #[error("{what} of the image is not valid")]
    Document {
        /// Which document.
        what: &'static str,
        /// Why.
        source: oci_spec::OciSpecError,
    },
    /// No image of that tag.
    #[error("the image layout has no tag {wanted:?}; it has: {}", list(.present))]
    NoTag {
        /// The tag asked for.
        wanted: String,
        /// The tags there are.
        present: Vec<String>,
    },
    /// Several images and none was chosen.
    #[error("the image layout holds several images, add a tag to the reference: {}", list(.0))]
    Ambiguous(Vec<String>),
    /// An index for other platforms, or an empty one.
    #[error("the image layout has no image for linux/amd64")]
    NoPlatform,
    /// A layer that is no tar archive, or compressed in an unknown way.
    #[error("layer {digest} has the media type {media_type}, which is not supported")]
    LayerType {
        /// Which layer.
        digest: String,
        /// Its media type.
        media_type: String,
    },
    /// A layer could not be unpacked, or there is no room for what is in it.
    #[error("cannot unpack layer {digest}")]
    Layer {
        /// Which layer.
        digest: String,
        /// Why.
        source: io::Error,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// What the layers left at a path.
pub(super) enum Found {
    /// A regular file, its content in the file given.
    Regular(File),
    /// Anything else, in words.
    Other(&'static str),
}

impl Image {
    /// Chooses an image; without a tag the layout must hold just one.
    pub(super) fn open(blobs: Blobs, tag: Option<&str>) -> Result<Self, OciError> {
        let index = index(&blobs.document("index.json")?)?;
        let descriptor = choose(index.manifests(), tag)?.clone();
        let descriptor = match descriptor.media_type() {
            MediaType::ImageIndex => {
                let nested = self::index(&blobs.verified(descriptor.digest().as_ref())?)?;
                for_platform(nested.manifests()).ok_or(OciError::NoPlatform)?.clone()
            }
            _ => descriptor,
        };
        let digest = descriptor.digest().to_string();
        let bytes = blobs.verified(&digest)?;
        let manifest = ImageManifest::from_reader(bytes.as_slice())
            .map_err(|source| OciError::Document { what: "the manifest", source })?;
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
    ) -> Result<BTreeMap<PathBuf, Found>, OciError> {
        let mut found = BTreeMap::new();
        for layer in self.manifest.layers() {
            let digest = layer.digest().to_string();
            let mut blob = self.blobs.stream(&digest)?;
            let compression = Compression::of(layer.media_type()).ok_or_else(|| OciError::LayerType {
                digest: digest.clone(),
                media_type: layer.media_type().to_string(),
            })?;
            compression
                .decode(&mut blob)
                .and_then(|tar| apply(tar, &wanted, scratch, &mut found))
                .map_err(|source| OciError::Layer { digest, source })?;
            blob.finish()?;
        }
        Ok(found)
    }
}

fn index(bytes: &[u8]) -> Result<ImageIndex, OciError> {
    ImageIndex::from_reader(bytes).map_err(|source| OciError::Document { what: "the index", source })
}

fn ref_name(descriptor: &Descriptor) -> Option<&str> {
    descriptor.annotations().as_ref()?.get(REF_NAME).map(String::as_str)
}

fn choose<'a>(manifests: &'a [Descriptor], tag: Option<&str>) -> Result<&'a Descriptor, OciError> {
    let names = || manifests.iter().filter_map(ref_name).map(str::to_owned).collect();
    match (tag, manifests) {
        (Some(tag), _) => manifests
            .iter()
            .find(|descriptor| ref_name(descriptor) == Some(tag))
            .ok_or_else(|| OciError::NoTag { wanted: tag.to_owned(), present: names() }),
        (None, [only]) => Ok(only),
        (None, []) => Err(OciError::NoPlatform),
        (None, several) => match for_platform(several) {
            Some(one) if several.iter().all(|other| other.platform().is_some()) => Ok(one),
            _ => Err(OciError::Ambiguous(names())),
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
    scratch: &Path,
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
                    sparse::copy(&mut entry, &mut file, FILE_LIMIT)?;
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
