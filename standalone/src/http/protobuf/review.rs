//! Reviews as protobuf.

use prost::{DecodeError, Message};
use serde_json::{Value, json};

#[derive(Clone, PartialEq, Message)]
struct SelfSubjectAccessReview {
    #[prost(message, optional, tag = "2")]
    spec: Option<Attributes>,
}

/// The beginning of `SelfSubjectAccessReviewSpec` and of `SubjectAccessReviewSpec`.
#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "1")]
    resource: Option<ResourceAttributes>,
    #[prost(message, optional, tag = "2")]
    path: Option<PathAttributes>,
    #[prost(string, tag = "3")]
    user: String,
    #[prost(string, repeated, tag = "4")]
    groups: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceAttributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct PathAttributes {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(string, tag = "2")]
    verb: String,
}

/// `SelfSubjectRulesReview` and `TokenReview`: one word each.
#[derive(Clone, PartialEq, Message)]
struct Worded {
    #[prost(message, optional, tag = "2")]
    spec: Option<Word>,
}

#[derive(Clone, PartialEq, Message)]
struct Word {
    #[prost(string, tag = "1")]
    word: String,
}

/// Reads a review. None for a kind that is none.
pub(super) fn read(kind: &str, raw: &[u8]) -> Result<Option<Value>, DecodeError> {
    let word = |field: &str| {
        let word = Worded::decode(raw)?.spec.unwrap_or_default().word;
        Ok(Some(json!({"metadata": {}, "spec": {field: word}})))
    };
    match kind {
        "SelfSubjectReview" => Ok(Some(json!({"metadata": {}}))),
        "SelfSubjectRulesReview" => word("namespace"),
        "TokenReview" => word("token"),
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            let spec = SelfSubjectAccessReview::decode(raw)?.spec.unwrap_or_default();
            let resource = |given: ResourceAttributes| {
                json!({
                    "namespace": given.namespace, "verb": given.verb, "group": given.group,
                    "version": given.version, "resource": given.resource, "subresource": given.subresource,
                    "name": given.name,
                })
            };
            let path = |given: PathAttributes| json!({"path": given.path, "verb": given.verb});
            Ok(Some(json!({"metadata": {}, "spec": {
                "resourceAttributes": spec.resource.map(resource),
                "nonResourceAttributes": spec.path.map(path), "user": spec.user, "groups": spec.groups,
            }})))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_become_what_their_json_would_be() {
        let path = Some(PathAttributes { path: "/x".to_owned(), verb: "get".to_owned() });
        let spec = Attributes { path, user: "me".to_owned(), ..Attributes::default() };
        let raw = SelfSubjectAccessReview { spec: Some(spec) }.encode_to_vec();
        let read = |kind, raw: &[u8]| super::read(kind, raw).unwrap();
        let review = read("SubjectAccessReview", &raw).unwrap();
        assert_eq!(
            review["spec"],
            json!({"resourceAttributes": null, "nonResourceAttributes": {"path": "/x", "verb": "get"}, "user": "me", "groups": []})
        );
        let raw = Worded { spec: Some(Word { word: "w".to_owned() }) }.encode_to_vec();
        assert_eq!(read("TokenReview", &raw).unwrap()["spec"], json!({"token": "w"}));
        assert_eq!(read("Pod", &raw), None);
        assert!(super::read("TokenReview", b"\xff\xff").is_err());
    }
}
