//! What the node agent and the importer say to each other, in JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Failure, LayoutKind, NamedImage, ReadAction};

/// What the node agent asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The user and the group to become.
    pub user: Option<u32>,
    /// What to do then.
    pub work: Work,
}

/// What to do as a user without privileges.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// With a network.
    Registry(Request),
    /// Without one.
    Read(ReadRequest),
    /// The same, of a disk image that `qemu-img` reads.
    Convert(ConvertRequest),
}

impl Work {
    /// The directory that it is about. It is inherited with this number.
    #[must_use]
    pub fn directory(&self) -> Option<i32> {
        match self {
            Self::Registry(Request { action: Action::Pull { layout, .. }, .. }) => Some(*layout),
            Self::Read(ReadRequest { action, source, .. }) => {
                (action.layout() == Some(LayoutKind::Directory)).then_some(*source)
            }
            Self::Registry(_) | Self::Convert(_) => None,
        }
    }
}

/// A disk image to convert. Its files are inherited with these numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConvertRequest {
    /// The qcow2 image.
    pub source: i32,
    /// An empty file that becomes the raw disk.
    pub output: i32,
    /// The bytes of the disk.
    pub virtual_size: u64,
    /// The most bytes that may be written.
    pub most_bytes: u64,
}

/// An image to read. Its files are inherited with these numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRequest {
    /// What to do.
    pub action: ReadAction,
    /// A file, or the directory of a layout.
    pub source: i32,
    /// An empty file that becomes what is wanted.
    pub output: Option<i32>,
    /// An empty file for what is between.
    pub scratch: Option<i32>,
    /// The most bytes that may be written to both.
    pub most_bytes: u64,
}

/// An image of a registry, and what to do with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// `[registry/]name[:tag][@digest]`, as users write it.
    pub image: String,
    /// The servers to ask, until one has the image.
    pub endpoints: Vec<Endpoint>,
    /// What to do with it.
    pub action: Action,
}

/// What to do with an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Find the digest of its manifest for linux/amd64. [`Answer::Resolved`].
    Resolve,
    /// Download the manifest with this digest and its layers. [`Answer::Pulled`].
    Pull {
        /// `sha256:…`, as it was resolved.
        digest: String,
        /// The directory of the image layout, which is inherited with this number.
        layout: i32,
        /// The most bytes that all layers may have together.
        most_bytes: u64,
    },
}

/// A server that may have an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// `host[:port]`; `docker.io` is the server that has that name's images.
    pub host: String,
    /// Without TLS.
    pub is_plain: bool,
    /// Its certificate is not verified.
    pub skip_verify: bool,
    /// Certificates of authorities beside those of the system, in PEM.
    pub authorities: Option<String>,
    /// Those to try, one after the other; none: anonymously.
    pub credentials: Vec<Credentials>,
}

/// A user of a registry.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Name.
    pub username: String,
    /// Password or token.
    pub password: String,
}

impl fmt::Debug for Credentials {
    /// Without the password.
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

/// What the importer says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The images of a layout that have names.
    Named(Vec<NamedImage>),
    /// The digest of the image's manifest: `sha256:…`.
    Resolved(String),
    /// How far the download is.
    Progress {
        /// Bytes that are there.
        done: u64,
        /// Bytes of all layers.
        total: u64,
    },
    /// The layout is complete.
    Pulled {
        /// Bytes of all layers.
        bytes: u64,
    },
    /// The file is written.
    Unpacked,
    /// The source is a raw image that fits: the file is not written.
    AsIs,
    /// It is a qcow2 image: what is wanted is its raw disk.
    Convert {
        /// Which file it is.
        image: Qcow2Image,
        /// The bytes of its disk.
        virtual_size: u64,
    },
    /// The node does not let this process have this for its isolation; it goes on without.
    Unconfined(String),
    /// It cannot be done.
    Failed(Failure),
}

/// Where an image is that is to be converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Qcow2Image {
    /// The source.
    Source,
    /// The file for what is between.
    Scratch,
}
