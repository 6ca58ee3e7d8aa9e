use super::*;

fn definition() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boxes.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "boxes", "kind": "Box", "shortNames": ["bx"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.replicas"}]}]}})
}

fn fields(change: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut new = definition();
    change(&mut new);
    admit(&mut new, None).into_iter().map(|cause| cause.field).collect()
}

#[test]
fn a_definition_is_completed_and_makes_a_row() {
    let mut new = definition();
    assert_eq!(admit(&mut new, None), []);
    assert_eq!(new["spec"]["names"]["singular"], "box");
    assert_eq!(
        (&new["spec"]["names"]["listKind"], meta::finalizers(&new)),
        (&json!("BoxList"), vec![CLEANUP.to_owned()])
    );
    assert!(served(&new).is_none(), "it is not established");
    new["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let row = served(&new).unwrap();
    assert_eq!((row.name().as_str(), row.api_version().as_str()), ("boxes.example.com", "example.com/v1"));
    assert!(row.namespaced && row.status && row.columns.len() == 1 && row.short_names == ["bx"]);
    assert_eq!(row.scale.as_ref().map(|scale| &*scale.wanted), Some("/spec/replicas"));
    assert_eq!(row.custom.unwrap().schema["properties"]["metadata"]["$ref"], "ObjectMeta");
    new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = json!("x");
    assert!(served(&new).is_none(), "what makes no sense is not served");
}

#[test]
fn what_would_not_be_heeded_is_refused() {
    let at = "spec.versions[0].schema.openAPIV3Schema";
    let schema = |new: &mut Value, schema: Value| {
        new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema;
    };
    let below = |field: &str| vec![format!("{at}.properties[spec]{field}")];
    assert_eq!(fields(|new| new["metadata"]["name"] = json!("x")), ["metadata.name"]);
    assert_eq!(fields(|new| new["spec"]["scope"] = json!("World")), ["spec.scope"]);
    assert_eq!(
        fields(|new| new["spec"]["versions"][0]["served"] = json!(false)),
        ["spec.versions[0].served"]
    );
    assert_eq!(
        fields(|new| new["spec"]["conversion"] = json!({"strategy": "Webhook"})),
        ["spec.conversion.strategy"]
    );
    assert_eq!(fields(|new| schema(new, json!({}))), below(".type"));
    assert_eq!(fields(|new| schema(new, json!({"type": "array"}))), below(".items"));
    assert_eq!(fields(|new| schema(new, json!({"type": "string", "pattern": "("}))), below(".pattern"));
    assert_eq!(fields(|new| schema(new, json!({"type": "string", "default": 1}))), below(".default"));
    assert_eq!(fields(|new| schema(new, json!({"type": "string", "$ref": "x"}))), below(".$ref"));
    assert_eq!(fields(|new| schema(new, json!({"type": "object", "properties": 5}))), below(".properties"));
    assert_eq!(fields(|new| schema(new, json!({"type": "object", "required": "a"}))), below(".required"));
    let root =
        |new: &mut Value| new["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] = json!("x");
    assert_eq!(fields(root), [format!("{at}.properties")]);
    let rules = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.a > 1"}]});
    assert_eq!(fields(|new| schema(new, rules)), below(".x-kubernetes-validations[0].rule"));
    let keyless = json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]});
    assert_eq!(fields(|new| schema(new, keyless)), below(".x-kubernetes-list-map-keys"));
    let junction = json!({"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}, {"properties": {"a": {"minLength": 1}}}]});
    assert!(fields(|new| schema(new, junction)).is_empty());
}

#[test]
fn what_the_server_has_itself_is_taken() {
    let registry = Registry::default();
    let named = |group: &str, plural: &str, kind: &str| {
        taken(&registry, &json!({"spec": {"group": group, "names": {"plural": plural, "kind": kind}}}))
            .map(|cause| cause.field)
    };
    let names = Some("spec.names".to_owned());
    assert_eq!(named("coordination.k8s.io", "leases", "Other"), names);
    assert_eq!(named("coordination.k8s.io", "others", "Lease"), names);
    assert_eq!(named("example.com", "leases", "Lease"), None);
}

#[test]
fn what_names_its_objects_stays() {
    let mut old = definition();
    admit(&mut old, None);
    let mut new = old.clone();
    new["spec"]["scope"] = json!("Cluster");
    new["spec"]["versions"][0]["name"] = json!("v2");
    let fields: Vec<String> = admit(&mut new, Some(&old)).into_iter().map(|cause| cause.field).collect();
    assert_eq!(fields, ["spec.scope", "spec.versions"]);
}
