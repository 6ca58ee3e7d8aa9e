//! OpenAPI 2 as protobuf: the parts of gnostic's `OpenAPIv2.proto` that our document has.

use prost::Message;
use serde_json::Value;

#[derive(Clone, PartialEq, Message)]
struct Document {
    #[prost(string, tag = "1")]
    swagger: String,
    #[prost(message, optional, tag = "2")]
    info: Option<Info>,
    #[prost(message, optional, tag = "8")]
    paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    definitions: Option<Schemas>,
}

#[derive(Clone, PartialEq, Message)]
struct Info {
    #[prost(string, tag = "1")]
    title: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Paths {
    #[prost(message, repeated, tag = "2")]
    path: Vec<NamedPath>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedPath {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<PathItem>,
}

#[derive(Clone, PartialEq, Message)]
struct PathItem {
    #[prost(message, optional, tag = "4")]
    post: Option<Operation>,
    #[prost(message, optional, tag = "8")]
    patch: Option<Operation>,
}

#[derive(Clone, PartialEq, Message)]
struct Operation {
    #[prost(string, tag = "5")]
    operation_id: String,
    #[prost(message, repeated, tag = "8")]
    parameters: Vec<ParametersItem>,
    #[prost(message, optional, tag = "9")]
    responses: Option<Responses>,
    #[prost(message, repeated, tag = "13")]
    extensions: Vec<NamedAny>,
}

/// One of a parameter and a reference; ours are parameters.
#[derive(Clone, PartialEq, Message)]
struct ParametersItem {
    #[prost(message, optional, tag = "1")]
    parameter: Option<Parameter>,
}

/// One of a body and something else; ours are something else.
#[derive(Clone, PartialEq, Message)]
struct Parameter {
    #[prost(message, optional, tag = "2")]
    beside_the_body: Option<NonBodyParameter>,
}

/// One of four locations; ours are in the query.
#[derive(Clone, PartialEq, Message)]
struct NonBodyParameter {
    #[prost(message, optional, tag = "3")]
    query: Option<QueryParameter>,
}

#[derive(Clone, PartialEq, Message)]
struct QueryParameter {
    #[prost(string, tag = "2")]
    location: String,
    #[prost(string, tag = "4")]
    name: String,
    #[prost(string, tag = "6")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct Responses {
    #[prost(message, repeated, tag = "1")]
    codes: Vec<NamedResponse>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedResponse {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<ResponseValue>,
}

/// One of a response and a reference; ours are responses.
#[derive(Clone, PartialEq, Message)]
struct ResponseValue {
    #[prost(message, optional, tag = "1")]
    response: Option<Response>,
}

#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(string, tag = "1")]
    description: String,
}

#[derive(Clone, PartialEq, Message)]
struct Schemas {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<NamedSchema>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedSchema {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct Schema {
    #[prost(string, tag = "1")]
    reference: String,
    #[prost(string, tag = "2")]
    format: String,
    #[prost(string, tag = "4")]
    description: String,
    #[prost(message, optional, boxed, tag = "21")]
    additional: Option<Box<AdditionalProperties>>,
    #[prost(message, optional, tag = "22")]
    kind: Option<Words>,
    #[prost(message, optional, tag = "23")]
    items: Option<Items>,
    #[prost(message, optional, tag = "25")]
    properties: Option<Schemas>,
    #[prost(message, repeated, tag = "31")]
    extensions: Vec<NamedAny>,
}

/// One of a schema and a boolean; ours are schemas.
#[derive(Clone, PartialEq, Message)]
struct AdditionalProperties {
    #[prost(message, optional, boxed, tag = "1")]
    schema: Option<Box<Schema>>,
}

#[derive(Clone, PartialEq, Message)]
struct Words {
    #[prost(string, repeated, tag = "1")]
    value: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Items {
    #[prost(message, repeated, tag = "1")]
    schema: Vec<Schema>,
}

#[derive(Clone, PartialEq, Message)]
struct NamedAny {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Any>,
}

/// Anything, as YAML; JSON is YAML.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "2")]
    yaml: String,
}

/// Writes a document.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let paths = entries(document, "paths", |name, value| NamedPath {
        name,
        value: Some(PathItem {
            post: value.get("post").map(operation),
            patch: value.get("patch").map(operation),
        }),
    });
    Document {
        swagger: text(document, "swagger"),
        info: document
            .get("info")
            .map(|info| Info { title: text(info, "title"), version: text(info, "version") }),
        paths: Some(Paths { path: paths }),
        definitions: Some(Schemas { entries: entries(document, "definitions", named_schema) }),
    }
    .encode_to_vec()
}

fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn entries<T>(value: &Value, field: &str, make: impl Fn(String, &Value) -> T) -> Vec<T> {
    let fields = value.get(field).and_then(Value::as_object).into_iter().flatten();
    fields.map(|(name, value)| make(name.clone(), value)).collect()
}

fn operation(value: &Value) -> Operation {
    let parameter = |value: &Value| {
        let query = QueryParameter {
            location: text(value, "in"),
            name: text(value, "name"),
            kind: text(value, "type"),
        };
        let beside_the_body = Some(NonBodyParameter { query: Some(query) });
        ParametersItem { parameter: Some(Parameter { beside_the_body }) }
    };
    let response = |name, value: &Value| {
        let response = Some(Response { description: text(value, "description") });
        NamedResponse { name, value: Some(ResponseValue { response }) }
    };
    Operation {
        operation_id: text(value, "operationId"),
        parameters: value
            .get("parameters")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(parameter)
            .collect(),
        responses: Some(Responses { codes: entries(value, "responses", response) }),
        extensions: extensions(value),
    }
}

fn named_schema(name: String, value: &Value) -> NamedSchema {
    NamedSchema { name, value: Some(schema(value)) }
}

fn schema(value: &Value) -> Schema {
    let additional = value.get("additionalProperties");
    let additional = additional.map(|value| AdditionalProperties { schema: Some(Box::new(schema(value))) });
    Schema {
        reference: text(value, "$ref"),
        format: text(value, "format"),
        description: text(value, "description"),
        additional: additional.map(Box::new),
        kind: value.get("type").and_then(Value::as_str).map(|kind| Words { value: vec![kind.to_owned()] }),
        items: value.get("items").map(|items| Items { schema: vec![schema(items)] }),
        properties: value
            .get("properties")
            .map(|_| Schemas { entries: entries(value, "properties", named_schema) }),
        extensions: extensions(value),
    }
}

fn extensions(value: &Value) -> Vec<NamedAny> {
    let fields = value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-"));
    fields
        .map(|(name, value)| NamedAny { name: name.clone(), value: Some(Any { yaml: value.to_string() }) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_reads_back() {
        let document = json!({"swagger": "2.0", "info": {"title": "t", "version": "1"},
            "paths": {"/x": {"patch": {"operationId": "p", "x-kubernetes-action": "patch",
                "parameters": [{"name": "dryRun", "in": "query", "type": "string"}], "responses": {"200": {"description": "OK"}}}}},
            "definitions": {"a": {"type": "object", "properties": {"b": {"$ref": "#/definitions/a"},
                "c": {"type": "array", "items": {"type": "string"}},
                "d": {"type": "object", "additionalProperties": {"type": "integer", "format": "int64"}}}}}});
        let read = Document::decode(encode(&document).as_slice()).unwrap();
        let a = read.definitions.unwrap().entries.remove(0).value.unwrap();
        let fields = a.properties.unwrap().entries;
        assert_eq!(fields[0].value.as_ref().unwrap().reference, "#/definitions/a");
        assert_eq!(
            fields[1].value.as_ref().unwrap().items.as_ref().unwrap().schema[0].kind.as_ref().unwrap().value,
            ["string"]
        );
        let values = fields[2].value.as_ref().unwrap().additional.as_ref().unwrap().schema.as_ref().unwrap();
        assert_eq!(values.format, "int64");
        let patch = read.paths.unwrap().path.remove(0).value.unwrap().patch.unwrap();
        assert_eq!(patch.extensions[0].value.as_ref().unwrap().yaml, "\"patch\"");
    }
}
