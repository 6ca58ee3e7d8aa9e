//! The StorageClass and PersistentVolumes before they are stored: the server makes both.

use serde_json::{Value, json};
use vireo_apiserver::meta;
use vireo_apiserver::resource::Cause;
use vireo_handler::provisioner::{CLASS, PROVISIONER};

const IS_DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// The fields of the one StorageClass.
fn fields() -> [(&'static str, Value); 4] {
    [
        ("provisioner", json!(PROVISIONER)),
        ("reclaimPolicy", json!("Delete")),
        ("volumeBindingMode", json!("Immediate")),
        ("allowVolumeExpansion", json!(true)),
    ]
}

/// Makes an object the one StorageClass; its labels and annotations of clients stay.
pub fn describe_class(class: &mut Value) {
    for (field, value) in fields() {
        class[field] = value;
    }
    meta::of(class).entry("annotations").or_insert_with(|| json!({ (IS_DEFAULT): "true" }));
}

pub(super) fn class(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    if meta::text(new, "name") != CLASS {
        let message = format!("there is one StorageClass, {CLASS:?}, and the server makes it");
        return vec![Cause::unsupported("metadata.name", message)];
    }
    let differs = |(field, value): (&'static str, Value)| {
        let message = format!("Forbidden: it is {value}");
        let cause = || Cause { reason: "FieldValueForbidden", ..Cause::invalid(field, message) };
        (new.get(field) != Some(&value)).then(cause)
    };
    let mut causes: Vec<Cause> = fields().into_iter().filter_map(differs).collect();
    for field in ["parameters", "mountOptions", "allowedTopologies"] {
        if new.get(field).is_some_and(|given| !given.is_null()) {
            causes.push(Cause::unsupported(field, "volumes are files of this node: remove it"));
        }
    }
    causes
}

/// With the word that kubectl's own tables have.
pub(super) fn class_name(class: &Value) -> Value {
    let annotation = class.get("metadata").and_then(|metadata| metadata.get("annotations")?.get(IS_DEFAULT));
    let name = meta::text(class, "name");
    json!(if annotation == Some(&json!("true")) { format!("{name} (default)") } else { name.to_owned() })
}

/// Validates a user's write of a PersistentVolume, which the provisioner makes.
pub(crate) fn validate(new: &Value, old: Option<&Value>) -> Vec<Cause> {
    let Some(old) = old else {
        let message = "volumes are made with their claims: make a PersistentVolumeClaim";
        return vec![Cause::unsupported("spec", message)];
    };
    if new.get("spec") == old.get("spec") {
        return Vec::new();
    }
    let message = "Forbidden: it follows the claim: change that";
    vec![Cause { reason: "FieldValueForbidden", ..Cause::invalid("spec", message) }]
}

pub(super) fn claimed(volume: &Value) -> Value {
    let text = |field: &str| volume.pointer(&format!("/spec/claimRef/{field}")).and_then(Value::as_str);
    json!(format!("{}/{}", text("namespace").unwrap_or_default(), text("name").unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_class_and_it_stays_as_it_is() {
        let mut class = json!({"metadata": {"name": CLASS}});
        describe_class(&mut class);
        assert_eq!(super::class(&mut class, None), []);
        assert_eq!(class_name(&class), "local (default)");
        let causes = |change: &dyn Fn(&mut Value)| {
            let mut other = class.clone();
            change(&mut other);
            super::class(&mut other, Some(&class)).into_iter().map(|cause| cause.field).collect::<Vec<_>>()
        };
        assert_eq!(causes(&|class| class["metadata"]["name"] = json!("fast")), ["metadata.name"]);
        assert_eq!(causes(&|class| class["reclaimPolicy"] = json!("Retain")), ["reclaimPolicy"]);
        assert_eq!(causes(&|class| class["parameters"] = json!({"a": "b"})), ["parameters"]);
        assert!(causes(&|class| class["metadata"]["annotations"] = json!({})).is_empty());
        class["metadata"]["annotations"] = json!({});
        describe_class(&mut class);
        assert_eq!(class_name(&class), "local", "set values stay");
    }

    #[test]
    fn a_volume_is_made_with_its_claim() {
        let mut made =
            json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "n", "name": "c"}}});
        assert_eq!(validate(&made, None)[0].field, "spec");
        let old = made.clone();
        made["metadata"]["labels"] = json!({"a": "b"});
        assert_eq!(validate(&made, Some(&old)), []);
        made["spec"]["capacity"] = json!({"storage": "1Ti"});
        assert_eq!(validate(&made, Some(&old))[0].field, "spec");
        assert_eq!(claimed(&old), "n/c");
    }
}
