use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::shape::{Shape, UnknownField, null_is_default};

/// A condition of an object. Its two times are written as `null` where they are not known, as KubeVirt does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition, such as `Ready`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub r#type: String,
    /// Status of the condition: `True`, `False` or `Unknown`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: String,
    /// Time of the last probe of the condition, in RFC 3339 form.
    #[serde(default)]
    pub last_probe_time: Option<String>,
    /// Time of the last change of the status, in RFC 3339 form.
    #[serde(default)]
    pub last_transition_time: Option<String>,
    /// Machine-readable CamelCase reason for the last change of the status.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Human-readable details about the last change of the status.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Fields unknown to this release, kept as they came.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

impl Shape for Condition {
    fn unknown_fields(&self, _: &str, _: &mut Vec<UnknownField>) {}

    fn schema(definitions: &mut BTreeMap<String, Value>) -> Value {
        let text = |about: &str| json!({"type": "string", "description": about});
        let definition = json!({"type": "object", "description": "A condition of an object.", "properties": {
            "type": text("Type of the condition, such as `Ready`."),
            "status": text("Status of the condition: `True`, `False` or `Unknown`."),
            "lastProbeTime": text("Time of the last probe of the condition, in RFC 3339 form."),
            "lastTransitionTime": text("Time of the last change of the status, in RFC 3339 form."),
            "reason": text("Machine-readable CamelCase reason for the last change of the status."),
            "message": text("Human-readable details about the last change of the status."),
        }});
        definitions.insert("Condition".to_owned(), definition);
        json!({ "$ref": "Condition" })
    }
}
