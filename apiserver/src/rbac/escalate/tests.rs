use std::convert::Infallible;

use serde_json::{Value, json};

use super::*;
use crate::meta;
use crate::rbac::row;
use crate::store::{Change, Store};

/// Ada reads secrets in `a`; Bob may also escalate and bind there.
fn world() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    let put = |plural: &str, namespace: &str, name: &str, mut value: Value| {
        meta::create(&mut value, namespace, name);
        let key = row(plural).key(namespace, name);
        store.write(&key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
    };
    put("roles", "a", "read", json!({ "rules": [read(&["get", "list"])] }));
    let above = json!({"verbs": ["escalate", "bind"], "apiGroups": [GROUP], "resources": ["roles", "clusterroles"],
        "resourceNames": ["new", "wide"]});
    put("roles", "a", "above", json!({ "rules": [above] }));
    put("clusterroles", "", "wide", json!({ "rules": [read(&["delete"])] }));
    for (name, role, user) in [("1", "read", "ada"), ("2", "read", "bob"), ("3", "above", "bob")] {
        put("rolebindings", "a", name, binding("Role", role, user));
    }
    (dir, store)
}

fn read(verbs: &[&str]) -> Value {
    json!({"verbs": verbs, "apiGroups": [""], "resources": ["secrets"]})
}

fn binding(kind: &str, role: &str, user: &str) -> Value {
    json!({"metadata": {"name": "new", "namespace": "a"}, "roleRef": {"kind": kind, "name": role},
        "subjects": [{"kind": "User", "name": user}]})
}

fn role(rules: Value) -> Value {
    json!({"metadata": {"name": "new", "namespace": "a"}, "rules": rules})
}

fn check(user: &str, plural: &str, new: &Value, old: Option<&Value>) -> Result<(), Escalation> {
    let (_dir, store) = world();
    let (roles, user) = (Roles::of(&store), User::named(user, &["dev"]));
    Writing { roles: &roles, user: &user, resource: row(plural) }.check(new, old)
}

#[test]
fn roles_give_no_more_than_their_writers_have() {
    let (held, more) = (role(json!([read(&["get"])])), role(json!([read(&["get", "delete"])])));
    assert_eq!(check("ada", "roles", &held, None), Ok(()));
    let why = "user \"ada\" (groups=[\"dev\"]) is attempting to grant RBAC permissions not currently held:\n\
        {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"delete\"]}";
    assert_eq!(check("ada", "roles", &more, None), Err(Escalation::NotHeld(why.to_owned())));
    assert_eq!(check("bob", "roles", &more, None), Ok(()), "he may escalate");
    assert_eq!(check("ada", "roles", &more, Some(&more)), Ok(()), "nothing changes");
    assert!(check("ada", "roles", &more, Some(&held)).is_err());
    assert_eq!(check("ada", "roles", &held, Some(&more)), Ok(()));
    assert_eq!(check("ada", "secrets", &more, None), Ok(()), "these are not ours");
    assert_eq!(check("ada", "clusterroles", &role(json!([])), None), Ok(()));
    let mut wide = more.clone();
    wide["metadata"]["namespace"] = json!("b");
    assert!(check("ada", "roles", &wide, None).is_err() && check("bob", "roles", &wide, None).is_err());
}

#[test]
fn only_who_has_everything_makes_roles_of_others() {
    let mut made =
        json!({"metadata": {"name": "new"}, "rules": [], "aggregationRule": {"clusterRoleSelectors": []}});
    let Err(Escalation::NotHeld(why)) = check("ada", "clusterroles", &made, None) else {
        panic!("it is refused")
    };
    assert!(why.starts_with("must have cluster-admin privileges to use an aggregationRule: user"), "{why}");
    let old = made.clone();
    assert_eq!(check("ada", "clusterroles", &made, Some(&old)), Ok(()));
    made["aggregationRule"] = Value::Null;
    assert!(check("ada", "clusterroles", &made, Some(&old)).is_err());
}

#[test]
fn bindings_give_no_more_than_their_writers_have() {
    assert_eq!(check("ada", "rolebindings", &binding("Role", "read", "eve"), None), Ok(()));
    let wide = binding("ClusterRole", "wide", "eve");
    assert!(matches!(check("ada", "rolebindings", &wide, None), Err(Escalation::NotHeld(_))));
    assert_eq!(check("bob", "rolebindings", &wide, None), Ok(()), "he may bind it");
    assert!(check("bob", "rolebindings", &binding("Role", "above", "eve"), None).is_ok(), "he has it");
    assert!(check("ada", "rolebindings", &binding("Role", "above", "eve"), None).is_err());
    let gone = Escalation::NoRole(Reference { kind: "Role".to_owned(), name: "gone".to_owned() });
    assert_eq!(check("ada", "rolebindings", &binding("Role", "gone", "eve"), None), Err(gone));
    assert_eq!(check("ada", "rolebindings", &wide, Some(&wide)), Ok(()), "nothing changes");
    let others = binding("ClusterRole", "wide", "mallory");
    assert!(check("ada", "rolebindings", &others, Some(&wide)).is_err());
}

#[test]
fn a_request_has_no_more_permissions_than_can_be_looked_at() {
    let many: Vec<String> = (0..50).map(|number| format!("r{number}")).collect();
    let rule = json!({"verbs": many, "apiGroups": many, "resources": many});
    let Err(Escalation::NotHeld(why)) = check("ada", "roles", &role(json!([rule])), None) else {
        panic!("it is refused")
    };
    assert!(why.contains("125000 single permissions"), "{why}");
    let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": many});
    let Err(Escalation::NotHeld(why)) = check("ada", "roles", &role(json!([rule])), None) else {
        panic!("it is refused")
    };
    assert!(why.ends_with("and 30 more"), "{why}");
}
