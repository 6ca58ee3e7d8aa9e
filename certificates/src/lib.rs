//! Authorities, the certificates that they issue, and when both are replaced: of the components in a cluster, and of the API
//! server of a single host. Everything is text in PEM; who uses it stores it, and says what time it is.

mod authority;
mod rotation;

use thiserror::Error;

pub use authority::{Facts, Pair, Subject, pem, self_signed, split};
pub use rotation::{Authorities, Change, Lifetime, Rotation};

/// Why a certificate cannot be made.
#[derive(Debug, Error)]
pub enum Error {
    /// The library does not make it.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// The key of the authority is none.
    #[error("the key of the authority cannot be read")]
    Key,
}
