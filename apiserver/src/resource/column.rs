//! Columns of tables, as `kubectl get` shows them.

use serde_json::Value;

use super::{Text, duration};
use crate::json_path;

/// A column of a table.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its head.
    pub name: Text,
    /// `string`, `integer` or `date`.
    pub kind: Text,
    /// 0 is always shown, 1 in wide output only.
    pub priority: u8,
    /// A sentence for `columnDefinitions`.
    pub description: Text,
    /// Where it comes from.
    pub source: Source,
}

/// Where a cell comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A [path](json_path).
    Path(Text),
    /// How long ago the time at a path is.
    Since(Text),
    /// Whatever else.
    Made(fn(&Value) -> Value),
}

impl Column {
    /// A column of a kind: `string`, `integer` or `date`.
    pub fn new(name: &'static str, kind: &'static str, source: Source) -> Self {
        Self { name: name.into(), kind: kind.into(), priority: 0, description: "".into(), source }
    }

    /// A column that shows what is at a path.
    pub fn text(name: &'static str, path: &'static str) -> Self {
        Self::new(name, "string", Source::Path(path.into()))
    }

    /// The same for numbers.
    pub fn number(name: &'static str, path: &'static str) -> Self {
        Self::new(name, "integer", Source::Path(path.into()))
    }

    /// A column whose cells are computed from the object.
    pub fn computed(name: &'static str, make: fn(&Value) -> Value) -> Self {
        Self::new(name, "string", Source::Made(make))
    }

    /// How old an object is.
    pub fn age() -> Self {
        Self::new("Age", "date", Source::Since(".metadata.creationTimestamp".into()))
            .described("Time since the object was created.")
    }

    /// The same column, shown only in wide output.
    pub fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }

    /// The same column with a description.
    pub fn described(self, description: &'static str) -> Self {
        Self { description: description.into(), ..self }
    }

    /// The cell for an object.
    pub fn cell(&self, object: &Value) -> Value {
        match &self.source {
            Source::Path(at) => json_path::find(object, at).cloned().unwrap_or(Value::Null),
            Source::Since(at) => match json_path::find(object, at).and_then(Value::as_str) {
                Some(time) => Value::String(duration::since(time)),
                None => Value::Null,
            },
            Source::Made(make) => make(object),
        }
    }
}
