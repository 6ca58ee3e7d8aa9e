//! What KubeVirt's API server says of itself, beside its objects: upstream's clients ask for the version whenever a
//! request of theirs fails.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use vireo_apiserver::http::{ApiError, ResourcePath, discovery, json_of};

use super::STREAMS;

/// The release of KubeVirt whose API this is. Clients compare its first two numbers with theirs.
const KUBEVIRT: &str = "1.9.0";

/// A document of virt-api.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Document {
    Version,
    Health,
    /// The image of libguestfs' tools.
    Guestfs,
}

impl Document {
    /// All of them.
    pub(super) const ALL: [Self; 3] = [Self::Guestfs, Self::Health, Self::Version];

    /// The last part of its path.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Guestfs => "guestfs",
            Self::Health => "healthz",
            Self::Version => "version",
        }
    }
}

/// The document at a path.
pub(super) fn at(path: &ResourcePath) -> Option<Document> {
    let is_served = path.group == STREAMS && matches!(path.version.as_str(), "v1" | "v1alpha3");
    if !is_served || path.namespace.is_some() || path.name.is_some() {
        return None;
    }
    Document::ALL.into_iter().find(|document| document.name() == path.resource)
}

/// Answers with a document.
pub(super) fn document(document: Document) -> Result<Response, ApiError> {
    let value = match document {
        Document::Version => version(),
        Document::Health => health(),
        Document::Guestfs => {
            let why =
                "guestfs runs in a pod, and this server runs none: attach the claim to a virtual machine";
            return Err(ApiError::new(StatusCode::NOT_FOUND, "NotFound", why));
        }
    };
    Ok(json_of(StatusCode::OK, &value))
}

/// By upstream's field names. There is no Go in it.
fn version() -> Value {
    json!({
        "gitVersion": format!("v{KUBEVIRT}+vireo-{}", env!("CARGO_PKG_VERSION")),
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "rustc",
        "platform": discovery::platform(),
    })
}

/// Who answers is the API server itself, so that it can be reached. There is no KubeVirt object to have a version.
fn health() -> Value {
    json!({
        "apiserver": {"connectivity": "ok", "version": discovery::version()},
        "config-resource-version": "",
    })
}

#[cfg(test)]
mod tests {
    use vireo_apiserver::http::RequestInfo;

    use super::*;

    fn document_at(segments: &[&str]) -> Option<Document> {
        let path = format!("/{}", segments.join("/"));
        at(RequestInfo::of_path(&path).unwrap().resource().unwrap())
    }

    #[test]
    fn documents_are_in_both_versions_and_nowhere_else() {
        for version in ["v1", "v1alpha3"] {
            assert_eq!(document_at(&["apis", STREAMS, version, "version"]), Some(Document::Version));
            assert_eq!(document_at(&["apis", STREAMS, version, "healthz"]), Some(Document::Health));
            assert_eq!(document_at(&["apis", STREAMS, version, "guestfs"]), Some(Document::Guestfs));
            assert_eq!(document_at(&["apis", STREAMS, version, "version", "x"]), None);
        }
        assert_eq!(document_at(&["apis", STREAMS, "v2", "version"]), None);
        assert_eq!(document_at(&["apis", "kubevirt.io", "v1", "version"]), None);
    }

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
