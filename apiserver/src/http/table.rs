//! In which form objects are answered: as they are, or as the table that `kubectl get` prints.

use std::borrow::{Borrow, Cow};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::header;
use serde_json::{Map, Value, json};

use super::ApiError;
use super::query::Query;
use crate::meta;
use crate::resource::{Column, Resource};
use crate::store::Object;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Objects.
    Plain,
    /// A table, whose rows carry this much of their objects.
    Table(Include),
}

/// How much of its object a row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Form {
    /// The first form that the client accepts and that is served.
    pub(super) fn negotiate(request: &Request, query: &Query) -> Result<Self, ApiError> {
        let include = match query.include.as_deref() {
            None | Some("" | "Metadata") => Include::Metadata,
            Some("None") => Include::Nothing,
            Some("Object") => Include::Object,
            Some(other) => {
                return Err(ApiError::bad_request(format!("invalid value for includeObject: {other:?}")));
            }
        };
        let accept =
            request.headers().get(header::ACCEPT).map_or("", |value| value.to_str().unwrap_or_default());
        if accept.trim().is_empty() {
            return Ok(Self::Plain);
        }
        accept.split(',').find_map(|kind| form(kind, include)).ok_or_else(ApiError::not_acceptable)
    }
}

fn form(kind: &str, include: Include) -> Option<Form> {
    let mut parts = kind.split(';').map(str::trim);
    if !["application/json", "application/*", "*/*"].contains(&parts.next()?) {
        return None;
    }
    let parameters: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
    let parameter = |name: &str| parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    match (parameter("as"), parameter("g"), parameter("v")) {
        (None, _, _) => Some(Form::Plain),
        (Some("Table"), Some("meta.k8s.io"), Some("v1")) => Some(Form::Table(include)),
        _ => None,
    }
}

/// Objects as a table.
pub(super) fn table(
    resource: &Resource,
    objects: impl IntoIterator<Item = impl Borrow<Value>>,
    include: Include,
    list: Value,
) -> Value {
    let name = json!({"name": "Name", "type": "string", "format": "name", "priority": 0,
        "description": "Name must be unique within a namespace."});
    let head = |column: &Column| {
        // What kubectl writes the kind before.
        let format = if column.name == "Name" && column.priority == 0 { "name" } else { "" };
        json!({"name": column.name, "type": column.kind, "format": format, "priority": column.priority,
            "description": column.description})
    };
    let heads: Vec<Value> = leading(resource, name).chain(resource.columns.iter().map(head)).collect();
    let rows: Vec<Value> =
        objects.into_iter().map(|object| row(resource, object.borrow(), include)).collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list,
        "columnDefinitions": heads, "rows": rows,
    })
}

/// The name is the first column, unless the resource has a column for it.
fn leading(resource: &Resource, name: Value) -> impl Iterator<Item = Value> {
    let placed = resource.columns.iter().any(|column| column.name == "Name");
    (!placed).then_some(name).into_iter()
}

fn row(resource: &Resource, object: &Value, include: Include) -> Value {
    let name = json!(meta::text(object, "name"));
    let cells: Vec<Value> =
        leading(resource, name).chain(resource.columns.iter().map(|column| column.cell(object))).collect();
    let mut row = Map::new();
    row.insert("cells".to_owned(), json!(cells));
    let carried = match include {
        Include::Nothing => None,
        Include::Object => Some(object.clone()),
        Include::Metadata => Some(json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.get("metadata"),
        })),
    };
    row.extend(carried.map(|object| ("object".to_owned(), object)));
    Value::Object(row)
}

/// One object in the form that was asked for.
pub(super) fn shown<'o>(resource: &Resource, object: &'o Value, form: Form) -> Cow<'o, Value> {
    match form {
        Form::Plain => Cow::Borrowed(object),
        Form::Table(include) => {
            let revision = json!({ "resourceVersion": meta::text(object, "resourceVersion") });
            Cow::Owned(table(resource, [object], include, revision))
        }
    }
}

/// A stored object in the form that was asked for, as JSON.
pub(super) fn text(resource: &Resource, object: &Object, form: Form) -> Arc<str> {
    match form {
        Form::Plain => object.json(),
        Form::Table(_) => shown(resource, &object.value(), form).to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &str) -> Option<Form> {
        let request = Request::builder().header("Accept", accept).body(axum::body::Body::empty()).unwrap();
        Form::negotiate(&request, &Query::default()).ok()
    }

    #[test]
    fn the_first_form_that_is_served_is_taken() {
        let table = Some(Form::Table(Include::Metadata));
        for (accept, expected) in [
            ("", Some(Form::Plain)),
            ("*/*", Some(Form::Plain)),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", table),
            ("application/json;as=Table;g=meta.k8s.io;v=v1beta1, application/json", Some(Form::Plain)),
            ("application/vnd.kubernetes.protobuf,application/json", Some(Form::Plain)),
            ("application/json;as=Table;v=v1;g=other", None),
            ("application/vnd.kubernetes.protobuf", None),
        ] {
            assert_eq!(negotiated(accept), expected, "{accept}");
        }
    }
}
