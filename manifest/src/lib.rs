//! Objects from YAML and JSON texts, within limits: texts come from users and clients.

use serde_json::Value;
use serde_saphyr::{Options, budget, options};

/// Deeper nesting than any object of Kubernetes has, and little enough that what wraps and stores an object reads it
/// back: serde_json ends at 127 levels.
const MAX_DEPTH: usize = 96;
/// Values in a text, those that aliases repeat included.
const MAX_NODES: usize = 100_000;

/// Why a text cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SyntaxError {
    /// Invalid YAML, or YAML beyond the limits. The message has the line and the column.
    #[error("{0}")]
    Yaml(String),
    /// Invalid JSON. The message has the line and the column.
    #[error("{0}")]
    Json(String),
    /// The text is larger than this number of bytes.
    #[error("the text is larger than {} MiB", .0 >> 20)]
    TooLarge(usize),
    /// The nesting is too deep.
    #[error("objects and arrays may be nested at most {MAX_DEPTH} levels deep")]
    TooDeep,
    /// A document, counted from 1, is not a map.
    #[error("document {0} is not an object: it must have apiVersion, kind, metadata and spec")]
    NoObject(usize),
}

/// The objects of a YAML or JSON text of at most `limit` bytes, one value per document. Empty documents are skipped.
///
/// # Errors
/// When the text cannot be read, and when it exceeds the limits: aliases that multiply, deep nesting and huge texts.
pub fn documents(text: &str, limit: usize) -> Result<Vec<Value>, SyntaxError> {
    if text.len() > limit {
        return Err(SyntaxError::TooLarge(limit));
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
        serde_saphyr::from_multiple_with_options(text, limits(limit))
            .map_err(|error| SyntaxError::Yaml(error.to_string()))?
    };
    let values: Vec<Value> = values.into_iter().filter(|value| !value.is_null()).collect();
    match values.iter().position(|value| !value.is_object()) {
        Some(index) => Err(SyntaxError::NoObject(index + 1)),
        None => Ok(values),
    }
}

/// How deep objects and arrays are nested. It recurses no deeper than serde_json did.
fn depth(value: &Value) -> usize {
    let members = match value {
        Value::Array(values) => values.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + members.unwrap_or(0)
}

fn limits(bytes: usize) -> Options {
    let mut limits = options! {
        budget: budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: bytes,
        },
        with_snippet: false,
    };
    limits.alias_limits.max_total_replayed_events = MAX_NODES;
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 1 << 20;

    fn read(text: &str) -> Result<Vec<Value>, SyntaxError> {
        documents(text, LIMIT)
    }

    #[test]
    fn syntax_errors_have_a_position() {
        let error = read("a: b\n c: [d\n").unwrap_err().to_string();
        assert!(error.contains("line 2") || error.contains("line 3"), "{error}");
        let error = read("{\"a\": \n tru}").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(matches!(read("- a\n"), Err(SyntaxError::NoObject(1))));
        assert!(read("a: 1\na: 2\n").is_err(), "a key twice");
    }

    #[test]
    fn bombs_are_refused() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let before = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{before}]\n"));
        }
        assert!(matches!(read(&bomb), Err(SyntaxError::Yaml(_))));
        for open in ["[", "{a: "] {
            assert!(read(&format!("a: {}", open.repeat(100_000))).is_err());
        }
        assert!(read(&format!("{{\"a\":{}", "[".repeat(100_000))).is_err());
        let deep: String = (0..2000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(read(&deep).is_err());
        assert!(matches!(read(&" ".repeat(LIMIT + 1)), Err(SyntaxError::TooLarge(_))));
    }

    #[test]
    fn json_and_yaml_are_as_deep_as_what_is_stored_may_be() {
        let nested = |open: &str, depth: usize, close: &str| {
            format!("{{\"a\": {}1{}}}", open.repeat(depth - 1), close.repeat(depth - 1))
        };
        for (open, close) in [("[", "]"), ("{\"a\": ", "}")] {
            let (fits, deep) = (nested(open, MAX_DEPTH, close), nested(open, MAX_DEPTH + 1, close));
            assert_eq!(read(&fits).unwrap().len(), 1);
            assert!(matches!(read(&deep), Err(SyntaxError::TooDeep)));
            assert_eq!(read(&format!("---\n{fits}")).unwrap().len(), 1);
            assert!(matches!(read(&format!("---\n{deep}")), Err(SyntaxError::Yaml(_))));
        }
    }

    #[test]
    fn empty_documents_are_skipped_and_large_texts_refused() {
        assert_eq!(documents("a: 1\n---\n---\nb: 2\n", LIMIT).unwrap().len(), 2);
        assert_eq!(documents("{\"a\": 1}", LIMIT).unwrap().len(), 1);
        let error = documents(&"#".repeat(LIMIT + 1), LIMIT).unwrap_err();
        assert_eq!(error.to_string(), "the text is larger than 1 MiB");
    }
}
