//! Objects as Kubernetes' protobuf: what recent `kubectl create` and `kubectl auth` send for kinds that they know.

mod rbac;
mod review;

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde_json::{Map, Value, json};

use super::ApiError;
use crate::resource::is_workload;

/// What a body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// `runtime.Unknown`
#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    kind: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

/// `metav1.ObjectMeta`, without the fields that only a server sets.
#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owners: Vec<OwnerReference>,
    #[prost(string, repeated, tag = "14")]
    finalizers: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct OwnerReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    block_owner_deletion: Option<bool>,
}

/// Any object, of which nothing else is read.
#[derive(Clone, PartialEq, Message)]
struct MetadataAlone {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

#[derive(Clone, PartialEq, Message)]
struct ConfigMap {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(btree_map = "string, string", tag = "2")]
    data: BTreeMap<String, String>,
    #[prost(btree_map = "string, bytes", tag = "3")]
    binary: BTreeMap<String, Vec<u8>>,
    #[prost(bool, optional, tag = "4")]
    immutable: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Secret {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(btree_map = "string, bytes", tag = "2")]
    data: BTreeMap<String, Vec<u8>>,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(btree_map = "string, string", tag = "4")]
    texts: BTreeMap<String, String>,
    #[prost(bool, optional, tag = "5")]
    immutable: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceAccount {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    secrets: Vec<ObjectReference>,
    #[prost(message, repeated, tag = "3")]
    pull_secrets: Vec<LocalObjectReference>,
    #[prost(bool, optional, tag = "4")]
    automount: Option<bool>,
}

/// `core.ObjectReference`, of which accounts use the name alone.
#[derive(Clone, PartialEq, Message)]
struct ObjectReference {
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct LocalObjectReference {
    #[prost(string, tag = "1")]
    name: String,
}

/// Reads an object of one of the kinds that are known here.
pub(super) fn object(body: &[u8]) -> Result<Value, ApiError> {
    let broken =
        |error: prost::DecodeError| ApiError::bad_request(format!("the body is not valid protobuf: {error}"));
    let body = body
        .strip_prefix(MAGIC)
        .ok_or_else(|| ApiError::bad_request("the body is not Kubernetes' protobuf: it has no prefix"))?;
    let envelope = Envelope::decode(body).map_err(broken)?;
    let TypeMeta { api_version, kind } = envelope.kind.unwrap_or_default();
    let raw = envelope.raw.as_slice();
    let mut object = match (api_version.as_str(), kind.as_str()) {
        ("v1", "Namespace") => {
            let namespace = MetadataAlone::decode(raw).map_err(broken)?;
            json!({ "metadata": metadata(namespace.metadata) })
        }
        // They are rejected whatever their other fields hold.
        (version, kind) if is_workload(version, kind) => {
            let workload = MetadataAlone::decode(raw).map_err(broken)?;
            json!({ "metadata": metadata(workload.metadata) })
        }
        ("v1", "ConfigMap") => {
            let map = ConfigMap::decode(raw).map_err(broken)?;
            json!({
                "metadata": metadata(map.metadata), "data": map.data, "binaryData": encoded(map.binary),
                "immutable": map.immutable,
            })
        }
        ("v1", "Secret") => {
            let secret = Secret::decode(raw).map_err(broken)?;
            json!({
                "metadata": metadata(secret.metadata), "data": encoded(secret.data), "type": secret.kind,
                "stringData": secret.texts, "immutable": secret.immutable,
            })
        }
        ("v1", "ServiceAccount") => {
            let account = ServiceAccount::decode(raw).map_err(broken)?;
            json!({
                "metadata": metadata(account.metadata), "automountServiceAccountToken": account.automount,
                "imagePullSecrets": names(account.pull_secrets.iter().map(|one| &one.name)), "secrets": names(account.secrets.iter().map(|one| &one.name)),
            })
        }
        (_, kind) => match rbac::read(kind, raw).map_err(broken)? {
            Some(object) => object,
            None => review::read(kind, raw).map_err(broken)?.ok_or_else(|| {
                ApiError::unsupported(format!(
                    "{api_version} {kind} is not read as protobuf; accepted media types include: application/json, application/yaml"
                ))
            })?,
        },
    };
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    tidy(&mut object);
    Ok(object)
}

fn names<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<Value> {
    names.into_iter().map(|name| json!({ "name": name })).collect()
}

fn encoded(bytes: BTreeMap<String, Vec<u8>>) -> BTreeMap<String, String> {
    bytes.into_iter().map(|(name, bytes)| (name, STANDARD.encode(bytes))).collect()
}

fn metadata(metadata: Option<ObjectMeta>) -> Value {
    let metadata = metadata.unwrap_or_default();
    let owner = |owner: OwnerReference| {
        json!({
            "apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid,
            "controller": owner.controller, "blockOwnerDeletion": owner.block_owner_deletion,
        })
    };
    let owners: Vec<Value> = metadata.owners.into_iter().map(owner).collect();
    let mut value = json!({
        "name": metadata.name, "generateName": metadata.generate_name, "namespace": metadata.namespace,
        "uid": metadata.uid, "resourceVersion": metadata.resource_version, "labels": metadata.labels,
        "annotations": metadata.annotations, "finalizers": metadata.finalizers, "ownerReferences": owners,
    });
    tidy(&mut value);
    value
}

/// Leaves out default values, as JSON does.
fn tidy(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|name, value| {
            let empty = value.is_null()
                || value.as_str().is_some_and(str::is_empty)
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(Map::is_empty);
            name == "metadata" || !empty
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(kind: &str, raw: &impl Message) -> Vec<u8> {
        let kind = TypeMeta { api_version: "v1".to_owned(), kind: kind.to_owned() };
        let envelope = Envelope { kind: Some(kind), raw: raw.encode_to_vec() };
        [MAGIC, &envelope.encode_to_vec()].concat()
    }

    #[test]
    fn a_secret_becomes_what_its_json_would_be() {
        let metadata = ObjectMeta {
            name: "x".to_owned(),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            ..ObjectMeta::default()
        };
        let secret = Secret {
            metadata: Some(metadata),
            data: [("k".to_owned(), b"\xffv".to_vec())].into(),
            ..Secret::default()
        };
        let expected = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "labels": {"a": "b"}}, "data": {"k": "/3Y="}});
        assert_eq!(object(&body("Secret", &secret)).unwrap(), expected);
    }

    #[test]
    fn of_what_there_is_nothing_the_name_is_read() {
        let metadata = ObjectMeta { name: "x".to_owned(), ..ObjectMeta::default() };
        let service = Secret { metadata: Some(metadata), kind: "ignored".to_owned(), ..Secret::default() };
        let expected = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}});
        assert_eq!(object(&body("Service", &service)).unwrap(), expected);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for broken in [
            b"".to_vec(),
            b"{}".to_vec(),
            [MAGIC, b"\xff\xff\xff"].concat(),
            body("Event", &Secret::default()),
        ] {
            assert!(object(&broken).is_err(), "{broken:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_odd(
            kind in proptest::sample::select(vec!["Namespace", "ConfigMap", "Secret", "ServiceAccount", "Pod",
                "ClusterRole", "RoleBinding", "SubjectAccessReview", "TokenRequest", "x"]),
            raw in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..300),
        ) {
            let _ = object(&[MAGIC, &raw].concat());
            let kind = TypeMeta { api_version: "v1".to_owned(), kind: kind.to_owned() };
            let envelope = Envelope { kind: Some(kind), raw };
            let _ = object(&[MAGIC, &envelope.encode_to_vec()].concat());
        }
    }
}
