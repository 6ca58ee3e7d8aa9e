//! What the node agent and the importer say to each other, in JSON.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// What to do.
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
        /// The directory of the image layout, which exists.
        layout: PathBuf,
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
    /// It cannot be done.
    Failed(Failure),
}
