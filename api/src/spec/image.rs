use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::Field;
use super::report::Findings;
use super::syntax::{DNS_SUBDOMAIN, is_dns_subdomain, is_normal_absolute_path};

/// Where an image is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ImageRef {
    /// `oci:/dir[:tag]`: an OCI image layout directory on this node.
    Layout {
        /// Absolute, without `.` and `..`.
        path: PathBuf,
        /// The manifest's name in the layout's index; needed where there are several.
        tag: Option<String>,
    },
    /// `oci-archive:/file.tar[:tag]`: the same as one tar file.
    Archive {
        /// Absolute, without `.` and `..`.
        path: PathBuf,
        /// The manifest's name in the layout's index; needed where there are several.
        tag: Option<String>,
    },
    /// `[registry/]name[:tag][@digest]`: an image that is pulled, in a cluster by the kubelet. On a single host, those of
    /// `localhost` without a port are images of the host: [`Self::is_local_name`].
    Registry(String),
}

/// How an image of a registry is pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    policy: PullPolicy,
    secret: Option<String>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// The registry is asked each time; what has not changed is not downloaded again.
    Always,
    /// If the node does not have it.
    IfNotPresent,
    /// Not at all: the node has to have it.
    Never,
}

impl Pull {
    /// When it is pulled.
    pub fn policy(&self) -> PullPolicy {
        self.policy
    }

    /// The Secret with the credentials, of the VM's namespace.
    pub fn secret(&self) -> Option<&str> {
        self.secret.as_deref()
    }

    /// Reads `imagePullPolicy` and `imagePullSecret`, which are beside the image.
    pub(super) fn read(
        image: &str,
        (policy, secret): (&str, &str),
        at: &Field,
        found: &mut Findings,
    ) -> Option<Self> {
        let before = found.problems.len();
        let policy = match policy {
            "" => PullPolicy::default_of(image),
            "IfNotPresent" => PullPolicy::IfNotPresent,
            "Always" => PullPolicy::Always,
            "Never" => PullPolicy::Never,
            other => {
                let supported = ["Always", "IfNotPresent", "Never"];
                found.unsupported_value(&at.at("imagePullPolicy"), other, &supported);
                return None;
            }
        };
        if !secret.is_empty() && !is_dns_subdomain(secret) {
            found.invalid_value(&at.at("imagePullSecret"), secret, DNS_SUBDOMAIN);
        }
        let is_here = ["oci:", "oci-archive:"].iter().any(|here| image.starts_with(here));
        let why = "an image of the node is not pulled";
        found.notice_if(is_here && !secret.is_empty(), &at.at("imagePullSecret"), why);
        let secret = (!secret.is_empty()).then(|| secret.to_owned());
        (found.problems.len() == before).then_some(Self { policy, secret })
    }
}

impl PullPolicy {
    /// KubeVirt's default for an image. It takes the port of a registry for a tag.
    pub fn default_of(image: &str) -> Self {
        match image.ends_with(":latest") || !image.contains([':', '@']) {
            true => Self::Always,
            false => Self::IfNotPresent,
        }
    }

    /// Its name in manifests.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// Why an image reference is invalid or unsupported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageRefError {
    /// Of another transport, or no reference at all.
    #[error(
        "{0:?} is not a reference to an image: write registry/name:tag, oci:/directory[:tag] or oci-archive:/file.tar[:tag]"
    )]
    Reference(String),
    /// Not an absolute path.
    #[error(
        "{0:?} is not an absolute path without '.', '..' and empty parts: write oci:/directory[:tag] or oci-archive:/file.tar[:tag]"
    )]
    Path(String),
    /// Not a tag.
    #[error("{0:?} is not a tag: write at most 128 letters, digits, '_', '.' and '-'")]
    Tag(String),
    /// Nothing there.
    #[error("is empty: write oci:/directory[:tag] or oci-archive:/file.tar[:tag]")]
    Empty,
}

impl ImageRef {
    /// The directory or the file; none for an image of a registry.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Layout { path, .. } | Self::Archive { path, .. } => Some(path),
            Self::Registry(_) => None,
        }
    }

    /// Whether its registry is `localhost` without a port, as container runtimes name the images of their own host: no server
    /// has it.
    pub fn is_local_name(&self) -> bool {
        matches!(self, Self::Registry(reference) if reference.starts_with("localhost/"))
    }

    /// The manifest's name in the index of a layout or an archive.
    pub fn tag(&self) -> Option<&str> {
        match self {
            Self::Layout { tag, .. } | Self::Archive { tag, .. } => tag.as_deref(),
            Self::Registry(_) => None,
        }
    }
}

/// As the OCI distribution specification has it.
fn is_tag(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Whether a text is a reference to an image of a registry, as far as a kubelet would try to pull it.
fn is_registry_reference(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:@/".contains(&byte);
    let (first, rest) = text.split_once('/').map_or((text, None), |(first, rest)| (first, Some(rest)));
    let is_host =
        first.split_once(':').is_none_or(|(_, port)| port.bytes().all(|digit| digit.is_ascii_digit()));
    text.bytes().all(is_plain)
        && text.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && text.split('/').all(|part| !part.is_empty() && !part.starts_with(':') && !part.ends_with(':'))
        && (rest.is_none() || is_host)
}

impl FromStr for ImageRef {
    type Err = ImageRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (rest, archive) = match (text.strip_prefix("oci:"), text.strip_prefix("oci-archive:")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ if text.is_empty() => return Err(ImageRefError::Empty),
            _ if is_registry_reference(text) => return Ok(Self::Registry(text.to_owned())),
            _ => return Err(ImageRefError::Reference(text.to_owned())),
        };
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (rest, None),
        };
        if !is_normal_absolute_path(path) {
            return Err(ImageRefError::Path(path.to_owned()));
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(ImageRefError::Tag(tag.to_owned()));
        }
        let (path, tag) = (PathBuf::from(path), tag.map(str::to_owned));
        Ok(if archive { Self::Archive { path, tag } } else { Self::Layout { path, tag } })
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layout { path, .. } => write!(f, "oci:{}", path.display())?,
            Self::Archive { path, .. } => write!(f, "oci-archive:{}", path.display())?,
            Self::Registry(reference) => f.write_str(reference)?,
        }
        match self.tag() {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_on_disk_are_read_and_shown_again() {
        for (text, path, tag) in [
            ("oci:/images/linux", "/images/linux", None),
            ("oci:/images/linux:v1.2", "/images/linux", Some("v1.2")),
            ("oci-archive:/images/linux.tar", "/images/linux.tar", None),
            ("oci-archive:/a b/linux.tar:latest", "/a b/linux.tar", Some("latest")),
        ] {
            let image: ImageRef = text.parse().unwrap();
            assert_eq!((image.path(), image.tag()), (Some(Path::new(path)), tag), "{text}");
            assert_eq!(image.to_string(), text);
        }
    }

    #[test]
    fn references_to_registries_are_left_to_the_kubelet() {
        for text in
            ["linux", "linux:v1", "quay.example/a/linux:v1", "localhost:5000/linux", "a/b@sha256:00ff"]
        {
            let image: ImageRef = text.parse().unwrap();
            assert_eq!((image.path(), image.to_string().as_str()), (None, text));
        }
    }

    #[test]
    fn images_of_localhost_without_a_port_have_local_names() {
        for (text, is_local) in [
            ("localhost/linux", true),
            ("localhost/vireo/guest:1", true),
            ("localhost/linux@sha256:00ff", true),
            ("localhost:5000/linux", false),
            ("localhost", false),
            ("localhost:1", false),
            ("localhost.example/linux", false),
            ("quay.example/localhost/linux", false),
            ("oci:/localhost/linux", false),
        ] {
            assert_eq!(text.parse::<ImageRef>().unwrap().is_local_name(), is_local, "{text}");
        }
    }

    #[test]
    fn what_moves_is_pulled_always() {
        let read = |image: &str, policy: &str| {
            let (mut found, at) = (Findings::default(), Field::new("spec.volumes[0].containerDisk"));
            let pull = Pull::read(image, (policy, ""), &at, &mut found).map(|pull| pull.policy());
            (pull, found.problems.first().map(|problem| problem.field().to_string()))
        };
        for image in ["linux", "linux:latest", "localhost:5000/linux:latest"] {
            assert_eq!(read(image, ""), (Some(PullPolicy::Always), None), "{image}");
        }
        for image in ["linux:v1", "r:5000/linux", "r:5000/linux@sha256:00ff"] {
            assert_eq!(read(image, ""), (Some(PullPolicy::IfNotPresent), None), "{image}");
        }
        assert_eq!(read("linux", "Never"), (Some(PullPolicy::Never), None));
        let field = Some("spec.volumes[0].containerDisk.imagePullPolicy".to_owned());
        assert_eq!(read("linux", "never"), (None, field));
    }

    #[test]
    fn invalid_references_have_a_reason() {
        type Made = fn(String) -> ImageRefError;
        let cases: [(&str, &str, Made); 8] = [
            ("quay.example//linux", "quay.example//linux", ImageRefError::Reference),
            ("docker-archive:/x", "docker-archive:/x", ImageRefError::Reference),
            ("oci:linux", "linux", ImageRefError::Path),
            ("oci:/", "/", ImageRefError::Path),
            ("oci:/a/../b", "/a/../b", ImageRefError::Path),
            ("oci:/a:", "", ImageRefError::Tag),
            ("oci:/a:x y", "x y", ImageRefError::Tag),
            ("oci-archive:", "", ImageRefError::Path),
        ];
        for (text, part, made) in cases {
            assert_eq!(text.parse::<ImageRef>(), Err(made(part.to_owned())), "{text}");
        }
        assert_eq!("".parse::<ImageRef>(), Err(ImageRefError::Empty));
    }
}
