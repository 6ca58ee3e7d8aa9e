//! From text to [`v1`](crate::v1) objects, leniently: a value of a wrong type is told and left out, so that it hides no other.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};
use serde_saphyr::{Options, budget, options};

use crate::spec::{Cause, Field, Problem, Report, Vm};
use crate::v1::{Shape, VirtualMachineInstance};

/// The largest text that is read: etcd takes no larger object, and a file may hold several.
const MAX_TEXT: usize = 4 << 20;
/// Deeper nesting than any object of Kubernetes has, and little enough that what wraps and stores an object reads it
/// back: serde_json ends at 127 levels.
const MAX_DEPTH: usize = 96;
/// Values in a text, those that aliases repeat included.
const MAX_NODES: usize = 100_000;
/// Wrong types told of one object; each costs one more pass over it.
const MAX_MISTYPED: usize = 64;

/// Why a text holds no objects.
#[derive(Debug, thiserror::Error)]
pub enum SyntaxError {
    /// No YAML, or more of it than is read. The message has the line and the column.
    #[error("{0}")]
    Yaml(String),
    /// No JSON. The message has the line and the column.
    #[error("{0}")]
    Json(String),
    /// More than is read.
    #[error("the text is larger than {} MiB", MAX_TEXT >> 20)]
    TooLarge,
    /// Deeper than is read.
    #[error("objects and arrays may be nested at most {MAX_DEPTH} levels deep")]
    TooDeep,
    /// An object must be a map.
    #[error("document {0} is no object: it must have apiVersion, kind, metadata and spec")]
    NoObject(usize),
}

/// An object as far as it could be read, and what could not.
#[derive(Clone, Debug)]
pub struct Decoded<T> {
    /// The object, without the values that had the wrong type.
    pub object: T,
    mistyped: Vec<Problem>,
}

impl<T> Decoded<T> {
    /// Values of the wrong type.
    pub fn mistyped(&self) -> &[Problem] {
        &self.mistyped
    }
}

impl Decoded<VirtualMachineInstance> {
    /// What it means, or everything that is wrong with it, wrong types included. `metadata.uid` must have been set.
    pub fn check(&self) -> Result<Vm, Report> {
        Vm::read(&self.object, &self.mistyped)
    }
}

/// The objects of a YAML or JSON text: as they are, one value per document. Empty documents are skipped.
///
/// Aliases that multiply, deep nesting and huge texts are refused.
pub fn documents(text: &str) -> Result<Vec<Value>, SyntaxError> {
    if text.len() > MAX_TEXT {
        return Err(SyntaxError::TooLarge);
    }
    let values: Vec<Value> = if text.trim_start().starts_with('{') {
        // serde_json refuses nesting deeper than 128 by itself.
        let value: Value =
            serde_json::from_str(text).map_err(|error| SyntaxError::Json(error.to_string()))?;
        if depth(&value) > MAX_DEPTH {
            return Err(SyntaxError::TooDeep);
        }
        vec![value]
    } else {
        serde_saphyr::from_multiple_with_options(text, limits())
            .map_err(|error| SyntaxError::Yaml(error.to_string()))?
    };
    let values: Vec<Value> = values.into_iter().filter(|value| !value.is_null()).collect();
    match values.iter().position(|value| !value.is_object()) {
        Some(index) => Err(SyntaxError::NoObject(index + 1)),
        None => Ok(values),
    }
}

/// Objects and arrays in each other. Recurses no deeper than serde_json did.
fn depth(value: &Value) -> usize {
    let members = match value {
        Value::Array(values) => values.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + members.unwrap_or(0)
}

fn limits() -> Options {
    let mut limits = options! {
        budget: budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: MAX_TEXT,
        },
        with_snippet: false,
    };
    limits.alias_limits.max_total_replayed_events = MAX_NODES;
    limits
}

/// Reads one object, whatever of it can be read.
///
/// A value of the wrong type is recorded and left out, and the rest is read again: at most 64 times.
pub fn object<T: DeserializeOwned + Default + Shape>(mut value: Value) -> Decoded<T> {
    let mut mistyped: Vec<Problem> = Vec::new();
    // A value in a list takes up to two passes.
    for _ in 0..2 * MAX_MISTYPED {
        let error = match serde_path_to_error::deserialize::<_, T>(&value) {
            Ok(object) => return Decoded { object, mistyped },
            Err(error) => error,
        };
        let field = field(error.path());
        if mistyped.iter().all(|known| known.field() != &field) {
            mistyped.push(Problem::new(field, Cause::Invalid, message(error.inner())));
        }
        if mistyped.len() >= MAX_MISTYPED || !leave_out(&mut value, error.path()) {
            break;
        }
    }
    Decoded { object: T::default(), mistyped }
}

/// What serde says, in the words of a manifest.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(", expected struct ") {
        Some((what, _)) => format!("{what}, expected an object"),
        None => text.replace(", expected a sequence", ", expected a list"),
    }
}

/// Every virtual machine instance of a text. What is of another kind is in there, too, and refused by
/// [`Decoded::check`].
pub fn manifest(text: &str) -> Result<Vec<Decoded<VirtualMachineInstance>>, SyntaxError> {
    Ok(documents(text)?.into_iter().map(object).collect())
}

fn field(path: &Path) -> Field {
    let mut field = Field::default();
    for segment in path.iter() {
        field = match segment {
            Segment::Seq { index } => field.index(*index),
            Segment::Map { key } => field.at(key),
            Segment::Enum { variant } => field.at(variant),
            Segment::Unknown => field,
        };
    }
    field
}

/// Takes the value at `path` out: a field goes, an element of a list becomes empty, so that those after it keep their
/// places. Says whether anything changed.
fn leave_out(value: &mut Value, path: &Path) -> bool {
    let mut segments: Vec<&Segment> = path.iter().collect();
    let last = segments.pop();
    let mut parent = value;
    for segment in segments {
        let next = match segment {
            Segment::Seq { index } => parent.get_mut(*index),
            Segment::Map { key } => parent.get_mut(key.as_str()),
            Segment::Enum { .. } | Segment::Unknown => None,
        };
        match next {
            Some(next) => parent = next,
            None => return false,
        }
    }
    match last {
        Some(Segment::Map { key }) => {
            parent.as_object_mut().is_some_and(|fields| fields.remove(key.as_str()).is_some())
        }
        Some(Segment::Seq { index }) => parent.get_mut(*index).is_some_and(empty),
        Some(Segment::Enum { .. } | Segment::Unknown) | None => false,
    }
}

/// Makes an element of a list the empty object, or the empty text where that is not it.
fn empty(element: &mut Value) -> bool {
    let next = match element {
        Value::String(text) if text.is_empty() => return false,
        Value::Object(fields) if fields.is_empty() => Value::String(String::new()),
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => Value::Object(serde_json::Map::new()),
    };
    *element = next;
    true
}

#[cfg(test)]
mod tests;
