//! Objects as a cache receives them.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::DynamicResourceScope;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// An object of any kind without its managed fields, which are as large as the rest and read by no cache. Unlike
/// `DynamicObject`, it is parsed to one tree of values and nothing else.
#[derive(Debug, Clone)]
pub(super) struct Object {
    /// The name, the version and the owners alone.
    metadata: ObjectMeta,
    /// All of it.
    pub(super) value: Value,
}

impl Object {
    /// The resource version as the number that it is.
    pub(super) fn revision(&self) -> u64 {
        let version = self.metadata.resource_version.as_ref();
        version.and_then(|version| version.parse().ok()).unwrap_or_default()
    }
}

/// The path of its resource is all that is known of its type.
impl Resource for Object {
    type DynamicType = String;
    type Scope = DynamicResourceScope;

    fn kind(_: &String) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn group(_: &String) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn version(_: &String) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn plural(_: &String) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn url_path(path: &String, _: Option<&str>) -> String {
        path.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = Fields { ignored: None, nested: Some(("metadata", "managedFields")) }
            .deserialize(deserializer)?;
        let metadata = fields.get_mut("metadata").map(read_metadata).unwrap_or_default();
        Ok(Self { metadata, value: Value::Object(fields) })
    }
}

fn read_metadata(metadata: &mut Value) -> ObjectMeta {
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).map(str::to_owned);
    ObjectMeta {
        name: text("name"),
        namespace: text("namespace"),
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        owner_references: metadata
            .get("ownerReferences")
            .and_then(|owners| Deserialize::deserialize(owners).ok()),
        ..ObjectMeta::default()
    }
}

/// Reads the fields of an object but for one, or but for one of a nested object.
#[derive(Clone, Copy)]
struct Fields {
    ignored: Option<&'static str>,
    nested: Option<(&'static str, &'static str)>,
}

impl<'de> DeserializeSeed<'de> for Fields {
    type Value = Map<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Map<String, Value>;

    fn expecting(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        form.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Self::Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            if self.ignored == Some(name.as_str()) {
                access.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = match self.nested {
                Some((nested, ignored)) if name == nested => {
                    Value::Object(access.next_value_seed(Self { ignored: Some(ignored), nested: None })?)
                }
                _ => access.next_value()?,
            };
            fields.insert(name, value);
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_but_the_managed_fields_is_read() {
        let text = r#"{"metadata": {"name": "x", "uid": "u", "resourceVersion": "7", "managedFields": [{"manager": "m"}],
            "labels": {"managedFields": "kept"}, "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "ou"}]},
            "managedFields": 1, "spec": {"metadata": {"managedFields": [2]}}}"#;
        let object: Object = serde_json::from_str(text).unwrap();
        let mut expected: Value = serde_json::from_str(text).unwrap();
        expected["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(object.value, expected);
        assert_eq!((object.revision(), object.metadata.name.as_deref()), (7, Some("x")));
        assert_eq!(object.metadata.owner_references.unwrap()[0].uid, "ou");
        let bare: Object = serde_json::from_value(json!({"kind": "K"})).unwrap();
        assert_eq!((bare.revision(), bare.value), (0, json!({"kind": "K"})));
        assert!(serde_json::from_str::<Object>("[]").is_err());
        assert!(serde_json::from_str::<Object>(r#"{"metadata": 1}"#).is_err());
    }

    #[test]
    fn its_path_is_its_type() {
        let path = "/api/v1/pods".to_owned();
        assert_eq!(Object::url_path(&path, None), path);
    }
}
