//! Objects from YAML, within limits.

use serde_json::Value;
use serde_saphyr::{Options, budget, options};

use super::body::LIMIT;

/// Deeper nesting than any object of Kubernetes has, and little enough that what wraps and stores an object reads it
/// back: serde_json ends at 127 levels.
const MAX_DEPTH: usize = 96;
/// Values in a text, those that aliases repeat included.
const MAX_NODES: usize = 100_000;

/// Why a text holds no objects.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyntaxError {
    /// No YAML, or more of it than is read. The message has the line and the column.
    #[error("{0}")]
    Yaml(String),
    /// No JSON. The message has the line and the column.
    #[error("{0}")]
    Json(String),
    /// Deeper than is read.
    #[error("objects and arrays may be nested at most {MAX_DEPTH} levels deep")]
    TooDeep,
    /// An object must be a map.
    #[error("document {0} is no object: it must have apiVersion, kind, metadata and spec")]
    NoObject(usize),
}

/// The objects of a YAML or JSON text: as they are, one value per document. Empty documents are skipped.
///
/// Aliases that multiply, deep nesting and huge texts are refused.
pub(super) fn documents(text: &str) -> Result<Vec<Value>, SyntaxError> {
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
            max_total_scalar_bytes: LIMIT,
        },
        with_snippet: false,
    };
    limits.alias_limits.max_total_replayed_events = MAX_NODES;
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_objects_within_limits() {
        assert_eq!(documents("a: 1\n---\n---\nb: 2\n").unwrap().len(), 2);
        assert_eq!(documents("{\"a\": 1}").unwrap().len(), 1);
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(documents(&nested(MAX_DEPTH - 1)).is_ok());
        assert!(matches!(documents(&nested(MAX_DEPTH)), Err(SyntaxError::TooDeep)));
        assert!(matches!(documents("- 1"), Err(SyntaxError::NoObject(1))));
        let bomb: String = (1..20).map(|n| format!("x{n}: &x{n} [*x{0}, *x{0}, *x{0}]\n", n - 1)).collect();
        assert!(documents(&format!("x0: &x0 1\n{bomb}")).is_err());
    }
}
