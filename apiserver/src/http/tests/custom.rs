//! Objects of CustomResourceDefinitions.

use super::*;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const BOXES: &str = "/apis/example.com/v1/namespaces/default/boxes";

async fn world() -> World {
    let world = World::new();
    let spec = json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"},
        "replicas": {"type": "integer"},
        "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
            "items": {"type": "object", "properties": {"id": {"type": "string"}, "n": {"type": "integer"}}}}}});
    let schema = json!({"type": "object", "properties": {"spec": spec,
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "boxes.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "boxes", "kind": "Box"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]}]}});
    let (code, made) = world.ask("POST", DEFINITIONS, definition).await;
    assert_eq!(code, 201, "{made:#}");
    assert_eq!(world.ask("GET", BOXES, Value::Null).await.0, 404, "it is not established");
    let established = json!({"status": {"conditions": [{"type": "Established", "status": "True"}]}});
    let path = format!("{DEFINITIONS}/boxes.example.com/status");
    assert_eq!(world.patch(&path, "merge", established).await.0, 200);
    world
}

fn a_box(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Box", "metadata": {"name": "a"}, "spec": spec,
        "status": {"replicas": 7}})
}

#[tokio::test]
async fn they_are_as_their_schema_has_them() {
    let world = world().await;
    let (code, refused) = world.ask("POST", BOXES, a_box(json!({"size": 0, "color": 1}))).await;
    let causes = refused["details"]["causes"].as_array().unwrap();
    let fields: Vec<&str> = causes.iter().map(|cause| cause["field"].as_str().unwrap()).collect();
    assert_eq!((code, fields), (422, vec!["spec.color", "spec.size"]));
    let strict = format!("{BOXES}?fieldValidation=Strict");
    let (code, refused) = world.ask("POST", &strict, a_box(json!({"size": 1, "odd": 1}))).await;
    assert_eq!(code, 400);
    assert!(refused["message"].as_str().unwrap().contains("unknown field \"spec.odd\""), "{refused}");
    let (code, made) = world.ask("POST", BOXES, a_box(json!({"size": 1, "odd": 1}))).await;
    assert_eq!((code, &made["spec"]), (201, &json!({"size": 1, "color": "red"})));
    assert!(made.get("status").is_none(), "{made}");
    let path = format!("{BOXES}/a");
    let (_, written) = world
        .patch(&format!("{path}/status"), "merge", json!({"status": {"replicas": 2}, "spec": {"size": 9}}))
        .await;
    assert_eq!((&written["status"]["replicas"], &written["spec"]["size"]), (&json!(2), &json!(1)));
    let (code, scale) =
        world.patch(&format!("{path}/scale"), "merge", json!({"spec": {"replicas": 3}})).await;
    assert_eq!((code, &scale["spec"]["replicas"], &scale["status"]["replicas"]), (200, &json!(3), &json!(2)));
    assert_eq!(world.patch(&path, "strategic-merge", json!({})).await.0, 415);
}

#[tokio::test]
async fn they_are_applied_by_key() {
    let world = world().await;
    let apply = async |manager: &str, spec: Value| {
        let path = format!("{BOXES}/a?fieldManager={manager}");
        let mut manifest = a_box(spec);
        manifest.as_object_mut().unwrap().remove("status");
        world.send("PATCH", &path, "application/apply-patch+yaml", manifest.to_string()).await
    };
    let (code, _) = apply("one", json!({"size": 1, "parts": [{"id": "x", "n": 1}]})).await;
    assert_eq!(code, 201);
    let (code, both) = apply("two", json!({"size": 1, "parts": [{"id": "y", "n": 2}]})).await;
    assert_eq!((code, &both["spec"]["parts"]), (200, &json!([{"id": "x", "n": 1}, {"id": "y", "n": 2}])));
    assert_eq!(apply("two", json!({"size": 2})).await.0, 409);
}

#[tokio::test]
async fn clients_find_them() {
    let world = world().await;
    let (_, resources) = world.ask("GET", "/apis/example.com/v1", Value::Null).await;
    let names: Vec<&str> =
        resources["resources"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["boxes", "boxes/status", "boxes/scale"]);
    let (_, document) = world.ask("GET", "/openapi/v3/apis/example.com/v1", Value::Null).await;
    let kind = &document["components"]["schemas"]["com.example.v1.Box"];
    assert_eq!(kind["properties"]["spec"]["properties"]["size"]["type"], "integer");
    assert_eq!(kind["x-kubernetes-group-version-kind"][0]["kind"], "Box");
    let (_, old) = world.ask("GET", "/openapi/v2", Value::Null).await;
    assert!(old["definitions"]["com.example.v1.Box"].is_object());
}

#[tokio::test]
async fn they_keep_the_rules_of_their_definition() {
    let world = world().await;
    let path = format!("{DEFINITIONS}/boxes.example.com");
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations";
    let ruled = |rule: &str| json!([{"op": "add", "path": at, "value": [{"rule": rule, "message": "no"}]}]);
    let (code, refused) = world.patch(&path, "json", ruled("self.weight > 1")).await;
    let field = "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule";
    assert_eq!((code, &refused["details"]["causes"][0]["field"]), (422, &json!(field)), "{refused}");
    let rule = "self.size < 10 && self.size >= oldSelf.size";
    assert_eq!(world.patch(&path, "json", ruled(rule)).await.0, 200);
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/x-kubernetes-validations";
    let status = json!([{"op": "add", "path": status, "value": [{"rule": "self.replicas < 5"}]}]);
    assert_eq!(world.patch(&path, "json", status).await.0, 200);

    assert_eq!(world.ask("POST", BOXES, a_box(json!({"size": 20}))).await.0, 201, "it was nothing before");
    let one = format!("{BOXES}/a");
    let (code, refused) = world.patch(&one, "merge", json!({"spec": {"size": 11}})).await;
    let message = refused["details"]["causes"][0]["message"].as_str().unwrap();
    assert_eq!((code, message), (422, "Invalid value: \"object\": no"), "{refused}");
    let mut manifest = a_box(json!({"size": 30}));
    manifest.as_object_mut().unwrap().remove("status");
    let apply = format!("{one}?fieldManager=x&force=true");
    assert_eq!(
        world.send("PATCH", &apply, "application/apply-patch+yaml", manifest.to_string()).await.0,
        422
    );
    assert_eq!(world.patch(&path, "json", json!([{"op": "remove", "path": at}])).await.0, 200);
    assert_eq!(world.patch(&one, "merge", json!({"spec": {"size": 11}})).await.0, 200);
    let status = format!("{one}/status");
    assert_eq!(world.patch(&status, "merge", json!({"status": {"replicas": 5}})).await.0, 422);
    assert_eq!(world.patch(&status, "merge", json!({"status": {"replicas": 4}})).await.0, 200);
}
