//! The certificates of one server, in a directory: its authority, what it proves itself with, and what it gives its
//! administrator.
//!
//! All of them end, and are replaced in time. An authority is replaced in steps: clients learn of the next one an overlap before
//! it issues, and the former one is trusted for an overlap after that.

mod directory;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use vireo_certificates::{Lifetime, Subject};

pub use directory::{Certificates, Current, announce_authority, expirations, renew};
pub use tls::LiveTls;
pub use vireo_certificates::{Authorities, Change, Pair};

use crate::auth::{ADMINISTRATORS, User};
use crate::files::FileError;

/// The name of the authority.
const NAME: &str = "vireo-ca";
const DAY: i64 = 24 * 60 * 60;
/// How long an authority lives.
const AUTHORITY: Lifetime = Lifetime::lasting(10 * 365 * DAY);
/// How long the certificates of the server and of the administrator do.
const LEAF: Lifetime = Lifetime::lasting(365 * DAY);
/// How long each step of the replacement of an authority takes, where nothing else is wanted.
pub const OVERLAP: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Why certificates cannot be read or made.
#[derive(Debug, Error)]
pub enum PkiError {
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] FileError),
    /// A file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file cannot be removed.
    #[error("cannot remove {path}", path = path.display())]
    Remove {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The directory cannot be locked.
    #[error("cannot lock {path}", path = path.display())]
    Lock {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file has no certificate, or a key of another one.
    #[error("{path} is damaged: {why}", path = path.display())]
    Damaged {
        /// Which.
        path: PathBuf,
        /// Why.
        why: &'static str,
    },
    /// A certificate cannot be made.
    #[error(transparent)]
    Make(#[from] vireo_certificates::Error),
    /// The TLS library does not take them.
    #[error("the certificates cannot be used")]
    Tls(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The administrator, as certificates name them.
fn administrator() -> Subject {
    Subject {
        name: User::administrator().name,
        organizations: vec![ADMINISTRATORS.to_owned()],
        names: Vec::new(),
    }
}
