//! What a DataVolume is filled from, and who may clone it.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use serde_json::{Map, Value, json};
use vireo_api::spec::is_dns_subdomain;
use vireo_client::{Kind, ObjectKey};

/// The sources of `cdi.kubevirt.io/v1beta1`.
pub const SOURCES: [&str; 10] =
    ["blank", "gcs", "http", "imageio", "pvc", "registry", "s3", "snapshot", "upload", "vddk"];

/// What the spec of a DataVolume is filled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// What a DataSource names.
    DataSource(ObjectKey),
    /// Another object.
    Cloned(Cloned),
    /// Nothing that is in the cluster already, or what CDI does not fill.
    Other,
}

/// An object that is cloned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cloned {
    /// Whether it is a VolumeSnapshot, and not a PersistentVolumeClaim.
    pub is_snapshot: bool,
    /// Its namespace and its name.
    pub key: ObjectKey,
}

/// What is wrong with a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct SourceError {
    /// The field, in a DataVolume.
    pub field: &'static str,
    /// The explanation.
    pub message: String,
}

impl SourceError {
    fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self { field, message: message.into() }
    }
}

/// A member that is not null.
fn member<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn text<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// The object that a reference names, which may be in the namespace of what refers to it.
fn referent(reference: &Value, namespace: &str) -> Option<ObjectKey> {
    let key = ObjectKey::new(text(reference, "namespace").unwrap_or(namespace), text(reference, "name")?);
    // Others have no object, and are no part of a path.
    (is_dns_subdomain(&key.namespace) && is_dns_subdomain(&key.name)).then_some(key)
}

impl Cloned {
    /// The claim or the snapshot that a `source` names.
    fn of(source: &Value, namespace: &str) -> Option<Self> {
        let (is_snapshot, of) = match (member(source, "pvc"), member(source, "snapshot")) {
            (Some(claim), None) => (false, claim),
            (None, Some(snapshot)) => (true, snapshot),
            (None, None) | (Some(_), Some(_)) => return None,
        };
        Some(Self { is_snapshot, key: referent(of, namespace)? })
    }

    /// The `source` that names it.
    fn source(&self) -> Value {
        let ObjectKey { namespace, name } = &self.key;
        let field = if self.is_snapshot { "snapshot" } else { "pvc" };
        json!({field: {"namespace": namespace, "name": name}})
    }
}

impl Source {
    /// That of the spec of a DataVolume in a namespace.
    ///
    /// # Errors
    /// When it is not known what that is: it may be a clone, which needs authorization.
    pub fn of(spec: &Value, namespace: &str) -> Result<Self, SourceError> {
        match (member(spec, "source"), member(spec, "sourceRef")) {
            (None, None) => Ok(Self::Other),
            (Some(_), Some(_)) => {
                Err(SourceError::new("spec.source", "may not be given with spec.sourceRef: name one of them"))
            }
            (Some(source), None) => Self::of_source(source, namespace),
            (None, Some(reference)) => Self::of_reference(reference, namespace),
        }
    }

    fn of_source(source: &Value, namespace: &str) -> Result<Self, SourceError> {
        let members = source.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let names: Vec<&str> = members.map(|(name, _)| name.as_str()).collect();
        let error = |message: String| Err(SourceError::new("spec.source", message));
        match names.as_slice() {
            ["pvc" | "snapshot"] => match Cloned::of(source, namespace) {
                Some(cloned) => Ok(Self::Cloned(cloned)),
                None => error(format!("{}: name what is cloned", names.concat())),
            },
            [name] if SOURCES.contains(name) => Ok(Self::Other),
            [name] => error(format!("Unsupported value: {name:?}: supported values: {}", SOURCES.join(", "))),
            [] => error("name one source".to_owned()),
            several => error(format!("only one source may be given: {}", several.join(", "))),
        }
    }

    fn of_reference(reference: &Value, namespace: &str) -> Result<Self, SourceError> {
        let kind = text(reference, "kind").unwrap_or_default();
        if kind != Kind::DATA_SOURCE.kind {
            let message =
                format!("Unsupported value: {kind:?}: supported values: {}", Kind::DATA_SOURCE.kind);
            return Err(SourceError::new("spec.sourceRef.kind", message));
        }
        let key = referent(reference, namespace);
        key.map(Self::DataSource).ok_or_else(|| SourceError::new("spec.sourceRef", "name a DataSource"))
    }
}

/// What a DataSource names.
///
/// # Errors
/// When that is neither a claim nor a snapshot.
pub fn of_data_source(key: &ObjectKey, data_source: &Value) -> Result<Cloned, String> {
    // One that refers to another has what that names in its status.
    let sources = ["/spec/source", "/status/source"].into_iter().filter_map(|at| data_source.pointer(at));
    let mut named = sources.filter_map(|source| Cloned::of(source, &key.namespace));
    named.next().ok_or_else(|| format!("DataSource {key} names neither a PVC nor a VolumeSnapshot"))
}

/// Has the spec of a DataVolume name what was authorized, and not a DataSource, which may name something else later.
pub fn set(spec: &mut Map<String, Value>, cloned: &Cloned) {
    spec.remove("sourceRef");
    spec.insert("source".to_owned(), cloned.source());
}

/// What to ask before a service account has something cloned into its namespace: one of the lists has to be allowed as a
/// whole. These are CDI's rules: whoever may create Pods beside a claim can read it.
pub fn access_reviews(
    (namespace, account): (&str, &str),
    cloned: &Cloned,
) -> Option<Vec<Vec<SubjectAccessReview>>> {
    if cloned.key.namespace == namespace {
        return None;
    }
    let user = user((namespace, account));
    let groups =
        ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"]
            .map(str::to_owned);
    let text = |text: &str| Some(text.to_owned());
    let review = |(group, resource, subresource): (&str, &str, Option<&str>)| SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.clone()),
            groups: Some(groups.clone().into()),
            resource_attributes: Some(ResourceAttributes {
                group: text(group),
                resource: text(resource),
                subresource: subresource.and_then(text),
                verb: text("create"),
                namespace: text(&cloned.key.namespace),
                name: text(&cloned.key.name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let explicit = review((Kind::DATA_VOLUME.group, Kind::DATA_VOLUME.plural, Some("source")));
    let mut implicit = vec![review(("", Kind::POD.plural, None))];
    if cloned.is_snapshot {
        // CDI asks for this name.
        implicit.push(review(("", "pvcs", None)));
    }
    Some(vec![vec![explicit], implicit])
}

/// Why a service account may not have something cloned.
pub fn denial(account: (&str, &str), cloned: &Cloned) -> String {
    format!(
        "User {} has insufficient permissions in clone source namespace {}: it may not create {}/source there",
        user(account),
        cloned.key.namespace,
        Kind::DATA_VOLUME.resource_name(),
    )
}

fn user((namespace, account): (&str, &str)) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cloned(is_snapshot: bool, namespace: &str, name: &str) -> Cloned {
        Cloned { is_snapshot, key: ObjectKey::new(namespace, name) }
    }

    #[test]
    fn clones_have_a_source_in_a_namespace() {
        let data_source = |namespace: &str| Source::DataSource(ObjectKey::new(namespace, "debian"));
        for (spec, source) in [
            (
                json!({"source": {"pvc": {"namespace": "images", "name": "debian"}}}),
                Source::Cloned(cloned(false, "images", "debian")),
            ),
            (json!({"source": {"pvc": {"name": "debian"}}}), Source::Cloned(cloned(false, "n", "debian"))),
            (
                json!({"source": {"snapshot": {"namespace": "s", "name": "x"}, "pvc": null}}),
                Source::Cloned(cloned(true, "s", "x")),
            ),
            (json!({"source": {"blank": {}}}), Source::Other),
            (json!({"source": null, "storage": {"dataSource": {"name": "x"}}}), Source::Other),
            (json!({"sourceRef": {"kind": "DataSource", "name": "debian"}}), data_source("n")),
            (
                json!({"sourceRef": {"kind": "DataSource", "namespace": "images", "name": "debian"}}),
                data_source("images"),
            ),
        ] {
            assert_eq!(Source::of(&spec, "n"), Ok(source), "{spec}");
        }
    }

    #[test]
    fn what_may_be_another_clone_is_refused() {
        let claim = json!({"namespace": "images", "name": "debian"});
        for (spec, message) in [
            (json!({"source": {}}), "spec.source: name one source"),
            (
                json!({"source": {"pvc": claim, "blank": {}}}),
                "spec.source: only one source may be given: blank, pvc",
            ),
            (
                json!({"source": {"pvc": claim, "snapshot": claim}}),
                "spec.source: only one source may be given",
            ),
            (json!({"source": {"PVC": claim}}), "spec.source: Unsupported value: \"PVC\""),
            (json!({"source": {"pvc": {"namespace": "images"}}}), "spec.source: pvc: name what is cloned"),
            (
                json!({"source": {"pvc": {"namespace": "images", "name": "../x"}}}),
                "spec.source: pvc: name what is cloned",
            ),
            (
                json!({"source": {"blank": {}}, "sourceRef": {"kind": "DataSource"}}),
                "spec.source: may not be",
            ),
            (
                json!({"sourceRef": {"kind": "datasource", "name": "debian"}}),
                "spec.sourceRef.kind: Unsupported value: \"datasource\"",
            ),
            (json!({"sourceRef": {}}), "spec.sourceRef.kind: Unsupported value: \"\""),
            (json!({"sourceRef": {"kind": "DataSource"}}), "spec.sourceRef: name a DataSource"),
        ] {
            let refused = Source::of(&spec, "n").unwrap_err().to_string();
            assert!(refused.starts_with(message), "{spec}: {refused}");
        }
    }

    #[test]
    fn a_data_source_is_replaced_by_what_it_names() {
        let key = ObjectKey::new("images", "debian");
        for (data_source, expected) in [
            (json!({"spec": {"source": {"pvc": {"name": "d"}}}}), cloned(false, "images", "d")),
            (
                json!({"spec": {"source": {"snapshot": {"namespace": "other", "name": "d"}}}}),
                cloned(true, "other", "d"),
            ),
            (
                json!({"spec": {"source": {"dataSource": {"name": "e"}}},
                    "status": {"source": {"pvc": {"namespace": "other", "name": "d"}}}}),
                cloned(false, "other", "d"),
            ),
        ] {
            let found = of_data_source(&key, &data_source).unwrap();
            assert_eq!(found, expected);
            let mut spec = json!({"sourceRef": {"kind": "DataSource", "name": "debian"}, "storage": {}});
            set(spec.as_object_mut().unwrap(), &found);
            assert_eq!(Source::of(&spec, "n"), Ok(Source::Cloned(expected)));
            assert_eq!((spec.get("sourceRef"), &spec["storage"]), (None, &json!({})));
        }
        let empty = of_data_source(&key, &json!({"spec": {"source": {}}})).unwrap_err();
        assert_eq!(empty, "DataSource images/debian names neither a PVC nor a VolumeSnapshot");
    }

    #[test]
    fn the_service_account_is_asked_for() {
        let claim = cloned(false, "images", "debian");
        assert_eq!(access_reviews(("images", "default"), &claim), None, "it is in its namespace");
        let asked = |cloned: &Cloned| json!(access_reviews(("n", "robot"), cloned).unwrap());
        let reviews = asked(&claim);
        let spec = &reviews[0][0]["spec"];
        assert_eq!(spec["user"], "system:serviceaccount:n:robot");
        let groups = ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"];
        assert_eq!(spec["groups"], json!(groups));
        let attributes = json!({"group": "cdi.kubevirt.io", "resource": "datavolumes", "subresource": "source",
            "verb": "create", "namespace": "images", "name": "debian"});
        assert_eq!(spec["resourceAttributes"], attributes);
        let resources = |reviews: &Value| -> Vec<String> {
            let lists = reviews.as_array().unwrap().iter();
            let of = |list: &Value| {
                let names = list.as_array().unwrap().iter();
                let names = names.map(|one| one["spec"]["resourceAttributes"]["resource"].as_str().unwrap());
                names.collect::<Vec<_>>().join(",")
            };
            lists.map(of).collect()
        };
        assert_eq!(resources(&reviews), ["datavolumes", "pods"]);
        assert_eq!(resources(&asked(&cloned(true, "images", "debian"))), ["datavolumes", "pods,pvcs"]);
        let denial = denial(("n", "robot"), &claim);
        let expected = "User system:serviceaccount:n:robot has insufficient permissions in clone source namespace images";
        assert!(denial.starts_with(expected), "{denial}");
    }
}
