//! Finds an image and downloads it.

use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use oci_client::Reference;
use oci_client::client::{BlobResponse, SizedStream};
use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, MediaType};
use serde::Deserialize;

use crate::layout::{Layout, PartialBlob, digest_of, hex_of};
use crate::registry::Registry;
use crate::{Action, Answer, Credentials, Endpoint, Failure, FailureKind, Request};

/// The largest manifest or index.
const LARGEST_DOCUMENT: usize = 4 << 20;
/// The most layers; runtimes refuse more, too.
const MOST_LAYERS: usize = 128;
/// How often a download that breaks off without a new byte is tried again.
const MOST_ATTEMPTS: u32 = 4;
/// The delay before the first of these; it doubles.
const RETRY: Duration = Duration::from_secs(1);
/// How many bytes lie between two reports of progress.
const PROGRESS_STEP: u64 = 8 << 20;

/// Does what a request asks for, with the image layout in `directory`. `say` gets every answer but the last one, which is
/// returned.
pub async fn run(request: Request, directory: &Path, say: &mut impl FnMut(Answer)) -> Answer {
    // Fails only where there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let Request { image, endpoints, action } = request;
    let reference: Reference = match image.parse() {
        Ok(reference) => reference,
        Err(error) => {
            let message = format!("{image:?} is not a reference to an image: {error}");
            return Answer::Failed(Failure::new(FailureKind::Reference, message));
        }
    };
    let done = match &action {
        Action::Resolve => resolve(&reference, &endpoints).await.map(Answer::Resolved),
        Action::Pull { digest, layout: _, most_bytes } => match Layout::open(directory) {
            Ok(layout) => {
                let target = Target { digest, layout: &layout, most_bytes: *most_bytes };
                pull(&reference, &endpoints, &target, say).await.map(|bytes| Answer::Pulled { bytes })
            }
            Err(error) => Err(Failure::of_file(&error)),
        },
    };
    done.unwrap_or_else(Answer::Failed)
}

/// Where an image goes, and which.
struct Target<'a> {
    digest: &'a str,
    layout: &'a Layout,
    most_bytes: u64,
}

/// Asks servers and users in turn, until one has what is wanted. The failure is the first of those that say most.
async fn first<T>(
    reference: &Reference,
    endpoints: &[Endpoint],
    mut ask: impl AsyncFnMut(&Registry) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut failures = Vec::new();
    for endpoint in endpoints {
        let users: Vec<Option<&Credentials>> = match endpoint.credentials.as_slice() {
            [] => vec![None],
            some => some.iter().map(Some).collect(),
        };
        for user in users {
            let registry = Registry::new(reference, endpoint, user)?;
            let asked = async {
                registry.authenticate().await?;
                ask(&registry).await
            };
            match asked.await {
                Ok(done) => return Ok(done),
                // What concerns this node is not different elsewhere.
                Err(failure) if matches!(failure.kind, FailureKind::Full | FailureKind::TooLarge) => {
                    return Err(failure);
                }
                Err(failure) => failures.push(failure),
            }
        }
    }
    let none = || Failure::new(FailureKind::Other, "there is no server to ask");
    Err(failures.into_iter().min_by_key(|failure| importance(failure.kind)).unwrap_or_else(none))
}

/// The order in which failures of several servers are of use to people.
fn importance(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Invalid => 0,
        FailureKind::Denied => 1,
        FailureKind::NotFound => 3,
        FailureKind::Unreachable => 4,
        _ => 2,
    }
}

/// The digest of the manifest for linux/amd64.
async fn resolve(reference: &Reference, endpoints: &[Endpoint]) -> Result<String, Failure> {
    first(reference, endpoints, async |registry| {
        let bytes = document(registry, None).await?;
        match read_document(registry, &bytes)? {
            Document::Manifest(_) => Ok(digest_of(&bytes)),
            Document::Index(index) => {
                let absent = || registry.invalid("it has no image for linux/amd64 by this name");
                chosen(&index).ok_or_else(absent)
            }
        }
    })
    .await
}

async fn pull(
    reference: &Reference,
    endpoints: &[Endpoint],
    target: &Target<'_>,
    say: &mut impl FnMut(Answer),
) -> Result<u64, Failure> {
    first(reference, endpoints, async |registry| {
        let bytes = document(registry, Some(target.digest)).await?;
        if digest_of(&bytes) != target.digest {
            return Err(registry.invalid("the manifest does not have the digest by which it was asked for"));
        }
        let Document::Manifest(manifest) = read_document(registry, &bytes)? else {
            return Err(registry.invalid("it has an index where a manifest was asked for"));
        };
        let total = download(registry, &manifest, target, say).await?;
        let media_type = manifest.media_type().as_ref().unwrap_or(&MediaType::ImageManifest);
        target.layout.finish(&bytes, media_type.as_ref()).map_err(|error| Failure::of_file(&error))?;
        Ok(total)
    })
    .await
}

/// A manifest or an index.
enum Document {
    Manifest(Box<ImageManifest>),
    Index(Box<ImageIndex>),
}

async fn document(registry: &Registry, digest: Option<&str>) -> Result<Vec<u8>, Failure> {
    let bytes = registry.manifest(digest).await?;
    match bytes.len() > LARGEST_DOCUMENT {
        true => Err(registry.invalid("the manifest has more than 4 MiB")),
        false => Ok(bytes),
    }
}

fn read_document(registry: &Registry, bytes: &[u8]) -> Result<Document, Failure> {
    /// What tells the two apart, whatever the media types say.
    #[derive(Deserialize)]
    struct Shape {
        manifests: Option<serde::de::IgnoredAny>,
    }
    let not_valid = |_| registry.invalid("the manifest is not valid by the OCI image specification");
    let shape: Shape = serde_json::from_slice(bytes).map_err(not_valid)?;
    Ok(match shape.manifests {
        Some(_) => Document::Index(Box::new(serde_json::from_slice(bytes).map_err(not_valid)?)),
        None => Document::Manifest(Box::new(serde_json::from_slice(bytes).map_err(not_valid)?)),
    })
}

/// The digest of the manifest for this platform.
fn chosen(index: &ImageIndex) -> Option<String> {
    let chosen = index.manifests().iter().find(|one| is_for_this_platform(one))?.digest().to_string();
    hex_of(&chosen).is_some().then_some(chosen)
}

fn is_for_this_platform(descriptor: &Descriptor) -> bool {
    descriptor.platform().as_ref().is_none_or(|platform| {
        platform.os().to_string() == "linux" && platform.architecture().to_string() == "amd64"
    })
}

/// Downloads the layers that are not there. Returns the bytes of all.
async fn download(
    registry: &Registry,
    manifest: &ImageManifest,
    target: &Target<'_>,
    say: &mut impl FnMut(Answer),
) -> Result<u64, Failure> {
    let layers = manifest.layers();
    let total = size(registry, manifest, target.most_bytes)?;
    let mut before = 0;
    say(Answer::Progress { done: before, total });
    for layer in layers {
        let digest = layer.digest().to_string();
        let hex = hex_of(&digest).ok_or_else(|| registry.invalid("a layer has no SHA-256 digest"))?;
        if !target.layout.has(hex, layer.size()) {
            let mut progress = |done| say(Answer::Progress { done: before + done, total });
            blob(registry, hex, layer.size(), target.layout, &mut progress).await?;
        }
        before += layer.size();
        say(Answer::Progress { done: before, total });
    }
    Ok(total)
}

/// The bytes of all layers, which may be so many.
fn size(registry: &Registry, manifest: &ImageManifest, most_bytes: u64) -> Result<u64, Failure> {
    let layers = manifest.layers();
    if layers.len() > MOST_LAYERS {
        return Err(registry.invalid("the image has more than 128 layers"));
    }
    let total = layers.iter().fold(0_u64, |sum, layer| sum.saturating_add(layer.size()));
    if total > most_bytes {
        let message = format!("the image has {total} bytes, and may have {most_bytes} here");
        return Err(Failure::new(FailureKind::TooLarge, message));
    }
    Ok(total)
}

/// Downloads a blob, and goes on where a connection breaks off.
async fn blob(
    registry: &Registry,
    hex: &str,
    length: u64,
    layout: &Layout,
    progress: &mut impl FnMut(u64),
) -> Result<(), Failure> {
    let of_file = |error| Failure::of_file(&error);
    let mut blob = layout.partial(hex, length).map_err(of_file)?;
    let mut attempts = 0;
    while blob.written() < length {
        let before = blob.written();
        let got = match registry.blob(&format!("sha256:{hex}"), before).await {
            Ok(response) => receive(registry, response, (&mut blob, length), progress).await,
            Err(failure) => Err(failure),
        };
        match got {
            Ok(()) if blob.written() >= length => {}
            Err(failure)
                if failure.kind != FailureKind::Other && failure.kind != FailureKind::Unreachable =>
            {
                return Err(failure);
            }
            cut_off => {
                attempts = if blob.written() > before { 1 } else { attempts + 1 };
                if attempts >= MOST_ATTEMPTS {
                    let too_short = || registry.invalid("a layer is shorter than the manifest says");
                    return Err(cut_off.err().unwrap_or_else(too_short));
                }
                tokio::time::sleep(RETRY * 2_u32.pow(attempts)).await;
            }
        }
    }
    match blob.finish(hex).map_err(of_file)? {
        true => Ok(()),
        false => Err(registry.invalid("a layer does not have its digest: it is damaged")),
    }
}

/// Writes what a server sends.
async fn receive(
    registry: &Registry,
    response: BlobResponse,
    (blob, length): (&mut PartialBlob, u64),
    progress: &mut impl FnMut(u64),
) -> Result<(), Failure> {
    let of_file = |error| Failure::of_file(&error);
    let SizedStream { mut stream, .. } = match response {
        BlobResponse::Partial(stream) => stream,
        BlobResponse::Full(stream) => {
            // Also where it was asked for the rest.
            blob.restart().map_err(of_file)?;
            stream
        }
    };
    let mut reported = blob.written();
    while blob.written() < length {
        match stream.next().await {
            Some(Ok(bytes)) => {
                if bytes.len() as u64 > length - blob.written() {
                    return Err(registry.invalid("a layer is longer than the manifest says"));
                }
                blob.append(&bytes).map_err(of_file)?;
            }
            Some(Err(error)) => return Err(registry.broken_off(&error)),
            None => return Ok(()),
        }
        if blob.written() - reported >= PROGRESS_STEP {
            reported = blob.written();
            progress(reported);
        }
    }
    Ok(())
}

/// A document of a registry that is never asked.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(bytes: &[u8]) {
    const MOST: u64 = 1 << 30;
    let endpoint = Endpoint {
        host: "127.0.0.1".to_owned(),
        is_plain: true,
        skip_verify: false,
        authorities: None,
        credentials: Vec::new(),
    };
    thread_local! {
        static REGISTRY: std::cell::OnceCell<Registry> = const { std::cell::OnceCell::new() };
    }
    REGISTRY.with(|registry| {
        let registry = registry.get_or_init(|| {
            let reference: Reference = "127.0.0.1/name:tag".parse().expect("a reference");
            // Fails only where there is one already.
            let _ = rustls::crypto::ring::default_provider().install_default();
            Registry::new(&reference, &endpoint, None).expect("a client")
        });
        match read_document(registry, bytes) {
            Ok(Document::Index(index)) => {
                let digest = chosen(&index);
                assert!(digest.is_none_or(|digest| hex_of(&digest).is_some_and(|hex| hex.len() == 64)));
            }
            Ok(Document::Manifest(manifest)) => {
                if size(registry, &manifest, MOST).is_ok() {
                    let sum =
                        manifest.layers().iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.size()));
                    assert!(sum.is_some_and(|sum| sum <= MOST), "the sizes of layers overflow");
                    let _ = manifest
                        .layers()
                        .iter()
                        .filter(|layer| hex_of(layer.digest().as_ref()).is_some())
                        .count();
                }
            }
            Err(failure) => drop(format!("{failure:?}")),
        }
    });
}

#[cfg(test)]
mod tests;
