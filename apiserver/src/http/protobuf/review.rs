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

#[derive(Clone, PartialEq, Message)]
struct TokenReview {
    #[prost(message, optional, tag = "2")]
    spec: Option<TokenReviewSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct TokenReviewSpec {
    #[prost(string, tag = "1")]
    token: String,
    #[prost(string, repeated, tag = "2")]
    audiences: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TokenRequest {
    #[prost(message, optional, tag = "2")]
    spec: Option<TokenRequestSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct TokenRequestSpec {
    #[prost(string, repeated, tag = "1")]
    audiences: Vec<String>,
    #[prost(message, optional, tag = "3")]
    bound: Option<Bound>,
    #[prost(int64, optional, tag = "4")]
    seconds: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Bound {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    api_version: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
}

/// `SelfSubjectRulesReview`: one word.
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
        "TokenReview" => {
            let spec = TokenReview::decode(raw)?.spec.unwrap_or_default();
            Ok(Some(json!({"metadata": {}, "spec": {"token": spec.token, "audiences": spec.audiences}})))
        }
        "TokenRequest" => {
            let spec = TokenRequest::decode(raw)?.spec.unwrap_or_default();
            let bound = |one: Bound| json!({"kind": one.kind, "apiVersion": one.api_version, "name": one.name, "uid": one.uid});
            Ok(Some(json!({"metadata": {}, "spec": {
                "audiences": spec.audiences, "expirationSeconds": spec.seconds,
                "boundObjectRef": spec.bound.map(bound),
            }})))
        }
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
        assert_eq!(read("SelfSubjectRulesReview", &raw).unwrap()["spec"], json!({"namespace": "w"}));
        assert_eq!(read("TokenReview", &raw).unwrap()["spec"], json!({"token": "w", "audiences": []}));
        let bound = Some(Bound { kind: "Secret".to_owned(), name: "s".to_owned(), ..Bound::default() });
        let spec = TokenRequestSpec { audiences: vec!["a".to_owned()], bound, seconds: Some(600) };
        let raw = TokenRequest { spec: Some(spec) }.encode_to_vec();
        let decoded = read("TokenRequest", &raw).unwrap();
        assert_eq!(
            (&decoded["spec"]["expirationSeconds"], &decoded["spec"]["audiences"]),
            (&json!(600), &json!(["a"]))
        );
        assert_eq!(decoded["spec"]["boundObjectRef"]["name"], "s");
        assert_eq!(read("Pod", &raw), None);
        assert!(super::read("TokenReview", b"\xff\xff").is_err());
    }
}
