//! CustomResourceDefinitions of KubeVirt's resources, for API servers that do not serve them themselves. They are made from
//! the same rows and schemas that standalone serves.

use serde_json::{Map, Value, json};
use vireo_apiserver::resource::{Resource, Source};
use vireo_apiserver::schema::Definitions;

use super::kubevirt;

/// The domain of KubeVirt's API groups.
const DOMAIN: &str = "kubevirt.io";
/// The keywords of a structural schema that take over from an OpenAPI definition as they are.
const KEYWORDS: [&str; 11] = [
    "description",
    "enum",
    "format",
    "maximum",
    "minimum",
    "pattern",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
    "x-kubernetes-preserve-unknown-fields",
];

/// The CustomResourceDefinition (`apiextensions.k8s.io/v1`) of each of KubeVirt's resources.
pub fn custom_resource_definitions() -> Vec<Value> {
    let rows = kubevirt::rows();
    let is_kubevirt =
        |group: &str| group.strip_suffix(DOMAIN).is_some_and(|of| of.is_empty() || of.ends_with('.'));
    rows.iter().filter(|row| is_kubevirt(&row.group)).map(|row| definition(row)).collect()
}

/// The CustomResourceDefinition of KubeVirt objects. It keeps settings that this release does not know, to name them.
pub fn kubevirt_definition() -> Value {
    let mut definition = definition(&kubevirt::KUBEVIRTS);
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    keep_unknown(&mut schema["properties"]["spec"]);
    definition
}

/// Has the API server keep the fields of objects that a schema does not describe.
fn keep_unknown(schema: &mut Value) {
    if let Some(items) = schema.get_mut("items") {
        keep_unknown(items);
    }
    if let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        fields.values_mut().for_each(keep_unknown);
        schema["x-kubernetes-preserve-unknown-fields"] = json!(true);
    }
}

fn definition(row: &Resource) -> Value {
    let mut names = json!({
        "plural": row.plural, "singular": row.singular, "kind": row.kind, "listKind": format!("{}List", row.kind),
    });
    for (field, list) in [("shortNames", &row.short_names), ("categories", &row.categories)] {
        if !list.is_empty() {
            names[field] = json!(list);
        }
    }
    let version = json!({
        "name": row.version, "served": true, "storage": true,
        "schema": {"openAPIV3Schema": root(row)},
        "subresources": subresources(row), "additionalPrinterColumns": columns(row),
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": row.name()},
        "spec": {
            "group": row.group, "names": names, "scope": if row.namespaced { "Namespaced" } else { "Cluster" },
            "versions": [version],
        },
    })
}

fn subresources(row: &Resource) -> Value {
    let mut subresources = Map::new();
    if row.status {
        subresources.insert("status".to_owned(), json!({}));
    }
    if let Some(scale) = &row.scale {
        let path = |pointer: &str| pointer.replace('/', ".");
        let mut paths =
            json!({"specReplicasPath": path(&scale.wanted), "statusReplicasPath": path(&scale.there)});
        if let Some(selector) = &scale.selector {
            paths["labelSelectorPath"] = json!(path(selector));
        }
        subresources.insert("scale".to_owned(), paths);
    }
    Value::Object(subresources)
}

/// The columns of `kubectl get`. Computed ones cannot be described; no resource of KubeVirt has one.
fn columns(row: &Resource) -> Vec<Value> {
    let column = |column: &vireo_apiserver::resource::Column| {
        let (Source::Path(path) | Source::Since(path)) = &column.source else { return None };
        let mut printed = json!({
            "name": column.name, "type": column.kind, "jsonPath": path, "description": column.description,
        });
        if column.priority != 0 {
            printed["priority"] = json!(column.priority);
        }
        Some(printed)
    };
    row.columns.iter().filter_map(column).collect()
}

/// The schema of whole objects. Of their metadata, the API server allows no description.
fn root(row: &Resource) -> Value {
    let definition = row.definitions.get(&row.kind).cloned().unwrap_or_default();
    let mut schema = structural(row.definitions, &definition);
    schema["type"] = json!("object");
    schema["properties"]["metadata"] = json!({"type": "object"});
    schema
}

/// A schema without references: each is replaced by the definition that it names. KubeVirt's definitions do not recur. What
/// an API server would not store, such as empty properties, is left out: `kubectl apply` would send it again every time.
fn structural(definitions: &Definitions, schema: &Value) -> Value {
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let mut target = definitions.get(name).cloned().unwrap_or_default();
        // The description of the field precedes that of its type.
        for (keyword, value) in
            schema.as_object().into_iter().flatten().filter(|(keyword, _)| *keyword != "$ref")
        {
            target[keyword.as_str()] = value.clone();
        }
        return structural(definitions, &target);
    }
    let mut result: Map<String, Value> = KEYWORDS
        .iter()
        .filter_map(|keyword| Some(((*keyword).to_owned(), schema.get(*keyword)?.clone())))
        .collect();
    if let Some(fields) =
        schema.get("properties").and_then(Value::as_object).filter(|fields| !fields.is_empty())
    {
        let fields: Map<String, Value> =
            fields.iter().map(|(name, field)| (name.clone(), structural(definitions, field))).collect();
        result.insert("properties".to_owned(), Value::Object(fields));
    } else if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        result.insert("additionalProperties".to_owned(), structural(definitions, values));
    }
    if let Some(items) = schema.get("items") {
        let mut items = structural(definitions, items);
        if let Some(keys) = schema.get("x-kubernetes-list-map-keys") {
            // The API server requires that the keys of a list's elements are required.
            items["required"] = keys.clone();
            result.insert("x-kubernetes-list-map-keys".to_owned(), keys.clone());
        }
        result.insert("items".to_owned(), items);
    }
    Value::Object(result)
}

#[cfg(test)]
mod tests {
    use vireo_apiserver::resource::{CUSTOM_RESOURCE_DEFINITIONS, served};

    use super::*;

    #[test]
    fn each_resource_has_a_definition_that_an_api_server_accepts() {
        let definitions = custom_resource_definitions();
        let names: Vec<_> =
            definitions.iter().filter_map(|one| one.pointer("/metadata/name")?.as_str()).collect();
        assert_eq!(
            names,
            [
                "virtualmachineinstances.kubevirt.io",
                "virtualmachines.kubevirt.io",
                "virtualmachineinstancereplicasets.kubevirt.io",
                "virtualmachinepools.pool.kubevirt.io",
                "virtualmachineinstancetypes.instancetype.kubevirt.io",
                "virtualmachineclusterinstancetypes.instancetype.kubevirt.io",
                "virtualmachinepreferences.instancetype.kubevirt.io",
                "virtualmachineclusterpreferences.instancetype.kubevirt.io",
            ]
        );
        for mut definition in definitions {
            let causes = (CUSTOM_RESOURCE_DEFINITIONS.admit)(&mut definition, None);
            assert_eq!(causes, [], "{}", definition["metadata"]["name"]);
            // etcd takes 1.5 MiB.
            assert!(definition.to_string().len() < 1 << 20, "{}", definition["metadata"]["name"]);
        }
    }

    #[test]
    fn kubevirt_objects_keep_settings_that_are_not_known() {
        let mut definition = kubevirt_definition();
        assert_eq!((CUSTOM_RESOURCE_DEFINITIONS.admit)(&mut definition, None), []);
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let configuration = &spec["properties"]["configuration"];
        for schema in [spec, configuration, &configuration["properties"]["developerConfiguration"]] {
            assert_eq!(schema["x-kubernetes-preserve-unknown-fields"], true, "{schema}");
        }
    }

    #[test]
    fn a_definition_matches_its_row() {
        for mut definition in custom_resource_definitions() {
            definition["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
            let served = served(&definition).unwrap();
            let rows = kubevirt::rows();
            let row = rows.iter().find(|row| row.name() == served.name()).unwrap();
            let of = |row: &Resource| {
                let columns: Vec<_> = row
                    .columns
                    .iter()
                    .map(|one| (one.name.clone(), one.kind.clone(), one.priority))
                    .collect();
                let names =
                    (row.kind.clone(), row.singular.clone(), row.short_names.clone(), row.categories.clone());
                let scale = row.scale.as_ref().map(|scale| (scale.wanted.clone(), scale.selector.clone()));
                (row.api_version(), names, row.namespaced, row.status, columns, scale)
            };
            assert_eq!(of(&served), of(row));
        }
    }

    #[test]
    fn schemas_are_whole() {
        let definitions = custom_resource_definitions();
        let schema = &definitions[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert_eq!(schema["properties"]["metadata"], json!({"type": "object"}));
        let domain = &schema["properties"]["spec"]["properties"]["domain"]["properties"];
        let memory = &domain["memory"]["properties"];
        assert_eq!(memory["guest"]["x-kubernetes-int-or-string"], true, "{memory}");
        assert_eq!(memory["hugepages"]["properties"]["pageSize"]["type"], "string", "{memory}");
        let disks = &domain["devices"]["properties"]["disks"];
        assert_eq!((&disks["type"], &disks["items"]["type"]), (&json!("array"), &json!("object")));
        assert!(!schema.to_string().contains("$ref"));
    }
}
