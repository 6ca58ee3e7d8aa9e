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
            OciDistributionError::AuthenticationFailure(body) => {
                let why = of_token_server(body).map(|why| format!(": {why}")).unwrap_or_default();
                (Denied, format!("it does not accept the credentials{why}"))
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
            // Its body is not an error of a registry: where the registry has sent the client elsewhere, it may be for this node alone.
            OciDistributionError::ServerError { code, .. } => match code {
                300..400 => (Invalid, format!("status {code}: it redirects to what is not HTTP")),
                403 => (Denied, format!("status {code}")),
                404 => (NotFound, format!("status {code}")),
                _ => (Other, format!("status {code}")),
            },
            OciDistributionError::RequestError(error) => {
                let kind = if error.is_connect() || error.is_timeout() {
                    Unreachable
                } else if error.is_redirect() || error.is_builder() {
                    // It leads in a circle, or to another scheme.
                    Invalid
                } else {
                    Other
                };
                // The error itself has no more than the address.
                (kind, std::error::Error::source(error).map_or_else(|| error.to_string(), causes))
            }
            OciDistributionError::DigestError(error) => (Invalid, error.to_string()),
            other => (Other, causes(other)),
        };
        Self::new(kind, format!("{host}: {text}"))
    }
}

/// What a server of tokens gives as the reason, in one of the forms of registries. Nothing else of its answer is shown: the registry
/// chooses the server, which may be one that is for this node alone.
fn of_token_server(body: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Refused {
        details: Option<String>,
        #[serde(default)]
        errors: Vec<Why>,
    }
    #[derive(Deserialize)]
    struct Why {
        message: String,
    }
    let Refused { details, errors } = serde_json::from_str(body).ok()?;
    details.or_else(|| errors.into_iter().next().map(|why| why.message))
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
    fn of_servers_that_a_registry_chooses_only_errors_of_registries_are_shown() {
        let answered = |code, message: &str| {
            let error =
                OciDistributionError::ServerError { code, message: message.to_owned(), url: String::new() };
            Failure::of_registry("r.example", &error).message
        };
        assert_eq!(answered(404, "<!DOCTYPE html>"), "r.example: status 404");
        assert_eq!(answered(403, "for this node alone"), "r.example: status 403");
        assert_eq!(answered(302, ""), "r.example: status 302: it redirects to what is not HTTP");
        let refused = |body: &str| {
            let error = OciDistributionError::AuthenticationFailure(body.to_owned());
            Failure::of_registry("r.example", &error).message
        };
        let plain = "r.example: it does not accept the credentials";
        assert_eq!(refused("for this node alone"), plain);
        assert_eq!(refused(r#"{"message": "for this node alone"}"#), plain);
        assert_eq!(refused(r#"{"details": "wrong password"}"#), format!("{plain}: wrong password"));
        let errors = r#"{"errors": [{"code": "DENIED", "message": "no pull"}]}"#;
        assert_eq!(refused(errors), format!("{plain}: no pull"));
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
