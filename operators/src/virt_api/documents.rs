//! Documents of KubeVirt's API server beside its objects: upstream's clients ask for the version whenever a request
//! of theirs fails.

use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use kube::Client;
use serde_json::{Value, json};

use super::endpoint::Document;
use super::{ApiError, VirtApi, json_response};

/// The release of KubeVirt whose API this is. Clients compare its first two numbers with theirs.
const KUBEVIRT: &str = "1.9.0";

pub(super) async fn serve(
    server: &VirtApi,
    document: Document,
    method: &Method,
) -> Result<Response, ApiError> {
    if method != Method::GET && method != Method::HEAD {
        return Err(ApiError::method_not_allowed());
    }
    match document {
        Document::Version => Ok(json_response(StatusCode::OK, &version())),
        Document::Health => Ok(health(&server.client).await),
        Document::Guestfs => {
            let message = "guestfs runs in a Pod, and Vireo has no image for it: attach the claim to a VM";
            Err(ApiError::bad_request(message))
        }
    }
}

/// By upstream's field names. The Go fields are empty.
fn version() -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "gitVersion": format!("v{KUBEVIRT}+vireo-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{architecture}", std::env::consts::OS),
    })
}

/// Whether the API server answers. There is no KubeVirt object to have a version.
async fn health(client: &Client) -> Response {
    let version = match Request::get("/version").body(Vec::new()) {
        Ok(request) => client.request::<Value>(request).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    let (code, apiserver) = match version {
        Ok(version) => (StatusCode::OK, json!({"connectivity": "ok", "version": version})),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, json!({"connectivity": "failed", "error": error})),
    };
    json_response(code, &json!({"apiserver": apiserver, "config-resource-version": ""}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_has_the_fields_of_upstreams_and_is_a_semantic_version() {
        let version = version();
        let mut fields: Vec<_> = version.as_object().unwrap().keys().map(String::as_str).collect();
        fields.sort_unstable();
        let expected =
            ["buildDate", "compiler", "gitCommit", "gitTreeState", "gitVersion", "goVersion", "platform"];
        assert_eq!(fields, expected);
        let text = version["gitVersion"].as_str().unwrap();
        let (numbers, build) = text.strip_prefix('v').and_then(|text| text.split_once('+')).unwrap();
        assert_eq!(numbers.split('.').filter(|number| number.parse::<u32>().is_ok()).count(), 3, "{text}");
        assert!(
            build.chars().all(|letter| letter.is_ascii_alphanumeric() || ".-".contains(letter)),
            "{text}"
        );
    }
}
