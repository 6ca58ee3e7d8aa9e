//! Names of images in the index of a layout.

use oci_client::Reference;
use serde::{Deserialize, Serialize};

/// The registry of names that have none, as podman loads them, and of local images.
const LOCALHOST: &str = "localhost";
/// The tag of a reference that has none.
const LATEST: &str = "latest";

/// Which image of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageSelector {
    /// The only one, or the only one for this platform.
    Only,
    /// That with this `org.opencontainers.image.ref.name`.
    Tag(String),
    /// That with this digest in `index.json`.
    Digest(String),
}

/// An image of a layout that has a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedImage {
    /// What it is called.
    pub name: ImageName,
    /// Its digest in `index.json`: `sha256:…`.
    pub digest: String,
}

/// What an image is called in `index.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ImageName {
    /// `localhost/repository:tag`.
    Whole {
        /// Without the registry.
        repository: String,
        /// Its tag.
        tag: String,
    },
    /// A tag alone.
    Tag(String),
}

/// The name of an image of `localhost` by its two annotations: `io.containerd.image.name`, which is always whole, else
/// `org.opencontainers.image.ref.name`. That is a tag, as the image specification, containerd and Docker have it; with a `:` or
/// a `/` it is a whole name, as podman and skopeo write it, where a name without a registry is one of `localhost`.
pub(crate) fn localhost_name(whole: Option<&str>, reference: Option<&str>) -> Option<ImageName> {
    if let Some(whole) = whole {
        return whole_name(whole.strip_prefix(LOCALHOST)?.strip_prefix('/')?);
    }
    let reference = reference?;
    if !reference.contains(['/', ':']) {
        // What is valid behind some repository.
        return whole_name(&format!("a:{reference}")).map(|_| ImageName::Tag(reference.to_owned()));
    }
    match reference.split_once('/') {
        Some((LOCALHOST, rest)) => whole_name(rest),
        Some((registry, _)) if registry.contains(['.', ':']) => None,
        _ => whole_name(reference),
    }
}

/// A name without its registry, as references to images are read.
fn whole_name(name: &str) -> Option<ImageName> {
    let reference: Reference = format!("{LOCALHOST}/{name}").parse().ok()?;
    let is_plain = name.is_ascii() && reference.registry() == LOCALHOST && reference.digest().is_none();
    is_plain.then(|| ImageName::Whole {
        repository: reference.repository().to_owned(),
        tag: reference.tag().unwrap_or(LATEST).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(repository: &str, tag: &str) -> Option<ImageName> {
        Some(ImageName::Whole { repository: repository.to_owned(), tag: tag.to_owned() })
    }

    #[test]
    fn names_are_read_as_runtimes_write_them() {
        let tag = Some(ImageName::Tag("1".to_owned()));
        for (containerd, reference, name) in [
            // hack/oci-image, `ctr images export`, `docker save`.
            (Some("localhost/vireo/guest:1"), Some("1"), whole("vireo/guest", "1")),
            // `podman save --format oci-archive`, `skopeo copy … oci:DIR:localhost/…`.
            (None, Some("localhost/vireo/guest:1"), whole("vireo/guest", "1")),
            (None, Some("localhost/guest"), whole("guest", "latest")),
            // Without a registry, as `podman load` takes them.
            (None, Some("guest:1"), whole("guest", "1")),
            (None, Some("vireo/guest:1"), whole("vireo/guest", "1")),
            // `skopeo copy … oci:DIR:1`.
            (None, Some("1"), tag),
            (None, Some("quay.example/guest:1"), None),
            (None, Some("localhost:5000/guest:1"), None),
            (Some("docker.io/library/guest:1"), Some("1"), None),
            (Some("guest:1"), Some("1"), None),
            (None, None, None),
        ] {
            assert_eq!(localhost_name(containerd, reference), name, "{containerd:?} {reference:?}");
        }
    }

    #[test]
    fn what_is_no_name_is_none() {
        let (long, longer) = ("a".repeat(244), "a".repeat(256));
        assert!(localhost_name(Some(&format!("localhost/{long}:1")), None).is_some());
        for name in [
            "",
            ":",
            "/",
            "localhost/",
            "localhost/:1",
            "localhost/a:",
            "localhost/a:1:2",
            "localhost/a//b:1",
            "localhost/../a:1",
            "localhost/A:1",
            "localhost/a b:1",
            "localhost/a:1@sha256:00",
            "\u{0}",
            "a\n",
            &format!("localhost/{longer}:1"),
            &format!("localhost/a:{}", "1".repeat(129)),
            &"1".repeat(129),
        ] {
            for (containerd, reference) in [(Some(name), None), (None, Some(name))] {
                assert_eq!(localhost_name(containerd, reference), None, "{name:?}");
            }
        }
    }
}
