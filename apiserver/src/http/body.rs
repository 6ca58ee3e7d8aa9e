//! What a request carries.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::header;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::ApiError;
use crate::patch::Kind;
use crate::server::ClientTimeouts;

/// The largest body; as a Kubernetes API server's.
pub const LIMIT: usize = 3 << 20;
/// What each body may have beside [`LARGE`]: most objects are smaller, and are taken however many large ones there are.
const SMALL: usize = 64 << 10;
/// Bytes that all bodies being read may have beyond that.
static LARGE: Semaphore = Semaphore::const_new(128 << 20);

/// A body that was read, with its part of [`LARGE`].
#[derive(Debug)]
struct Counted {
    bytes: Bytes,
    _part: Option<SemaphorePermit<'static>>,
}

/// A request with its whole body, which is read before the request takes a seat.
pub(super) async fn buffer(mut request: Request) -> Result<Request, ApiError> {
    if request.body().is_end_stream() {
        return Ok(request);
    }
    // Requests of this process have none.
    let timeouts = request.extensions().get::<ClientTimeouts>().copied().unwrap_or_default();
    let body = std::mem::take(request.body_mut());
    // Before it is read, so that a client that waits for `100 Continue` need not send it.
    if body.size_hint().lower() > LIMIT as u64 {
        return Err(ApiError::too_large(LIMIT));
    }
    let read = tokio::time::timeout(timeouts.body(), collect(body, &LARGE)).await;
    let counted = Arc::new(read.map_err(|_| ApiError::too_slow())??);
    *request.body_mut() = Body::from(counted.bytes.clone());
    request.extensions_mut().insert(counted);
    Ok(request)
}

/// The media type, without parameters.
fn media_type(request: &Request) -> String {
    let value = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase()
}

async fn bytes(request: Request) -> Result<Arc<Counted>, ApiError> {
    let mut request = match request.extensions().get::<Arc<Counted>>() {
        Some(_) => request,
        None => buffer(request).await?,
    };
    let empty = || Arc::new(Counted { bytes: Bytes::new(), _part: None });
    Ok(request.extensions_mut().remove().unwrap_or_else(empty))
}

async fn collect(body: Body, large: &'static Semaphore) -> Result<Counted, ApiError> {
    let mut body = Limited::new(body, LIMIT);
    let (mut bytes, mut part) = (Vec::new(), None::<SemaphorePermit<'static>>);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => ApiError::too_large(LIMIT),
            false => ApiError::bad_request(format!("the body broke off: {error}")),
        })?;
        let Ok(data) = frame.into_data() else { continue };
        bytes.extend_from_slice(&data);
        let counted = part.as_ref().map_or(0, SemaphorePermit::num_permits);
        let more = bytes.len().saturating_sub(SMALL).saturating_sub(counted);
        if more == 0 {
            continue;
        }
        let more = u32::try_from(more).ok().and_then(|more| large.try_acquire_many(more).ok());
        let more = more.ok_or_else(|| {
            ApiError::too_many_requests("too many large requests: try again later").retried().closing()
        })?;
        match &mut part {
            Some(part) => part.merge(more),
            None => part = Some(more),
        }
    }
    Ok(Counted { bytes: bytes.into(), _part: part })
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
    let body = bytes(request).await?;
    let bytes: &[u8] = &body.bytes;
    if bytes.is_empty() {
        return Ok(None);
    }
    let value = match kind.as_str() {
        "" | "application/json" => json(bytes)?,
        "application/yaml" | "application/x-yaml" => yaml(bytes)?,
        "application/vnd.kubernetes.protobuf" => super::protobuf::object(bytes)?,
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
            let manifest = yaml(&bytes(request).await?.bytes)?;
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
    Ok(PatchBody::Change(kind, json(&bytes(request).await?.bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn large_bodies_share_what_there_is_and_small_ones_are_always_taken() {
        static ROOM: Semaphore = Semaphore::const_new(SMALL);
        let body = |count: usize| Body::from(vec![b' '; count]);
        let first = collect(body(2 * SMALL), &ROOM).await.unwrap();
        assert_eq!(first.bytes.len(), 2 * SMALL);
        let refused = collect(body(SMALL + 1), &ROOM).await.expect_err("there is no room");
        assert_eq!(axum::response::IntoResponse::into_response(refused).status(), 429);
        assert_eq!(collect(body(SMALL), &ROOM).await.unwrap().bytes.len(), SMALL);
        drop(first);
        assert!(collect(body(SMALL + 1), &ROOM).await.is_ok(), "the room is given back");
        assert_eq!(ROOM.available_permits(), SMALL);
    }
}
