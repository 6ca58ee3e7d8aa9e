use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::shape::{Shape, Stranger, null_is_default};

/// One condition of an object. Its two times are written as `null` where they are not known, as KubeVirt does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Ready`, `AgentConnected`, ...
    #[serde(default, deserialize_with = "null_is_default")]
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    #[serde(default, deserialize_with = "null_is_default")]
    pub status: String,
    /// RFC 3339.
    #[serde(default)]
    pub last_probe_time: Option<String>,
    /// RFC 3339.
    #[serde(default)]
    pub last_transition_time: Option<String>,
    /// One word, for programs.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For people.
    #[serde(default, deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Fields unknown to this release, kept as they came.
    #[serde(flatten)]
    pub extra: BTreeMap<String, Value>,
}

impl Shape for Condition {
    fn strangers(&self, _: &str, _: &mut Vec<Stranger>) {}

    fn schema(definitions: &mut BTreeMap<String, Value>) -> Value {
        let text = |about: &str| json!({"type": "string", "description": about});
        let definition = json!({"type": "object", "description": "One condition of an object.", "properties": {
            "type": text("`Ready`, `AgentConnected`, ..."),
            "status": text("`True`, `False` or `Unknown`."),
            "lastProbeTime": text("RFC 3339."),
            "lastTransitionTime": text("RFC 3339."),
            "reason": text("One word, for programs."),
            "message": text("For people."),
        }});
        definitions.insert("Condition".to_owned(), definition);
        json!({ "$ref": "Condition" })
    }
}
