//! What a request carries.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde_json::Value;

use super::ApiError;
use crate::patch::Kind;

/// The largest body; as a Kubernetes API server's.
pub const LIMIT: usize = 3 << 20;
/// How long a body may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The media type, without parameters.
fn media_type(request: &Request) -> String {
    let value = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase()
}

async fn bytes(request: Request) -> Result<Bytes, ApiError> {
    let body = request.into_body();
    // Before it is read, so that a client that waits for `100 Continue` need not send it.
    if body.size_hint().lower() > LIMIT as u64 {
        return Err(ApiError::too_large(LIMIT));
    }
    let reading = Limited::new(body, LIMIT).collect();
    match tokio::time::timeout(PATIENCE, reading).await {
        Err(_) => Err(ApiError::too_slow()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(LIMIT)),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("the body broke off: {error}"))),
    }
}

fn json(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))
}

fn yaml(bytes: &[u8]) -> Result<Value, ApiError> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| ApiError::bad_request("the body is not valid UTF-8"))?;
    let documents =
        vireo_manifest::documents(text, LIMIT).map_err(|error| ApiError::bad_request(error.to_string()))?;
    match <[Value; 1]>::try_from(documents) {
        Ok([document]) => Ok(document),
        Err(_) => Err(ApiError::bad_request("the body must be one YAML document")),
    }
}

/// An object. None if the body is empty.
pub async fn object(request: Request) -> Result<Option<Value>, ApiError> {
    let kind = media_type(&request);
    let bytes = bytes(request).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let value = match kind.as_str() {
        "" | "application/json" => json(&bytes)?,
        "application/yaml" | "application/x-yaml" => yaml(&bytes)?,
        "application/vnd.kubernetes.protobuf" => super::protobuf::object(&bytes)?,
        other => {
            return Err(ApiError::unsupported(format!(
                "the body of the request was in an unknown format: {other}; accepted media types include: application/json, application/yaml"
            )));
        }
    };
    if value.is_object() { Ok(Some(value)) } else { Err(ApiError::bad_request("the body must be an object")) }
}

/// What a PATCH carries.
#[derive(Debug)]
pub(super) enum PatchBody {
    /// A change.
    Change(Kind, Value),
    /// A manifest to apply.
    Manifest(Value),
}

/// A patch. `strategic` is whether the resource has that kind.
pub(super) async fn patch(request: Request, strategic: bool) -> Result<PatchBody, ApiError> {
    let kind = match media_type(&request).as_str() {
        "application/json-patch+json" => Kind::Json,
        "application/merge-patch+json" => Kind::Merge,
        "application/strategic-merge-patch+json" if strategic => Kind::Strategic,
        "application/apply-patch+yaml" => {
            let manifest = yaml(&bytes(request).await?)?;
            if !manifest.is_object() {
                return Err(ApiError::bad_request("the body must be an object"));
            }
            return Ok(PatchBody::Manifest(manifest));
        }
        other => {
            let strategic = if strategic { ", application/strategic-merge-patch+json" } else { "" };
            return Err(ApiError::unsupported(format!(
                "the body of the request was in an unknown format: {other}; accepted media types include: application/json-patch+json, application/merge-patch+json{strategic}, application/apply-patch+yaml"
            )));
        }
    };
    Ok(PatchBody::Change(kind, json(&bytes(request).await?)?))
}
