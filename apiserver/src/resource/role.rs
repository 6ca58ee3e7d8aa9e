//! Roles and bindings before they are stored, and in tables.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Admit, Cause, Column, Resource, Row, Source};
use crate::json_path;
use crate::selector::Selector;

/// The API group of roles and bindings.
pub const RBAC_GROUP: &str = "rbac.authorization.k8s.io";
/// Longest name of a role or binding, in bytes.
const LONGEST_NAME: usize = 253;

fn role_row(kind: &'static str, namespaced: bool, admit: Admit) -> Resource {
    Resource {
        namespaced,
        columns: vec![
            Column::new("Created At", "date", Source::Path(".metadata.creationTimestamp".into()))
                .described("Time at which the object was created."),
        ],
        admit,
        name_fits,
        ..Resource::kubernetes(RBAC_GROUP, kind)
    }
}

fn binding_row(kind: &'static str, namespaced: bool, admit: Admit) -> Resource {
    Resource { columns: binding_columns(), ..role_row(kind, namespaced, admit) }
}

/// ClusterRoles.
pub static CLUSTER_ROLES: Row = Row::new(|| Arc::new(role_row("ClusterRole", false, admit_cluster_role)));

/// ClusterRoleBindings.
pub static CLUSTER_ROLE_BINDINGS: Row =
    Row::new(|| Arc::new(binding_row("ClusterRoleBinding", false, admit_cluster_binding)));

/// Roles.
pub static ROLES: Row = Row::new(|| Arc::new(role_row("Role", true, admit_role)));

/// RoleBindings.
pub static ROLE_BINDINGS: Row = Row::new(|| Arc::new(binding_row("RoleBinding", true, admit_binding)));

fn binding_columns() -> Vec<Column> {
    vec![
        Column::computed("Role", role).described("Kind and name of the role that is granted."),
        Column::age(),
        Column::computed("Users", |binding| subjects(binding, "User"))
            .wide()
            .described("Users in the binding."),
        Column::computed("Groups", |binding| subjects(binding, "Group"))
            .wide()
            .described("Groups in the binding."),
        Column::computed("ServiceAccounts", |binding| subjects(binding, "ServiceAccount"))
            .wide()
            .described("Service accounts in the binding."),
    ]
}

fn role(binding: &Value) -> Value {
    json!(format!(
        "{}/{}",
        json_path::text(binding, ".roleRef.kind"),
        json_path::text(binding, ".roleRef.name")
    ))
}

fn subjects(binding: &Value, kind: &str) -> Value {
    let all = list(binding, "subjects").iter().filter(|subject| text(subject, "kind") == kind);
    let names: Vec<String> = all
        .map(|subject| match text(subject, "namespace") {
            "" => text(subject, "name").to_owned(),
            namespace => format!("{namespace}/{}", text(subject, "name")),
        })
        .collect();
    json!(names.join(", "))
}

/// Whether it can stand in a path.
fn name_fits(name: &str) -> bool {
    !["", ".", ".."].contains(&name)
        && name.len() <= LONGEST_NAME
        && !name.chars().any(|letter| letter.is_control() || ['/', '\\', '%'].contains(&letter))
}

fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn admit_role(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    rules(new, false)
}

fn admit_cluster_role(new: &mut Value, _: Option<&Value>) -> Vec<Cause> {
    let mut causes = rules(new, true);
    if new.get("aggregationRule").is_some_and(|rule| !rule.is_null()) {
        causes.extend(aggregation(new));
    }
    causes
}

fn rules(role: &mut Value, cluster: bool) -> Vec<Cause> {
    if !role["rules"].is_array() {
        role["rules"] = json!([]);
    }
    let rule = |(index, rule): (usize, &Value)| {
        let at = |field: &str| format!("rules[{index}].{field}");
        let mut causes = Vec::new();
        if list(rule, "verbs").is_empty() {
            let why = "Required value: verbs must contain at least one value";
            causes.push(Cause::required(at("verbs"), why));
        }
        if list(rule, "nonResourceURLs").is_empty() {
            for (field, what) in [("apiGroups", "api group"), ("resources", "resource")] {
                if list(rule, field).is_empty() {
                    let why = format!("Required value: resource rules must supply at least one {what}");
                    causes.push(Cause::required(at(field), why));
                }
            }
            return causes;
        }
        if !cluster {
            let why = "Invalid value: namespaced rules cannot apply to non-resource URLs";
            causes.push(Cause::invalid(at("nonResourceURLs"), why));
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| !list(rule, field).is_empty()) {
            let why = "Invalid value: rules cannot apply to both regular resources and non-resource URLs";
            causes.push(Cause::invalid(at("nonResourceURLs"), why));
        }
        causes
    };
    list(role, "rules").iter().enumerate().flat_map(rule).collect()
}

fn aggregation(role: &Value) -> Vec<Cause> {
    let at = "aggregationRule.clusterRoleSelectors";
    let selectors = list(&role["aggregationRule"], "clusterRoleSelectors");
    if selectors.is_empty() {
        let why = "Required value: at least one clusterRoleSelector required if aggregationRule is non-nil";
        return vec![Cause::required(at, why)];
    }
    let problems = |(index, selector): (usize, &Value)| {
        let causes = Selector::of_labels(selector).err().unwrap_or_default().into_iter();
        let below = move |cause: Cause| Cause { field: format!("{at}[{index}].{}", cause.field), ..cause };
        causes.map(below)
    };
    selectors.iter().enumerate().flat_map(problems).collect()
}

fn admit_binding(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    binding(new, old, &["ClusterRole", "Role"])
}

fn admit_cluster_binding(new: &mut Value, old: Option<&Value>) -> Vec<Cause> {
    binding(new, old, &["ClusterRole"])
}

fn binding(new: &mut Value, old: Option<&Value>, kinds: &[&str]) -> Vec<Cause> {
    if !new["roleRef"].is_object() {
        new["roleRef"] = json!({});
    }
    complete(&mut new["roleRef"], RBAC_GROUP);
    let mut causes = Vec::new();
    let reference = &new["roleRef"];
    if text(reference, "apiGroup") != RBAC_GROUP {
        causes.push(unsupported("roleRef.apiGroup", text(reference, "apiGroup"), &[RBAC_GROUP]));
    }
    if !kinds.contains(&text(reference, "kind")) {
        causes.push(unsupported("roleRef.kind", text(reference, "kind"), kinds));
    }
    if text(reference, "name").is_empty() {
        causes.push(Cause::required("roleRef.name", "Required value"));
    } else if !name_fits(text(reference, "name")) {
        let why = format!("Invalid value: {:?}: may not contain '/' or '%'", text(reference, "name"));
        causes.push(Cause::invalid("roleRef.name", why));
    }
    if let Some(old) = old.filter(|old| old.get("roleRef") != new.get("roleRef")) {
        let wanted = new["roleRef"].clone();
        let was = format!("{}/{}", text(&old["roleRef"], "kind"), text(&old["roleRef"], "name"));
        let why = format!("Invalid value: {wanted}: cannot change roleRef (it is {was})");
        causes.push(Cause::invalid("roleRef", why));
    }
    let namespaced = kinds.contains(&"Role");
    if let Some(all) = new.get_mut("subjects").and_then(Value::as_array_mut) {
        let checked = all
            .iter_mut()
            .enumerate()
            .flat_map(|(index, subject)| validate_subject(subject, index, namespaced));
        causes.extend(checked);
    }
    causes
}

/// Fills in the group that is meant.
fn complete(reference: &mut Value, group: &str) {
    if text(reference, "apiGroup").is_empty() && !group.is_empty() {
        reference["apiGroup"] = json!(group);
    }
}

/// `namespaced` is whether the binding is in a namespace, the default of its accounts'.
fn validate_subject(subject: &mut Value, index: usize, namespaced: bool) -> Vec<Cause> {
    let at = |field: &str| format!("subjects[{index}].{field}");
    let kind = text(subject, "kind").to_owned();
    let group = match kind.as_str() {
        "ServiceAccount" => "",
        "User" | "Group" => RBAC_GROUP,
        other => return vec![unsupported(&at("kind"), other, &["ServiceAccount", "User", "Group"])],
    };
    complete(subject, group);
    let mut causes = Vec::new();
    if text(subject, "name").is_empty() {
        causes.push(Cause::required(at("name"), "Required value"));
    }
    if text(subject, "apiGroup") != group {
        causes.push(unsupported(&at("apiGroup"), text(subject, "apiGroup"), &[group]));
    }
    if kind == "ServiceAccount" && text(subject, "namespace").is_empty() && !namespaced {
        causes.push(Cause::required(at("namespace"), "Required value"));
    }
    causes
}

fn unsupported(field: &str, has: &str, known: &[&str]) -> Cause {
    let known: Vec<String> = known.iter().map(|one| format!("{one:?}")).collect();
    Cause::unsupported(field, format!("Unsupported value: {has:?}: supported values: {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(causes: &[Cause]) -> Vec<&str> {
        causes.iter().map(|cause| cause.field.as_str()).collect()
    }

    #[test]
    fn rules_name_verbs_and_resources() {
        for (rule, cluster, namespaced) in [
            (json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}), vec![], vec![]),
            (
                json!({"apiGroups": [""], "resources": ["pods"]}),
                vec!["rules[0].verbs"],
                vec!["rules[0].verbs"],
            ),
            (
                json!({"verbs": ["get"]}),
                vec!["rules[0].apiGroups", "rules[0].resources"],
                vec!["rules[0].apiGroups", "rules[0].resources"],
            ),
            (json!({"verbs": ["get"], "nonResourceURLs": ["/x"]}), vec![], vec!["rules[0].nonResourceURLs"]),
            (
                json!({"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["y"]}),
                vec!["rules[0].nonResourceURLs"],
                vec!["rules[0].nonResourceURLs", "rules[0].nonResourceURLs"],
            ),
        ] {
            let mut role = json!({ "rules": [rule] });
            assert_eq!(fields(&admit_cluster_role(&mut role, None)), cluster, "{role}");
            assert_eq!(fields(&admit_role(&mut role, None)), namespaced, "{role}");
        }
        let mut none = json!({"aggregationRule": {}});
        assert_eq!(fields(&admit_cluster_role(&mut none, None)), ["aggregationRule.clusterRoleSelectors"]);
        assert_eq!(none["rules"], json!([]));
    }

    #[test]
    fn bindings_are_completed_and_keep_their_role() {
        let mut new = json!({"roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]});
        assert_eq!(admit_binding(&mut new, None), []);
        assert_eq!(
            (&new["roleRef"]["apiGroup"], &new["subjects"][0]["apiGroup"]),
            (&json!(RBAC_GROUP), &json!(RBAC_GROUP))
        );
        assert!(new["subjects"][1].get("apiGroup").is_none());
        assert_eq!((role(&new), subjects(&new, "ServiceAccount")), (json!("Role/r"), json!("n/s")));
        assert_eq!(fields(&admit_cluster_binding(&mut new.clone(), None)), ["roleRef.kind"]);
        let old = new.clone();
        new["roleRef"]["name"] = json!("other");
        assert_eq!(fields(&admit_binding(&mut new, Some(&old))), ["roleRef"]);
        let mut odd = json!({"subjects": [{"kind": "Animal"}, {"kind": "ServiceAccount", "name": "x"},
            {"kind": "Group", "apiGroup": "other"}]});
        assert_eq!(
            fields(&admit_binding(&mut odd, None)),
            ["roleRef.kind", "roleRef.name", "subjects[0].kind", "subjects[2].name", "subjects[2].apiGroup"]
        );
        let mut homeless = json!({"roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "ServiceAccount", "name": "x"}]});
        assert_eq!(fields(&admit_cluster_binding(&mut homeless, None)), ["subjects[0].namespace"]);
        assert_eq!(admit_binding(&mut homeless, None), []);
    }

    #[test]
    fn names_are_parts_of_paths() {
        for (name, fits) in [
            ("kubevirt.io:admin", true),
            ("System:Node", true),
            ("a/b", false),
            ("a%2fb", false),
            ("..", false),
            ("", false),
        ] {
            assert_eq!(name_fits(name), fits, "{name}");
        }
    }
}
