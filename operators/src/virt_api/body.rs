//! Bodies of requests.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::Value;
use vireo_api::decode;

use super::ApiError;
use crate::Problem;

/// The largest body, as of a Kubernetes API server.
const LIMIT: usize = 3 << 20;
/// How long a body may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The object that a request carries; absent where there is no body.
pub(super) async fn object(request: Request) -> Result<Option<Value>, ApiError> {
    let (head, body) = request.into_parts();
    let bytes = read(body).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let value = match media_type(&head.headers).as_str() {
        "" | "application/json" => serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))?,
        "application/yaml" | "application/x-yaml" => yaml(&bytes)?,
        other => {
            return Err(ApiError::unsupported_media_type(format!(
                "the body of the request was in an unknown format: {other}; accepted media types include: application/json, application/yaml"
            )));
        }
    };
    if Value::is_object(&value) {
        Ok(Some(value))
    } else {
        Err(ApiError::bad_request("the body must be an object"))
    }
}

async fn read(body: Body) -> Result<Bytes, ApiError> {
    let reading = Limited::new(body, LIMIT).collect();
    match tokio::time::timeout(TIMEOUT, reading).await {
        Err(_) => Err(ApiError::too_slow()),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(LIMIT)),
        Ok(Err(error)) => Err(ApiError::bad_request(format!("the body broke off: {error}"))),
    }
}

/// Without parameters.
fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.and_then(|value| value.split(';').next()).unwrap_or_default().trim().to_ascii_lowercase()
}

fn yaml(bytes: &[u8]) -> Result<Value, ApiError> {
    let text =
        std::str::from_utf8(bytes).map_err(|_| ApiError::bad_request("the body is not valid UTF-8"))?;
    let documents = decode::documents(text).map_err(|error| ApiError::bad_request(error.to_string()))?;
    match <[Value; 1]>::try_from(documents) {
        Ok([document]) => Ok(document),
        Err(_) => Err(ApiError::bad_request("the body must be one YAML document")),
    }
}

/// Whether options request a dry run, by their field `dryRun`.
pub(super) fn dry_run<'a>(stages: impl IntoIterator<Item = &'a str>) -> Result<bool, ApiError> {
    let mut is_dry = false;
    for stage in stages {
        match stage {
            "All" => is_dry = true,
            "" => {}
            other => {
                let message = format!("Unsupported value: {other:?}: supported values: \"All\"");
                let problem = Problem::unsupported("dryRun", message);
                return Err(ApiError::invalid(("meta.k8s.io", "CreateOptions"), "", &[problem]));
            }
        }
    }
    Ok(is_dry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_is_of_all_stages() {
        assert!(!dry_run([]).unwrap() && !dry_run([""]).unwrap() && dry_run(["All"]).unwrap());
        assert!(dry_run(["All", "Some"]).is_err());
    }
}
