use std::convert::Infallible;

use super::*;
use crate::auth::User;
use crate::rbac::action::{Access, Action};
use crate::rbac::roles::Roles;
use crate::rbac::row;

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("store")).unwrap();
    prepare(&store).unwrap();
    (dir, store)
}

fn put(store: &Store, plural: &str, name: &str, mut value: Value) {
    meta::create(&mut value, "", name);
    store.write(&row(plural).key("", name), |_, _| Ok::<_, Infallible>(Change::Put(value))).unwrap();
}

fn verbs(store: &Store, role: &str, resource: &str) -> Vec<String> {
    let role = store.get(&row("clusterroles").key("", role)).unwrap();
    let mut verbs: Vec<String> = rules_in(&role.value)
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
    let machines = |role: &str| verbs(&store, role, "virtualmachines");
    assert_eq!(machines("view"), ["get", "list", "watch"]);
    assert!(machines("edit").contains(&"delete".to_owned()), "and what view may");
    assert!(!machines("edit").contains(&"deletecollection".to_owned()));
    assert!(machines("admin").contains(&"deletecollection".to_owned()));
    assert_eq!(verbs(&store, "view", "secrets"), Vec::<String>::new());
    assert_eq!(verbs(&store, "admin", "virtualmachines/start"), ["update"], "each rule once");
    let revision = store.revision();
    prepare(&store).unwrap();
    assert_eq!(store.revision(), revision, "there is nothing more to do");
}

#[test]
fn a_new_part_counts_and_one_that_is_gone_does_not() {
    let (_dir, store) = store();
    let mut rounds = Rounds::default();
    let part = json!({"metadata": {"labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
        "rules": [{"verbs": ["get"], "apiGroups": ["example.com"], "resources": ["boxes"]}]});
    put(&store, "clusterroles", "boxes", part);
    assert_eq!(round(&store, &mut rounds), None);
    for role in ["view", "edit", "admin"] {
        assert_eq!(verbs(&store, role, "boxes"), ["get"], "{role}");
    }
    place::remove(&store, &store.get(&row("clusterroles").key("", "boxes")).unwrap()).unwrap();
    round(&store, &mut rounds);
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
    prepare(&store).unwrap();
    let revision = store.revision();
    prepare(&store).unwrap();
    assert_eq!(store.revision(), revision);
    for name in ["a", "b", "c"] {
        assert_eq!((verbs(&store, name, "d"), verbs(&store, name, name)), (vec!["get".to_owned()], vec![]));
    }
}

#[test]
fn what_is_missing_of_a_default_comes_back_and_what_was_added_stays() {
    let (_dir, store) = store();
    let mut rounds = Rounds::default();
    let key = row("clusterrolebindings").key("", "cluster-admin");
    place::remove(&store, &store.get(&key).unwrap()).unwrap();
    let role = store.get(&row("clusterroles").key("", "kubevirt.io:view")).unwrap();
    place::change(&store, &role, |value| {
        value["rules"] = json!([{"verbs": ["get"], "apiGroups": ["mine"], "resources": ["things"]}]);
        true
    })
    .unwrap();
    assert_eq!(round(&store, &mut rounds), None);
    assert_eq!(store.get(&key).unwrap().value["subjects"][0]["name"], "system:masters");
    assert_eq!(verbs(&store, "kubevirt.io:view", "virtualmachines"), ["get", "list", "watch"]);
    assert_eq!(verbs(&store, "view", "things"), ["get"]);

    place::change(&store, &store.get(&key).unwrap(), |value| {
        value["metadata"]["annotations"][AUTO_UPDATE] = json!("false");
        value["subjects"] = json!([]);
        true
    })
    .unwrap();
    round(&store, &mut rounds);
    assert_eq!(store.get(&key).unwrap().value["subjects"], json!([]), "its users said so");
}

#[test]
fn whoever_is_known_may_look_around_and_no_more() {
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
        (path("/apis/kubevirt.io/v1"), true, false),
        (path("/openapi/v3/apis/kubevirt.io/v1"), true, false),
        (path("/metrics"), false, false),
        (act("create", "authorization.k8s.io", "selfsubjectaccessreviews"), true, false),
        (act("create", "authorization.k8s.io", "subjectaccessreviews"), false, false),
        (act("list", "instancetype.kubevirt.io", "virtualmachineclusterinstancetypes"), true, false),
        (act("list", "instancetype.kubevirt.io", "virtualmachineinstancetypes"), false, false),
        (act("list", "kubevirt.io", "virtualmachines"), false, false),
    ] {
        let may = (roles.may(&ada, &action), roles.may(&User::anonymous(), &action));
        assert_eq!(may, (known, unknown), "{action:?}");
        assert!(roles.may(&User::administrator(), &action));
    }
}
