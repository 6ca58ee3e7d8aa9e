//! The part of JSONPath that printer columns and field selectors use: `.a.b`, `[0]`, `[?(@.type=='Ready')]`.

use serde_json::Value;

/// The value at a path. What the path does not fit is not there.
pub fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = object;
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix("[?(@.") {
            let (test, after) = inner.split_once(")]")?;
            let (field, wanted) = test.split_once("==")?;
            let wanted = wanted.trim_matches('\'');
            value = value.as_array()?.iter().find(|one| one.get(field).is_some_and(|has| has == wanted))?;
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('[') {
            let (index, after) = inner.split_once(']')?;
            value = value.get(index.parse::<usize>().ok()?)?;
            rest = after;
        } else {
            let inner = rest.strip_prefix('.')?;
            let end = inner.find(['.', '[']).unwrap_or(inner.len());
            let (field, after) = inner.split_at(end);
            value = value.get(field)?;
            rest = after;
        }
    }
    Some(value)
}

/// The same as text; empty where there is nothing.
pub fn text(object: &Value, path: &str) -> String {
    match find(object, path) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_of_kubevirt_find_their_values() {
        let object = json!({"status": {
            "interfaces": [{"ipAddress": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "Paused", "status": "False"}],
            "replicas": 3,
        }});
        for (path, expected) in [
            (".status.interfaces[0].ipAddress", "10.0.0.1"),
            (".status.interfaces[1].ipAddress", ""),
            (".status.conditions[?(@.type=='Paused')].status", "False"),
            (".status.conditions[?(@.type=='Gone')].status", ""),
            (".status.replicas", "3"),
            (".spec.x", ""),
            ("status", ""),
            (".status.interfaces[x", ""),
        ] {
            assert_eq!(text(&object, path), expected, "{path}");
        }
    }
}
