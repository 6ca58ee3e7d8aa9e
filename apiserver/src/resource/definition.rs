//! CustomResourceDefinitions before they are stored, and what they make of the table.

mod shape;

use serde_json::{Value, json};

use super::KUBERNETES;
use super::{Cause, Column, Custom, Registry, Resource, Scale, Source, Text};
use crate::meta::{self, CLEANUP, is_dns_label, is_dns_name};

const VERSIONS: &str = "spec.versions";

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is(value: &Value, field: &str) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn texts(value: &Value, pointer: &str) -> Vec<Text> {
    list(value, pointer).iter().filter_map(|word| Some(Text::from(word.as_str()?.to_owned()))).collect()
}

/// The version that is stored, and served.
fn stored(definition: &Value) -> Option<&Value> {
    list(definition, "/spec/versions").iter().find(|version| is(version, "storage"))
}

pub(super) fn admit(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    if old.is_none() {
        new["status"] =
            json!({"conditions": [], "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": []});
        let mut finalizers = meta::finalizers(new);
        if !finalizers.iter().any(|one| one == CLEANUP) {
            finalizers.push(CLEANUP.to_owned());
            meta::of(new).insert("finalizers".to_owned(), json!(finalizers));
        }
    }
    let kind = text(new, "/spec/names/kind").to_owned();
    if new.pointer("/spec/names").is_some_and(Value::is_object) {
        for (field, presumed) in [("singular", kind.to_lowercase()), ("listKind", format!("{kind}List"))] {
            if text(new, &format!("/spec/names/{field}")).is_empty() {
                new["spec"]["names"][field] = json!(presumed);
            }
        }
        if new["spec"].get("conversion").is_none() {
            new["spec"]["conversion"] = json!({"strategy": "None"});
        }
    }
    let mut causes = names(new);
    causes.extend(versions(new));
    if let Some(old) = old {
        causes.extend(fixed(new, old));
    }
    causes
}

fn names(new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let (group, plural, kind) =
        (text(new, "/spec/group"), text(new, "/spec/names/plural"), text(new, "/spec/names/kind"));
    if !is_dns_name(group) || !group.contains('.') {
        causes.push(Cause::invalid(
            "spec.group",
            format!("Invalid value: {group:?}: should be a domain with at least one dot"),
        ));
    }
    if !is_dns_label(plural) {
        causes.push(Cause::invalid(
            "spec.names.plural",
            format!("Invalid value: {plural:?}: must be a DNS label"),
        ));
    }
    if !is_dns_label(&kind.to_lowercase()) {
        causes.push(Cause::invalid(
            "spec.names.kind",
            format!("Invalid value: {kind:?}: must be a DNS label in mixed case"),
        ));
    }
    let wanted = format!("{plural}.{group}");
    if meta::text(new, "name") != wanted {
        causes.push(Cause::invalid(
            "metadata.name",
            format!("Invalid value: must be spec.names.plural+\".\"+spec.group: {wanted}"),
        ));
    }
    if !["Namespaced", "Cluster"].contains(&text(new, "/spec/scope")) {
        causes.push(Cause::unsupported(
            "spec.scope",
            "Unsupported value: supported values: \"Cluster\", \"Namespaced\"",
        ));
    }
    let strategy = text(new, "/spec/conversion/strategy");
    if !["", "None"].contains(&strategy) {
        causes.push(Cause::unsupported("spec.conversion.strategy", "only None is available"));
    }
    if new.pointer("/spec/preserveUnknownFields") == Some(&json!(true)) {
        let message =
            "Invalid value: true: must be false: use x-kubernetes-preserve-unknown-fields in the schema";
        causes.push(Cause::invalid("spec.preserveUnknownFields", message));
    }
    causes
}

/// What a definition is refused for if the server has its kind itself.
pub fn taken(registry: &Registry, definition: &Value) -> Option<Cause> {
    let (group, plural, kind) = (
        text(definition, "/spec/group"),
        text(definition, "/spec/names/plural"),
        text(definition, "/spec/names/kind"),
    );
    let mut rows = registry.all();
    let message = "Forbidden: the server has this kind itself";
    rows.any(|row| row.group == group && (row.plural == plural || row.kind == kind))
        .then(|| Cause::forbidden("spec.names", message))
}

fn versions(new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let all = list(new, "/spec/versions");
    if all.iter().filter(|version| is(version, "storage")).count() != 1 {
        causes.push(Cause::invalid(
            VERSIONS,
            "Invalid value: must have exactly one version marked as storage version",
        ));
    }
    for (index, version) in all.iter().enumerate() {
        let at = format!("{VERSIONS}[{index}]");
        if !is_dns_label(text(version, "/name")) {
            causes.push(Cause::invalid(format!("{at}.name"), "Invalid value: must be a DNS label"));
        }
        if is(version, "served") != is(version, "storage") {
            let message = "exactly the version that is stored can be served: set served as storage is";
            causes.push(Cause::unsupported(format!("{at}.served"), message));
        }
        if !list(version, "/selectableFields").is_empty() {
            causes.push(Cause::unsupported(
                format!("{at}.selectableFields"),
                "is not available yet: remove it",
            ));
        }
        let below = format!("{at}.schema.openAPIV3Schema");
        match version.pointer("/schema/openAPIV3Schema") {
            None => causes.push(Cause::required(below, "Required value: schemas are required")),
            Some(schema) => causes.extend(shape::check(schema, &below)),
        }
        for (field, pointer) in [("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")] {
            let given = version.pointer("/subresources/scale").map(|scale| text(scale, &format!("/{field}")));
            if given.is_some_and(|given| !given.starts_with(pointer) || given.contains('[')) {
                let message = format!("Invalid value: should be a json path under {pointer}");
                causes.push(Cause::invalid(format!("{at}.subresources.scale.{field}"), message));
            }
        }
        for (index, column) in list(version, "/additionalPrinterColumns").iter().enumerate() {
            let at = format!("{at}.additionalPrinterColumns[{index}]");
            if !["integer", "number", "string", "boolean", "date"].contains(&text(column, "/type")) {
                let message = format!(
                    "Unsupported value: {:?}: supported values: \"boolean\", \"date\", \"integer\", \"number\", \"string\"",
                    text(column, "/type")
                );
                causes.push(Cause::unsupported(format!("{at}.type"), message));
            }
            for field in ["name", "jsonPath"] {
                if text(column, &format!("/{field}")).is_empty() {
                    causes.push(Cause::required(format!("{at}.{field}"), "Required value"));
                }
            }
        }
    }
    causes
}

/// What names the objects that there are does not change.
fn fixed(new: &Value, old: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    for pointer in ["/spec/group", "/spec/scope", "/spec/names/plural", "/spec/names/kind"] {
        if new.pointer(pointer) != old.pointer(pointer) {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            causes.push(Cause::invalid(field, "Invalid value: field is immutable"));
        }
    }
    let name = |definition| stored(definition).map(|version| text(version, "/name").to_owned());
    if name(new) != name(old) {
        causes.push(Cause::unsupported(VERSIONS, "storing another version than before is not available yet"));
    }
    causes
}

/// The row that a definition adds, once it is established.
pub fn served(definition: &Value) -> Option<Resource> {
    let holds = |condition: &&Value| {
        text(condition, "/type") == "Established" && text(condition, "/status") == "True"
    };
    list(definition, "/status/conditions").iter().find(holds)?;
    let version = stored(definition)?;
    let owned = |pointer: &str| Text::from(text(definition, pointer).to_owned());
    let mut schema = version.pointer("/schema/openAPIV3Schema")?.clone();
    // A later release may have let in what this one would not.
    let fields = schema.as_object_mut()?.entry("properties").or_insert_with(|| json!({})).as_object_mut()?;
    for (name, of) in [
        ("apiVersion", json!({"type": "string"})),
        ("kind", json!({"type": "string"})),
        ("metadata", json!({"$ref": "ObjectMeta"})),
    ] {
        fields.insert(name.to_owned(), of);
    }
    Some(Resource {
        group: owned("/spec/group"),
        version: text(version, "/name").to_owned().into(),
        plural: owned("/spec/names/plural"),
        singular: owned("/spec/names/singular"),
        kind: owned("/spec/names/kind"),
        short_names: texts(definition, "/spec/names/shortNames"),
        categories: texts(definition, "/spec/names/categories"),
        namespaced: text(definition, "/spec/scope") == "Namespaced",
        status: version.pointer("/subresources/status").is_some_and(Value::is_object),
        columns: columns(version),
        fields: Vec::new(),
        merge: None,
        definitions: &KUBERNETES,
        admit: of_custom,
        grace: None,
        name_fits: is_dns_name,
        scale: version.pointer("/subresources/scale").map(scale),
        custom: Some(Custom::of(schema)),
    })
}

/// Its schema is looked at elsewhere.
fn of_custom(_: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    Vec::new()
}

fn columns(version: &Value) -> Vec<Column> {
    let column = |given: &Value| {
        let path: Text = text(given, "/jsonPath").to_owned().into();
        let kind = text(given, "/type");
        Column {
            name: text(given, "/name").to_owned().into(),
            kind: kind.to_owned().into(),
            priority: given
                .get("priority")
                .and_then(Value::as_u64)
                .map_or(0, |priority| u8::from(priority > 0)),
            description: text(given, "/description").to_owned().into(),
            source: if kind == "date" { Source::Since(path) } else { Source::Path(path) },
        }
    };
    let given: Vec<Column> = list(version, "/additionalPrinterColumns").iter().map(column).collect();
    if given.is_empty() { vec![Column::age()] } else { given }
}

fn scale(given: &Value) -> Scale {
    let pointer = |field: &str| text(given, &format!("/{field}")).replace('.', "/");
    let selector = pointer("labelSelectorPath");
    Scale {
        wanted: pointer("specReplicasPath").into(),
        there: pointer("statusReplicasPath").into(),
        selector: (!selector.is_empty()).then(|| selector.into()),
    }
}

#[cfg(test)]
mod tests;
