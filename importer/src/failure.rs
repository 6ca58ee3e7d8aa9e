//! Why an image cannot be had.

use std::io;

use oci_client::errors::{OciDistributionError, OciErrorCode};
use serde::{Deserialize, Serialize};

/// The most characters of what a registry says that are shown.
const LONGEST: usize = 400;

/// Why an image cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What decides.
    pub kind: FailureKind,
    /// The same for people, with what the registry says.
    pub message: String,
}

/// What decides about what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The reference is not one.
    Reference,
    /// The registry wants other credentials.
    Denied,
    /// It does not have the image.
    NotFound,
    /// It does not answer.
    Unreachable,
    /// What it sends is not what it should be.
    Invalid,
    /// The image is larger than it may be.
    TooLarge,
    /// The node has no space for it.
    Full,
    /// It is no image, or one that is not taken.
    Format,
    /// It is compressed, and truncated or invalid.
    Damaged,
    /// It looks like a disk image, and cannot be read as one.
    Convert,
    /// It does not fit the disk.
    DiskTooLarge {
        /// The bytes that it needs, or more.
        wanted: u64,
    },
    /// Anything else.
    Other,
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: readable(&message.into()) }
    }

    /// Of a file that is written.
    pub(crate) fn of_file(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::new(FailureKind::Full, "no space is left on the node for the image")
            }
            io::ErrorKind::FileTooLarge => {
                Self::new(FailureKind::TooLarge, "a layer is larger than the image may be")
            }
            _ => Self::new(FailureKind::Other, format!("cannot write the image: {error}")),
        }
    }

    /// Of what a server has answered, or has not.
    pub(crate) fn of_registry(host: &str, error: &OciDistributionError) -> Self {
        use FailureKind::{Denied, Invalid, NotFound, Other, Unreachable};
        let (kind, text) = match error {
            OciDistributionError::UnauthorizedError { .. } => (Denied, "it denies access".to_owned()),
            OciDistributionError::AuthenticationFailure(text) => {
                (Denied, format!("it does not accept the credentials: {text}"))
            }
            OciDistributionError::RegistryError { envelope, .. } => {
                let codes = || envelope.errors.iter().map(|error| &error.code);
                let is_any = |wanted: &[OciErrorCode]| codes().any(|code| wanted.contains(code));
                let kind = if is_any(&[OciErrorCode::Unauthorized, OciErrorCode::Denied]) {
                    Denied
                } else if is_any(&[
                    OciErrorCode::ManifestUnknown,
                    OciErrorCode::NameUnknown,
                    OciErrorCode::BlobUnknown,
                    OciErrorCode::NotFound,
                ]) {
                    NotFound
                } else {
                    Other
                };
                let words = envelope.errors.iter().map(|error| match error.message.is_empty() {
                    true => format!("{:?}", error.code),
                    false => error.message.clone(),
                });
                (kind, words.collect::<Vec<_>>().join("; "))
            }
            OciDistributionError::ServerError { code, message, .. } => {
                let kind = match code {
                    403 => Denied,
                    404 => NotFound,
                    _ => Other,
                };
                (kind, of_status(*code, message))
            }
            OciDistributionError::RequestError(error) => {
                let kind = if error.is_connect() || error.is_timeout() { Unreachable } else { Other };
                // The error itself has no more than the address.
                (kind, std::error::Error::source(error).map_or_else(|| error.to_string(), causes))
            }
            OciDistributionError::DigestError(error) => (Invalid, error.to_string()),
            other => (Other, causes(other)),
        };
        Self::new(kind, format!("{host}: {text}"))
    }
}

/// A status with the body of its response, unless that is a page for browsers.
fn of_status(code: u16, body: &str) -> String {
    match body.trim_start() {
        "" => format!("status {code}"),
        page if page.starts_with('<') => format!("status {code}"),
        text => format!("status {code}: {text}"),
    }
}

/// An error with its causes.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        // Some errors repeat their cause.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}

/// One line without control characters, of limited length.
fn readable(text: &str) -> String {
    let plain: String = text.chars().map(|one| if one.is_control() { ' ' } else { one }).collect();
    let plain = plain.trim();
    match plain.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", plain.get(..end).unwrap_or_default()),
        None => plain.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_registry_says_is_one_line_of_limited_length() {
        assert_eq!(readable(" a\nb\u{1b}[31m "), "a b [31m");
        assert_eq!(readable(&"ä".repeat(1000)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn pages_for_browsers_are_not_shown() {
        assert_eq!(of_status(404, "\n<!DOCTYPE html>"), "status 404");
        assert_eq!(of_status(502, ""), "status 502");
        assert_eq!(of_status(503, "busy"), "status 503: busy");
    }

    #[test]
    fn errors_of_files_and_registries_have_kinds() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(Failure::of_file(&full).kind, FailureKind::Full);
        let denied = OciDistributionError::UnauthorizedError { url: String::new() };
        let failure = Failure::of_registry("r.example", &denied);
        assert_eq!((failure.kind, &*failure.message), (FailureKind::Denied, "r.example: it denies access"));
        let text = r#"{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}"#;
        let envelope = serde_json::from_str(text).unwrap();
        let failure = Failure::of_registry(
            "r.example",
            &OciDistributionError::RegistryError { envelope, url: String::new() },
        );
        assert_eq!(failure.kind, FailureKind::NotFound);
        assert_eq!(failure.message, "r.example: manifest unknown");
    }
}
