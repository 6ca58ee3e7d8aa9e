use std::convert::Infallible;

use super::*;
use crate::auth::User;
use crate::rbac::action::{Access, Action};
use crate::rbac::defaults::{READ, TO_ADMIN, TO_EDIT, TO_VIEW, all_verbs, role, rule};
use crate::rbac::roles::Roles;
use crate::rbac::row;

/// With roles for users of a group of its own.
fn policy() -> Policy {
    let part = |name, to, rules: &[Value]| role(name, &[(to, "true")], rules);
    let crates = |verbs: &[&str]| rule(verbs, "example.com", &["crates"]);
    let open = rule(&["update"], "example.com", &["boxes/open"]);
    Policy::new([
        part("example.com:admin", TO_ADMIN, &[crates(&all_verbs()), open.clone()]),
        part("example.com:edit", TO_EDIT, &[crates(&["create", "delete", "get", "list", "watch"]), open]),
        part("example.com:view", TO_VIEW, &[crates(&READ)]),
    ])
}

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    prepare(&store, &policy()).unwrap();
    (dir, store)
}

fn put(store: &Store, plural: &str, name: &str, mut value: Value) {
    meta::create(&mut value, "", name);
    store.write(&row(plural).key("", name), |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
}

fn verbs(store: &Store, role: &str, resource: &str) -> Vec<String> {
    let role = store.get(&row("clusterroles").key("", role)).unwrap();
    let mut verbs: Vec<String> = rules_in(&role.value())
        .into_iter()
        .filter(|rule| rule.resources.iter().any(|one| one == resource))
        .flat_map(|rule| rule.verbs)
        .collect();
    verbs.sort();
    verbs
}

#[test]
fn the_roles_for_people_are_made_of_others() {
    let (_dir, store) = store();
    let crates = |role: &str| verbs(&store, role, "crates");
    assert_eq!(crates("view"), ["get", "list", "watch"]);
    assert!(crates("edit").contains(&"delete".to_owned()), "and what view may");
    assert!(!crates("edit").contains(&"deletecollection".to_owned()));
    assert!(crates("admin").contains(&"deletecollection".to_owned()));
    assert_eq!(verbs(&store, "view", "secrets"), Vec::<String>::new());
    assert_eq!(verbs(&store, "admin", "boxes/open"), ["update"], "each rule once");
    let revision = store.revision();
    prepare(&store, &policy()).unwrap();
    assert_eq!(store.revision(), revision, "there is nothing more to do");
}

#[test]
fn a_new_part_counts_and_one_that_is_gone_does_not() {
    let (_dir, store) = store();
    let mut state = State { policy: policy(), ..State::default() };
    let part = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["boxes"]}]});
    put(&store, "clusterroles", "boxes", part);
    assert_eq!(reconcile(&store, &mut state), None);
    for role in ["view", "edit", "admin"] {
        assert_eq!(verbs(&store, role, "boxes"), ["get"], "{role}");
    }
    objects::remove(&store, &store.get(&row("clusterroles").key("", "boxes")).unwrap()).unwrap();
    reconcile(&store, &mut state);
    assert_eq!(verbs(&store, "admin", "boxes"), Vec::<String>::new());
}

#[test]
fn roles_that_are_made_of_each_other_come_to_an_end() {
    let (_dir, store) = store();
    for (name, next) in [("a", "b"), ("b", "c"), ("c", "a")] {
        let rule = json!({"verbs": ["get"], "apiGroups": [""], "resources": [name]});
        let of =
            json!({"clusterRoleSelectors": [{"matchLabels": {"is": next}}, {"matchLabels": {"is": "d"}}]});
        let labels = json!({ "is": name });
        put(
            &store,
            "clusterroles",
            name,
            json!({"metadata": {"labels": labels}, "rules": [rule], "aggregationRule": of}),
        );
    }
    let plain = json!({"metadata": {"labels": {"is": "d"}},
        "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["d"]}]});
    put(&store, "clusterroles", "d", plain);
    prepare(&store, &policy()).unwrap();
    let revision = store.revision();
    prepare(&store, &policy()).unwrap();
    assert_eq!(store.revision(), revision);
    for name in ["a", "b", "c"] {
        assert_eq!((verbs(&store, name, "d"), verbs(&store, name, name)), (vec!["get".to_owned()], vec![]));
    }
}

#[test]
fn what_is_missing_of_a_default_comes_back_and_what_was_added_stays() {
    let (_dir, store) = store();
    let mut state = State { policy: policy(), ..State::default() };
    let key = row("clusterrolebindings").key("", "cluster-admin");
    objects::remove(&store, &store.get(&key).unwrap()).unwrap();
    let role = store.get(&row("clusterroles").key("", "example.com:view")).unwrap();
    objects::change(&store, &role, |value| {
        value["rules"] = json!([{"verbs": ["get"], "apiGroups": ["mine"], "resources": ["things"]}]);
        true
    })
    .unwrap();
    assert_eq!(reconcile(&store, &mut state), None);
    assert_eq!(store.get(&key).unwrap().value()["subjects"][0]["name"], "system:masters");
    assert_eq!(verbs(&store, "example.com:view", "crates"), ["get", "list", "watch"]);
    assert_eq!(verbs(&store, "view", "things"), ["get"]);

    objects::change(&store, &store.get(&key).unwrap(), |value| {
        value["metadata"]["annotations"][AUTO_UPDATE] = json!("false");
        value["subjects"] = json!([]);
        true
    })
    .unwrap();
    reconcile(&store, &mut state);
    assert_eq!(store.get(&key).unwrap().value()["subjects"], json!([]), "its users removed them");
}

#[test]
fn authenticated_users_may_only_discover() {
    let (_dir, store) = store();
    let roles = Roles::of(&store);
    let ada = User::named("ada", &[crate::auth::KNOWN]);
    let path = |path: &str| Action::Path { verb: "get".to_owned(), path: path.to_owned() };
    let act = |verb: &str, group: &str, resource: &str| {
        let (verb, group, resource) = (verb.to_owned(), group.to_owned(), resource.to_owned());
        Action::Object(Access { verb, group, resource, ..Access::default() })
    };
    for (action, known, unknown) in [
        (path("/version"), true, true),
        (path("/healthz"), true, true),
        (path("/apis/example.com/v1"), true, false),
        (path("/openapi/v3/apis/example.com/v1"), true, false),
        (path("/metrics"), false, false),
        (act("create", "authorization.k8s.io", "selfsubjectaccessreviews"), true, false),
        (act("create", "authorization.k8s.io", "subjectaccessreviews"), false, false),
        (act("list", "example.com", "crates"), false, false),
    ] {
        let may = (roles.may(&ada, &action), roles.may(&User::anonymous(), &action));
        assert_eq!(may, (known, unknown), "{action:?}");
        assert!(roles.may(&User::administrator(), &action));
    }
}
