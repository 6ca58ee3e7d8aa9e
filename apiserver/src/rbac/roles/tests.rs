use std::convert::Infallible;

use serde_json::json;

use super::*;
use crate::rbac::action::Access;
use crate::rbac::row;
use crate::store::Change;

fn put(store: &Store, plural: &str, (namespace, name): (&str, &str), mut value: Value) {
    meta::create(&mut value, namespace, name);
    let key = row(plural).key(namespace, name);
    store.write(&key, |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
}

fn get(namespace: &str, resource: &str) -> Action {
    let (namespace, resource) = (namespace.to_owned(), resource.to_owned());
    Action::Object(Access { verb: "get".to_owned(), namespace, resource, ..Access::default() })
}

fn rules(resource: &str) -> Value {
    json!({"rules": [{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]})
}

fn binding(kind: &str, role: &str, subject: &Value) -> Value {
    json!({"roleRef": {"apiGroup": GROUP, "kind": kind, "name": role}, "subjects": [subject]})
}

fn world() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    put(&store, "clusterroles", ("", "wide"), rules("maps"));
    put(&store, "roles", ("a", "narrow"), rules("secrets"));
    put(&store, "roles", ("b", "narrow"), rules("pods"));
    (dir, store)
}

#[test]
fn a_binding_counts_for_its_subjects_and_where_it_is() {
    let (_dir, store) = world();
    let (ada, bob) = (User::named("ada", &["dev"]), User::named("bob", &[]));
    let robot = User::named("system:serviceaccount:x:robot", &[]);
    put(
        &store,
        "rolebindings",
        ("a", "ada"),
        binding("Role", "narrow", &json!({"kind": "User", "name": "ada"})),
    );
    put(
        &store,
        "rolebindings",
        ("b", "dev"),
        binding("ClusterRole", "wide", &json!({"kind": "Group", "name": "dev"})),
    );
    let account = json!({"kind": "ServiceAccount", "name": "robot", "namespace": "x"});
    put(&store, "clusterrolebindings", ("", "robot"), binding("ClusterRole", "wide", &account));
    let odd = json!({"kind": "Animal", "name": "bob"});
    put(&store, "clusterrolebindings", ("", "odd"), binding("ClusterRole", "wide", &odd));
    let roles = Roles::of(&store);
    for (user, namespace, resource, allowed) in [
        (&ada, "a", "secrets", true),
        (&ada, "b", "secrets", false),
        (&ada, "", "secrets", false),
        (&ada, "a", "maps", false),
        (&ada, "b", "maps", true),
        (&ada, "b", "pods", false),
        (&robot, "a", "maps", true),
        (&robot, "", "maps", true),
        (&robot, "a", "secrets", false),
        (&bob, "a", "maps", false),
        (&User::named("dev", &[]), "b", "maps", false),
        (&User::named("x", &["ada"]), "a", "secrets", false),
    ] {
        let action = get(namespace, resource);
        assert_eq!(roles.may(user, &action), allowed, "{user:?} {action:?}");
        assert_eq!(roles.decide(user, &action).is_allowed(), allowed, "{user:?} {action:?}");
    }
    let reason = Decision::Allowed(
        "RBAC: allowed by RoleBinding \"ada/a\" of Role \"narrow\" to User \"ada\"".to_owned(),
    );
    assert_eq!(roles.decide(&ada, &get("a", "secrets")), reason);
    assert!(roles.may(&User::administrator(), &get("", "anything")));
}

#[test]
fn bindings_without_role_are_reported() {
    let (_dir, store) = world();
    let ada = User::named("ada", &[]);
    assert_eq!(Roles::of(&store).decide(&ada, &get("a", "maps")), Decision::Denied(String::new()));
    put(
        &store,
        "rolebindings",
        ("a", "x"),
        binding("ClusterRole", "gone", &json!({"kind": "User", "name": "ada"})),
    );
    let why = "RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found".to_owned();
    assert_eq!(Roles::of(&store).decide(&ada, &get("a", "maps")), Decision::Denied(why));
}

#[test]
fn what_was_written_counts_at_once() {
    let (_dir, store) = world();
    let (now, ada) = (RolesNow::default(), User::named("ada", &[]));
    assert!(!now.now(&store).may(&ada, &get("a", "secrets")));
    let before = now.now(&store);
    put(&store, "secrets", ("a", "other"), json!({}));
    assert!(Arc::ptr_eq(&before, &now.now(&store)), "nothing of ours was written");
    let subject = json!({"kind": "User", "name": "ada"});
    put(&store, "rolebindings", ("a", "x"), binding("Role", "narrow", &subject));
    assert!(now.now(&store).may(&ada, &get("a", "secrets")));
    crate::objects::remove(&store, &store.get(&row("roles").key("a", "narrow")).unwrap()).unwrap();
    assert!(!now.now(&store).may(&ada, &get("a", "secrets")));
}
