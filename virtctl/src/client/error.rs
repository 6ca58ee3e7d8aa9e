//! Errors of requests.

use std::error::Error;
use std::path::PathBuf;

use hyper::{StatusCode, Uri};
use hyper_util::client::legacy;
use serde_json::Value;

use super::config::ConfigError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(
        "no virt-handler answers at {socket}: is it running, and is --state-dir (VIREO_STATE_DIR) right?"
    )]
    Connect { socket: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the credentials or certificates for the server cannot be used")]
    Unusable(#[source] Box<kube::Error>),
    #[error("cannot connect to {server}")]
    Server { server: String, source: Box<dyn Error + Send + Sync> },
    #[error("virt-handler serves no virtual machines: name an API server by --kubeconfig or KUBECONFIG")]
    NoVms,
    #[error(
        "virt-handler has no users, so --{0} needs a server: name it by --kubeconfig, --server or KUBECONFIG"
    )]
    NoUsers(&'static str),
    #[error("virt-handler alone has no version: name the server by --kubeconfig or KUBECONFIG")]
    NoVersion,
    #[error("the upload proxy {url} {why}")]
    Proxy { url: String, why: String },
    #[error("the request failed")]
    Http(#[source] Box<dyn Error + Send + Sync>),
    #[error("the server does not answer within {0:?} (--request-timeout)")]
    Timeout(std::time::Duration),
    #[error("the request cannot be made of these names")]
    Request(#[source] hyper::http::Error),
    #[error("the answer could not be read")]
    Body(#[source] Box<dyn Error + Send + Sync>),
    #[error("the response is not JSON")]
    Json(#[source] serde_json::Error),
    /// The server's `metav1.Status`.
    #[error("{message}")]
    Refused { code: StatusCode, message: String },
    #[error("the stream could not be opened: the server's answer has a wrong {0}")]
    Upgrade(&'static str),
}

impl ClientError {
    /// Whether the server has no such object, or no such path.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code: StatusCode::NOT_FOUND, .. })
    }

    /// Whether the user may not do this.
    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { code: StatusCode::FORBIDDEN, .. })
    }

    /// Whether others changed the object meanwhile.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused { code: StatusCode::CONFLICT, .. })
    }
}

/// Whether a server could not be reached, or failed later.
pub(super) fn unreachable_or_failed(url: &Uri, source: Box<dyn Error + Send + Sync>) -> ClientError {
    match source.downcast::<legacy::Error>() {
        Ok(error) if error.is_connect() => {
            ClientError::Server { server: url.to_string(), source: Box::new(ConnectError(*error)) }
        }
        Ok(error) => ClientError::Http(error),
        Err(source) => ClientError::Http(source),
    }
}

/// The cause of an error of hyper's, whose own message only names the step.
#[derive(Debug)]
struct ConnectError(legacy::Error);

impl std::fmt::Display for ConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.source() {
            Some(cause) => write!(f, "{cause}"),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()?.source()
    }
}

/// The error in a server's response.
pub(super) fn refused(code: StatusCode, body: &[u8]) -> ClientError {
    let status: Option<Value> = serde_json::from_slice(body).ok();
    let message = status.as_ref().and_then(|status| status.get("message")?.as_str()).map(str::to_owned);
    let message = message.unwrap_or_else(|| format!("the server answered {code}"));
    ClientError::Refused { code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_have_the_message_of_the_server() {
        let body = br#"{"kind":"Status","message":"virtualmachineinstances \"x\" not found","code":404}"#;
        assert_eq!(
            refused(StatusCode::NOT_FOUND, body).to_string(),
            r#"virtualmachineinstances "x" not found"#
        );
        assert!(refused(StatusCode::BAD_GATEWAY, b"<html>").to_string().contains("502"));
    }
}
