use serde_json::json;

use super::*;

fn schema() -> Value {
    json!({"type": "object", "properties": {
        "metadata": {"$ref": "ObjectMeta"},
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 1, "maximum": 9},
            "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3, "nullable": true},
            "port": {"x-kubernetes-int-or-string": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "properties": {"known": {"type": "boolean"}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "parts": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"],
                "maxItems": 2, "items": {"type": "object", "properties": {
                    "id": {"type": "string"}, "count": {"type": "integer", "default": 1}}}},
            "when": {"type": "string", "format": "date-time"},
            "either": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}}}})
}

#[test]
fn what_is_not_known_goes_and_what_is_presumed_comes() {
    let mut value = json!({"metadata": {"name": "x"}, "extra": 1, "spec": {"size": 1, "odd": {}, "name": null, "port": null,
        "free": {"known": true, "more": {"x": 1}}, "labels": {"a": "b"}, "parts": [{"id": "a", "z": 1}]}});
    let mut unknown = Vec::new();
    prune(&schema(), &mut value, "", &mut unknown);
    unknown.sort();
    assert_eq!(unknown, ["extra", "spec.odd", "spec.parts[0].z"]);
    default(&schema(), &mut value);
    assert_eq!(
        value,
        json!({"metadata": {"name": "x"}, "spec": {"size": 1, "name": null, "color": "red",
        "free": {"known": true, "more": {"x": 1}}, "labels": {"a": "b"}, "parts": [{"id": "a", "count": 1}]}})
    );
    assert_eq!(validate(&schema(), &value), []);
}

#[test]
fn each_violation_names_its_field() {
    for (spec, expected) in [
        (json!({"size": 5, "port": "http", "when": "2026-01-01T00:00:00Z"}), vec![]),
        (json!({}), vec!["spec.size"]),
        (json!({"size": 0}), vec!["spec.size"]),
        (json!({"size": 10}), vec!["spec.size"]),
        (json!({"size": "5"}), vec!["spec.size"]),
        (json!({"size": 1.5}), vec!["spec.size"]),
        (json!({"size": 5, "color": "green"}), vec!["spec.color"]),
        (json!({"size": 5, "name": "ABCD"}), vec!["spec.name", "spec.name"]),
        (json!({"size": 5, "port": 1.5}), vec!["spec.port"]),
        (json!({"size": 5, "free": {"known": "yes", "more": 1}}), vec!["spec.free.known"]),
        (json!({"size": 5, "labels": {"a": 1}}), vec!["spec.labels.a"]),
        (json!({"size": 5, "parts": [{"id": "a"}, {"id": "a"}]}), vec!["spec.parts[1]"]),
        (json!({"size": 5, "parts": [{}, {"id": "a"}, {"id": "b"}]}), vec!["spec.parts"]),
        (json!({"size": 5, "when": "soon"}), vec!["spec.when"]),
        (json!({"size": 5, "either": {}}), vec!["spec.either"]),
        (json!({"size": 5, "either": {"a": "x"}}), vec![]),
        (json!({"size": 5, "either": {"a": "x", "b": "y"}}), vec!["spec.either"]),
    ] {
        let causes = validate(&schema(), &json!({"spec": spec}));
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        assert_eq!(fields, expected, "{spec}");
    }
}
