//! Names of images in the index of a layout.

use serde::{Deserialize, Serialize};

/// The registry of names that have none, as podman loads them, and of local images.
const LOCALHOST: &str = "localhost";
/// The tag of a reference that has none.
const LATEST: &str = "latest";
/// The longest repository, with its registry, and the longest tag: as the OCI distribution specification has them.
const LONGEST_REPOSITORY: usize = 255;
const LONGEST_TAG: usize = 128;

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
        return is_tag(reference).then(|| ImageName::Tag(reference.to_owned()));
    }
    match reference.split_once('/') {
        Some((LOCALHOST, rest)) => whole_name(rest),
        Some((registry, _)) if registry.contains(['.', ':']) => None,
        _ => whole_name(reference),
    }
}

/// A name without its registry.
fn whole_name(name: &str) -> Option<ImageName> {
    let (repository, tag) = name.split_once(':').unwrap_or((name, LATEST));
    (is_repository(repository) && is_tag(tag))
        .then(|| ImageName::Whole { repository: repository.to_owned(), tag: tag.to_owned() })
}

fn is_tag(text: &str) -> bool {
    (1..=LONGEST_TAG).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn is_repository(text: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_plain = |byte: u8| is_alphanumeric(byte) || b"._-".contains(&byte);
    let ends = |part: &str| part.bytes().next().zip(part.bytes().last());
    text.len() + LOCALHOST.len() < LONGEST_REPOSITORY
        && text.split('/').all(|part| {
            part.bytes().all(is_plain)
                && ends(part).is_some_and(|(first, last)| is_alphanumeric(first) && is_alphanumeric(last))
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
        let (long, longer) = ("a".repeat(244), "a".repeat(246));
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
