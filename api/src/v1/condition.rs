use serde::{Deserialize, Serialize};

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
    pub extra: std::collections::BTreeMap<String, serde_json::Value>,
}

impl Shape for Condition {
    fn strangers(&self, _: &str, _: &mut Vec<Stranger>) {}
}
