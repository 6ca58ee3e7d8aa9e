//! Roles and bindings as protobuf: what recent `kubectl create role` and `kubectl create rolebinding` send.

use std::collections::BTreeMap;

use prost::{DecodeError, Message};
use serde_json::{Value, json};

use super::{ObjectMeta, metadata, tidy};

#[derive(Clone, PartialEq, Message)]
struct Role {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    rules: Vec<PolicyRule>,
    /// Of a ClusterRole.
    #[prost(message, optional, tag = "3")]
    aggregation: Option<AggregationRule>,
}

#[derive(Clone, PartialEq, Message)]
struct PolicyRule {
    #[prost(string, repeated, tag = "1")]
    verbs: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    groups: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    resources: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    names: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    paths: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct AggregationRule {
    #[prost(message, repeated, tag = "1")]
    selectors: Vec<LabelSelector>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelSelector {
    #[prost(btree_map = "string, string", tag = "1")]
    labels: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "2")]
    expressions: Vec<Requirement>,
}

#[derive(Clone, PartialEq, Message)]
struct Requirement {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    operator: String,
    #[prost(string, repeated, tag = "3")]
    values: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Binding {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, repeated, tag = "2")]
    subjects: Vec<Subject>,
    #[prost(message, optional, tag = "3")]
    role: Option<RoleRef>,
}

#[derive(Clone, PartialEq, Message)]
struct Subject {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    group: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct RoleRef {
    #[prost(string, tag = "1")]
    group: String,
    #[prost(string, tag = "2")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
}

/// Reads a role or a binding. None for a kind that is neither.
pub(super) fn read(kind: &str, raw: &[u8]) -> Result<Option<Value>, DecodeError> {
    match kind {
        "Role" | "ClusterRole" => {
            let role = Role::decode(raw)?;
            let rules: Vec<Value> = role.rules.into_iter().map(rule).collect();
            let made = role.aggregation.map(|made| {
                json!({"clusterRoleSelectors": made.selectors.into_iter().map(selector).collect::<Vec<_>>()})
            });
            Ok(Some(json!({"metadata": metadata(role.metadata), "rules": rules, "aggregationRule": made})))
        }
        "RoleBinding" | "ClusterRoleBinding" => {
            let binding = Binding::decode(raw)?;
            let role = binding.role.unwrap_or_default();
            let subjects: Vec<Value> = binding.subjects.into_iter().map(subject).collect();
            Ok(Some(json!({
                "metadata": metadata(binding.metadata), "subjects": subjects,
                "roleRef": tidied(json!({"apiGroup": role.group, "kind": role.kind, "name": role.name})),
            })))
        }
        _ => Ok(None),
    }
}

fn tidied(mut value: Value) -> Value {
    tidy(&mut value);
    value
}

fn rule(rule: PolicyRule) -> Value {
    tidied(json!({
        "verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources, "resourceNames": rule.names,
        "nonResourceURLs": rule.paths,
    }))
}

fn selector(selector: LabelSelector) -> Value {
    let requirement =
        |one: Requirement| tidied(json!({"key": one.key, "operator": one.operator, "values": one.values}));
    let requirements: Vec<Value> = selector.expressions.into_iter().map(requirement).collect();
    tidied(json!({"matchLabels": selector.labels, "matchExpressions": requirements}))
}

fn subject(subject: Subject) -> Value {
    tidied(json!({
        "kind": subject.kind, "apiGroup": subject.group, "name": subject.name, "namespace": subject.namespace,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_and_bindings_become_what_their_json_would_be() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let rules = vec![
            PolicyRule {
                verbs: words(&["get"]),
                groups: words(&[""]),
                resources: words(&["pods"]),
                ..PolicyRule::default()
            },
            PolicyRule { verbs: words(&["get"]), paths: words(&["/x"]), ..PolicyRule::default() },
        ];
        let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let selectors = vec![LabelSelector { labels, expressions: Vec::new() }];
        let role = Role { metadata: None, rules, aggregation: Some(AggregationRule { selectors }) };
        let mut decoded = read("ClusterRole", &role.encode_to_vec()).unwrap().unwrap();
        decoded["metadata"].take();
        assert_eq!(
            decoded,
            json!({"metadata": null, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]},
                "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
                    {"verbs": ["get"], "nonResourceURLs": ["/x"]}]})
        );
        let subject = Subject { kind: "User".to_owned(), name: "ada".to_owned(), ..Subject::default() };
        let role = Some(RoleRef { kind: "Role".to_owned(), name: "r".to_owned(), group: "g".to_owned() });
        let binding = Binding { metadata: None, subjects: vec![subject], role };
        let decoded = read("RoleBinding", &binding.encode_to_vec()).unwrap().unwrap();
        assert_eq!(decoded["subjects"], json!([{"kind": "User", "name": "ada"}]));
        assert_eq!(decoded["roleRef"], json!({"apiGroup": "g", "kind": "Role", "name": "r"}));
        assert_eq!(read("Pod", b"").unwrap(), None);
        assert!(read("Role", b"\xff\xff").is_err());
    }
}
