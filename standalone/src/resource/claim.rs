//! PersistentVolumeClaims before they are stored.

use serde_json::{Value, json};
use vireo_api::spec::Bytes;
use vireo_api::v1::Quantity;
use vireo_apiserver::meta;
use vireo_apiserver::resource::Cause;
use vireo_handler::provisioner::{CLAIM_PROTECTION, CLASS};

/// Where a size is asked for.
const STORAGE: &str = "spec.resources.requests.storage";
/// Access modes with the words of `kubectl get`.
const MODES: [(&str, &str); 3] =
    [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX")];

/// How large it is to be, if that can be read.
fn requested(claim: &Value) -> Option<Bytes> {
    let given: Quantity =
        serde_json::from_value(claim.pointer("/spec/resources/requests/storage")?.clone()).ok()?;
    Bytes::try_from(&given).ok()
}

/// `Terminating` counts as a phase, as in kubectl's own tables.
pub(super) fn phase(claim: &Value) -> Value {
    if meta::is_being_deleted(claim) {
        return json!("Terminating");
    }
    claim.pointer("/status/phase").cloned().unwrap_or_default()
}

pub(super) fn modes(claim: &Value) -> Value {
    short_modes(claim.pointer("/status/accessModes"))
}

/// Access modes as one word.
pub(super) fn short_modes(given: Option<&Value>) -> Value {
    let given = given.and_then(Value::as_array);
    let short = |mode: &Value| MODES.iter().find(|(long, _)| mode == long).map(|(_, short)| *short);
    json!(given.into_iter().flatten().filter_map(short).collect::<Vec<_>>().join(","))
}

pub(super) fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    match old {
        None => {
            new["status"] = json!({"phase": "Pending"});
            let mut finalizers = meta::finalizers(new);
            if !finalizers.iter().any(|one| one == CLAIM_PROTECTION) {
                finalizers.push(CLAIM_PROTECTION.to_owned());
                meta::of(new).insert("finalizers".to_owned(), json!(finalizers));
            }
            if !new["spec"].is_object() {
                new["spec"] = json!({});
            }
            for (field, default) in [("storageClassName", CLASS), ("volumeMode", "Filesystem")] {
                if new["spec"].get(field).is_none() {
                    new["spec"][field] = json!(default);
                }
            }
            validate(new)
        }
        Some(_) => size(new).into_iter().collect(),
    }
}

fn validate(claim: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let given = claim.pointer("/spec/accessModes").and_then(Value::as_array).cloned().unwrap_or_default();
    if given.is_empty() {
        causes
            .push(Cause::required("spec.accessModes", "Required value: at least 1 access mode is required"));
    }
    for (index, mode) in
        given.iter().enumerate().filter(|(_, mode)| MODES.iter().all(|(known, _)| mode != known))
    {
        let message = format!(
            "Unsupported value: {mode}: supported values: {}",
            MODES.map(|(long, _)| long).join(", ")
        );
        causes.push(Cause::unsupported(format!("spec.accessModes[{index}]"), message));
    }
    let volume_mode = claim.pointer("/spec/volumeMode");
    if volume_mode.is_some_and(|mode| mode != "Filesystem" && mode != "Block") {
        let message = "Unsupported value: supported values: Block, Filesystem";
        causes.push(Cause::unsupported("spec.volumeMode", message));
    }
    let absent = [
        ("selector", "volumes are made with their claims, not chosen: remove it"),
        ("dataSource", "filling a disk is not available yet: remove it"),
        ("dataSourceRef", "filling a disk is not available yet: remove it"),
        ("volumeAttributesClassName", "there are no VolumeAttributesClasses: remove it"),
        ("volumeName", "volumes are made with their claims, not chosen: remove it"),
    ];
    for (field, why) in absent {
        if claim["spec"].get(field).is_some_and(|value| !value.is_null() && value != "") {
            causes.push(Cause::unsupported(format!("spec.{field}"), why));
        }
    }
    causes.extend(size(claim));
    causes
}

fn size(claim: &Value) -> Option<Cause> {
    match claim.pointer("/spec/resources/requests/storage") {
        None | Some(Value::Null) => {
            Some(Cause::required(STORAGE, "Required value: the size of the disk, such as 1Gi"))
        }
        Some(given) => match requested(claim) {
            Some(bytes) if bytes.get() > 0 => None,
            _ => Some(Cause::invalid(
                STORAGE,
                format!("Invalid value: {given}: must be a quantity greater than zero"),
            )),
        },
    }
}

/// Validates the change of a claim's spec: it may grow, and the provisioner names its volume.
pub(crate) fn validate_update(new: &Value, old: &Value, is_provisioner: bool) -> Vec<Cause> {
    let fixed = |claim: &Value| {
        let mut spec = claim.get("spec").cloned().unwrap_or_default();
        if let Some(fields) = spec.as_object_mut().filter(|_| is_provisioner) {
            fields.remove("volumeName");
        }
        if let Some(requests) = spec.pointer_mut("/resources/requests").and_then(Value::as_object_mut) {
            requests.remove("storage");
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let message =
            "Forbidden: spec is immutable after creation except resources.requests for bound claims";
        return vec![Cause { reason: "FieldValueForbidden", ..Cause::invalid("spec", message) }];
    }
    let (wants, wanted) = (requested(new), requested(old));
    if wants < wanted {
        let message = "Forbidden: field can not be less than status.capacity";
        return vec![Cause { reason: "FieldValueForbidden", ..Cause::invalid(STORAGE, message) }];
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": spec})
    }

    fn good() -> Value {
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
    }

    fn fields(change: impl FnOnce(&mut Value)) -> Vec<String> {
        let mut spec = good();
        change(&mut spec);
        admit(&mut claim(spec), None).into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn a_claim_is_completed_and_held() {
        let mut new = claim(good());
        assert_eq!(admit(&mut new, None), []);
        assert_eq!(
            (&new["spec"]["storageClassName"], &new["spec"]["volumeMode"]),
            (&json!("local"), &json!("Filesystem"))
        );
        assert_eq!(
            (&new["metadata"]["finalizers"], &new["status"]),
            (&json!([CLAIM_PROTECTION]), &json!({"phase": "Pending"}))
        );
        assert_eq!(requested(&new), Some(Bytes::mebibytes(1024)));
        new["status"]["accessModes"] = json!(["ReadWriteOnce", "ReadOnlyMany"]);
        assert_eq!((modes(&new), phase(&new)), (json!("RWO,ROX"), json!("Pending")));
        meta::of(&mut new).insert("deletionTimestamp".to_owned(), json!("2026-01-01T00:00:00Z"));
        assert_eq!(phase(&new), "Terminating");
    }

    #[test]
    fn what_cannot_be_had_is_named() {
        assert_eq!(fields(|spec| spec["accessModes"] = json!([])), ["spec.accessModes"]);
        assert_eq!(fields(|spec| spec["accessModes"] = json!(["ReadWriteOncePod"])), ["spec.accessModes[0]"]);
        assert_eq!(fields(|spec| spec["resources"] = json!({})), [STORAGE]);
        for odd in [json!("0"), json!("much"), json!(-1)] {
            assert_eq!(fields(|spec| spec["resources"]["requests"]["storage"] = odd), [STORAGE]);
        }
        assert_eq!(fields(|spec| spec["volumeMode"] = json!("Tape")), ["spec.volumeMode"]);
        assert_eq!(
            fields(|spec| spec["dataSource"] = json!({"kind": "VolumeSnapshot"})),
            ["spec.dataSource"]
        );
    }

    #[test]
    fn it_grows_and_changes_in_nothing_else() {
        let mut old = claim(good());
        admit(&mut old, None);
        let causes = |change: &dyn Fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new);
            let causes = admit(&mut new, Some(&old));
            let causes = if causes.is_empty() { validate_update(&new, &old, false) } else { causes };
            causes.into_iter().map(|cause| cause.field).collect::<Vec<_>>()
        };
        assert!(causes(&|new| new["spec"]["resources"]["requests"]["storage"] = json!("2Gi")).is_empty());
        assert!(causes(&|new| new["spec"]["resources"]["requests"]["storage"] = json!("1024Mi")).is_empty());
        assert_eq!(causes(&|new| new["spec"]["resources"]["requests"]["storage"] = json!("1Mi")), [STORAGE]);
        assert_eq!(causes(&|new| new["spec"]["resources"]["requests"]["storage"] = json!("x")), [STORAGE]);
        assert_eq!(causes(&|new| new["spec"]["storageClassName"] = json!("other")), ["spec"]);
        assert_eq!(causes(&|new| new["spec"]["volumeName"] = json!("mine")), ["spec"]);
        let mut bound = old.clone();
        bound["spec"]["volumeName"] = json!("pvc-1");
        assert_eq!(validate_update(&bound, &old, true), []);
    }
}
