//! From text to [`v1`](crate::v1) objects, leniently: a value of a wrong type is reported and left out, so that it hides no other.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};
pub use vireo_manifest::SyntaxError;

use crate::spec::{Cause, Field, Origin, Problem, Report, Vm};
use crate::v1::{Shape, VirtualMachineInstance};

/// The largest text that is read: etcd takes no larger object, and a file may hold several.
const MAX_TEXT: usize = 4 << 20;
/// Wrong types reported of one object; each costs one more pass over it.
const MAX_MISTYPED: usize = 64;

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
        Vm::read(&self.object, &self.mistyped, Origin::Store)
    }

    /// The same of the request of a client: see [`Vm::from_request`].
    pub fn check_request(&self) -> Result<Vm, Report> {
        Vm::read(&self.object, &self.mistyped, Origin::Request)
    }
}

/// The objects of a text of at most 4 MiB: see [`vireo_manifest::documents`].
///
/// # Errors
/// When the text cannot be read.
pub fn documents(text: &str) -> Result<Vec<Value>, SyntaxError> {
    vireo_manifest::documents(text, MAX_TEXT)
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

/// A serde error, with the manifest's terms.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.split_once(", expected struct ") {
        Some((what, _)) => format!("{what}, expected an object"),
        None => text.replace(", expected a sequence", ", expected a list"),
    }
}

/// Every virtual machine instance of a text. What is of another kind is in there, too, and rejected by
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
/// paths. Returns whether anything changed.
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
