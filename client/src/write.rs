//! Writes for one version of an object, which fail if another client has changed it since.

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::core::Status;
use kube::{Api, Error};
use serde::Serialize;
use serde_json::{Map, Value, json};
use vireo_api::v1::ObjectMeta;

/// The JSON merge patch (RFC 7386) that makes `after` of `before`; absent when they are equal. Lists are replaced whole.
pub fn merge_diff(before: &Value, after: &Value) -> Option<Value> {
    if before == after {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (before, after) else { return Some(after.clone()) };
    let mut patch = Map::new();
    for (field, value) in after {
        match before.get(field) {
            Some(was) => drop(merge_diff(was, value).map(|change| patch.insert(field.clone(), change))),
            None => drop(patch.insert(field.clone(), value.clone())),
        }
    }
    for field in before.keys().filter(|field| !after.contains_key(*field)) {
        patch.insert(field.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

/// The version of an object that a write is for. The write fails with a conflict (409) when there is another.
#[derive(Debug, Clone, Copy)]
pub struct Version<'a> {
    /// Name.
    pub name: &'a str,
    /// UID.
    pub uid: &'a str,
    /// Resource version; where it is empty, any version of the object of this UID.
    pub resource_version: &'a str,
}

impl<'a> From<&'a ObjectMeta> for Version<'a> {
    fn from(metadata: &'a ObjectMeta) -> Self {
        let ObjectMeta { name, uid, resource_version, .. } = metadata;
        Self { name, uid, resource_version }
    }
}

impl Version<'_> {
    /// The patch with the metadata of this precondition.
    fn with_precondition(self, mut patch: Value) -> Value {
        if !patch["metadata"].is_object() {
            patch["metadata"] = json!({});
        }
        patch["metadata"]["uid"] = json!(self.uid);
        if !self.resource_version.is_empty() {
            patch["metadata"]["resourceVersion"] = json!(self.resource_version);
        }
        patch
    }
}

/// Applies a JSON merge patch to this version of an object.
///
/// # Errors
/// As the API server answers, and when it does not.
pub async fn patch(
    api: &Api<DynamicObject>,
    version: Version<'_>,
    patch: Value,
) -> Result<DynamicObject, Error> {
    let patch = Patch::Merge(version.with_precondition(patch));
    api.patch(version.name, &PatchParams::default(), &patch).await
}

/// Has the API server validate a JSON merge patch of this version of an object without storing it. What it would be.
///
/// # Errors
/// As the API server answers, and when it does not.
pub async fn dry_run(
    api: &Api<DynamicObject>,
    version: Version<'_>,
    patch: Value,
) -> Result<DynamicObject, Error> {
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    api.patch(version.name, &params, &Patch::Merge(version.with_precondition(patch))).await
}

/// Writes the difference of two statuses to this version of an object; nothing where there is none.
///
/// # Errors
/// As the API server answers, and when it does not.
pub async fn patch_status(
    api: &Api<DynamicObject>,
    version: Version<'_>,
    before: &Value,
    after: &Value,
) -> Result<Option<DynamicObject>, Error> {
    let Some(change) = merge_diff(before, after) else { return Ok(None) };
    let patch = Patch::Merge(version.with_precondition(json!({ "status": change })));
    api.patch_status(version.name, &PatchParams::default(), &patch).await.map(Some)
}

/// Writes the difference of two statuses of one type to this version of an object; nothing where they are equal.
///
/// # Errors
/// As the API server answers, and when it does not.
pub async fn change_status<T: Serialize + PartialEq>(
    api: &Api<DynamicObject>,
    version: Version<'_>,
    before: &T,
    after: &T,
) -> Result<Option<DynamicObject>, Error> {
    // Most reconciles change nothing.
    if before == after {
        return Ok(None);
    }
    let value = |status| serde_json::to_value(status).map_err(Error::SerdeError);
    patch_status(api, version, &value(before)?, &value(after)?).await
}

/// Deletes the object of this name if it still has this UID. What it is now, if finalizers keep it. An object that is gone
/// already is deleted.
///
/// # Errors
/// As the API server answers, and when it does not.
pub async fn delete(api: &Api<DynamicObject>, name: &str, uid: &str) -> Result<Option<DynamicObject>, Error> {
    let same = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    match api.delete(name, &DeleteParams::default().preconditions(same)).await {
        Ok(deleted) => Ok(deleted.left()),
        Err(Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The API server's answer, if it refused the request itself: an answer of 4xx that no other attempt changes, unlike a
/// conflict or too many requests.
pub fn rejection(error: &Error) -> Option<&Status> {
    match error {
        Error::Api(status) if (400..500).contains(&status.code) && ![409, 429].contains(&status.code) => {
            Some(status)
        }
        _ => None,
    }
}

/// Whether an object cannot be created as there is one of its name. Other conflicts of a creation pass, such as that of a
/// ResourceQuota which another request changes.
pub fn already_exists(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.reason == "AlreadyExists")
}

/// Whether an object was changed meanwhile.
pub fn is_conflict(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 409)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_conflict_is_an_object_that_exists() {
        let error = |reason: &str| {
            let status = json!({"status": "Failure", "code": 409, "reason": reason, "message": "m"});
            Error::Api(Box::new(serde_json::from_value(status).unwrap()))
        };
        assert!(already_exists(&error("AlreadyExists")));
        let quota = error("Conflict");
        assert!(!already_exists(&quota) && is_conflict(&quota) && rejection(&quota).is_none());
    }

    #[test]
    fn a_difference_is_what_changed() {
        for (before, after, patch) in [
            (json!({"a": 1}), json!({"a": 1}), None),
            (
                json!({"a": 1, "b": {"c": 1, "d": 2}}),
                json!({"a": 1, "b": {"c": 3, "d": 2}}),
                Some(json!({"b": {"c": 3}})),
            ),
            (json!({"a": 1, "b": 2}), json!({"b": 2}), Some(json!({"a": null}))),
            (json!({"list": [1, 2]}), json!({"list": [1, 3]}), Some(json!({"list": [1, 3]}))),
            (json!({"a": {"b": 1}}), json!({"a": 2}), Some(json!({"a": 2}))),
            (json!(null), json!({"phase": "Running"}), Some(json!({"phase": "Running"}))),
        ] {
            assert_eq!(merge_diff(&before, &after), patch, "{before} {after}");
        }
    }

    #[test]
    fn a_write_has_the_precondition_of_its_version() {
        let version = Version { name: "x", uid: "u", resource_version: "7" };
        let patch = version.with_precondition(json!({"metadata": {"labels": {"a": "b"}}}));
        assert_eq!(patch, json!({"metadata": {"labels": {"a": "b"}, "uid": "u", "resourceVersion": "7"}}));
        let any = Version { resource_version: "", ..version };
        assert_eq!(any.with_precondition(json!({"spec": {}})), json!({"metadata": {"uid": "u"}, "spec": {}}));
    }
}
