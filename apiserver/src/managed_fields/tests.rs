use proptest::prelude::*;

use super::*;

fn author(manager: &str) -> Author {
    Author { manager: manager.to_owned(), api_version: "v1".to_owned(), subresource: String::new() }
}

fn map(more: Value) -> Value {
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    json_patch::merge(&mut map, &more);
    map
}

/// Applies a manifest as a manager, and records it.
fn applied(live: Option<&Value>, manager: &str, manifest: &Value, force: bool) -> Result<Value, Unapplied> {
    let author = author(manager);
    let application = Application { of: Type::of_kind("ConfigMap"), author: &author, manifest, force };
    let Applied { mut object, managers } = apply(live, &application)?;
    note_for_the_client(&mut object, &application);
    managers.write(&mut object);
    Ok(object)
}

fn updated(before: &Value, manager: &str, change: Value) -> Value {
    let mut after = before.clone();
    json_patch::merge(&mut after, &change);
    let requested = Managers::requested(&after, Some(before));
    update(Type::of_kind("ConfigMap"), Some(before), &mut after, requested, &author(manager));
    after
}

/// Manager and fields of every entry, those who apply first.
fn account(object: &Value) -> Vec<(String, Value)> {
    let managers = Managers::read(object).unwrap();
    let mut account: Vec<_> =
        managers.entries.iter().map(|entry| (entry.author.manager.clone(), entry.set.write())).collect();
    account.sort_by(|one, other| one.0.cmp(&other.0));
    account
}

fn owner(uid: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "uid": uid, "name": name})
}

#[test]
fn who_applies_owns_what_the_manifest_names_and_gives_up_the_rest() {
    let first = applied(None, "one", &map(json!({"data": {"a": "1", "b": "1"}})), false).unwrap();
    assert_eq!(account(&first), [("one".to_owned(), json!({"f:data": {"f:a": {}, "f:b": {}}}))]);
    let shared = applied(Some(&first), "two", &map(json!({"data": {"a": "1"}})), false).unwrap();
    let rest = applied(Some(&shared), "one", &map(json!({"data": {"c": "1"}})), false).unwrap();
    assert_eq!(rest["data"], json!({"a": "1", "c": "1"}), "a is also the other's, b had no other manager");
    let fields = |name: &str| json!({"f:data": {format!("f:{name}"): {}}});
    assert_eq!(account(&rest), [("one".to_owned(), fields("c")), ("two".to_owned(), fields("a"))]);
    let none = applied(Some(&rest), "one", &map(json!({})), false).unwrap();
    let none = applied(Some(&none), "two", &map(json!({})), false).unwrap();
    assert!(none.get("data").is_none() && none["metadata"].get("managedFields").is_none(), "{none}");
}

#[test]
fn what_others_own_is_changed_only_by_force() {
    let first = applied(None, "one", &map(json!({"data": {"a": "1", "b": "1"}})), false).unwrap();
    let rival = map(json!({"data": {"a": "2", "c": "2"}}));
    let conflict = Conflict { owner: "\"one\"".to_owned(), field: ".data.a".to_owned() };
    assert_eq!(applied(Some(&first), "two", &rival, false), Err(Unapplied::Conflicts(vec![conflict])));
    let forced = applied(Some(&first), "two", &rival, true).unwrap();
    assert_eq!(forced["data"], json!({"a": "2", "b": "1", "c": "2"}));
    assert_eq!(
        account(&forced),
        [
            ("one".to_owned(), json!({"f:data": {"f:b": {}}})),
            ("two".to_owned(), json!({"f:data": {"f:a": {}, "f:c": {}}}))
        ]
    );
    let edited = updated(&forced, "kubectl-edit", json!({"data": {"c": "3"}}));
    let Err(Unapplied::Conflicts(conflicts)) = applied(Some(&edited), "two", &rival, false) else {
        panic!("no conflict")
    };
    assert!(conflicts[0].owner.starts_with("\"kubectl-edit\" using v1 at 2"), "{conflicts:?}");
}

#[test]
fn applying_the_same_again_leaves_no_trace() {
    let manifest = map(json!({"data": {"a": "1"}}));
    let mut first = applied(None, "one", &manifest, false).unwrap();
    first["metadata"]["managedFields"][0]["time"] = json!("2001-01-01T00:00:00Z");
    assert_eq!(applied(Some(&first), "one", &manifest, false).unwrap(), first);
    let changed = applied(Some(&first), "one", &map(json!({"data": {"a": "2"}})), false).unwrap();
    assert_ne!(changed["metadata"]["managedFields"][0]["time"], "2001-01-01T00:00:00Z");
}

#[test]
fn lists_are_owned_by_element() {
    let with = |owners: Value, finalizers: Value| {
        map(json!({"metadata": {"ownerReferences": owners, "finalizers": finalizers}}))
    };
    let first = applied(None, "one", &with(json!([owner("u", "n")]), json!(["x/a"])), false).unwrap();
    let second =
        applied(Some(&first), "two", &with(json!([owner("v", "m")]), json!(["x/b", "x/a"])), false).unwrap();
    let metadata = &second["metadata"];
    assert_eq!(metadata["ownerReferences"], json!([owner("u", "n"), owner("v", "m")]));
    assert_eq!(metadata["finalizers"], json!(["x/b", "x/a"]));
    let fields = &account(&second)[1].1["f:metadata"];
    assert!(fields["f:ownerReferences"].get("k:{\"uid\":\"v\"}").is_some(), "{fields}");
    assert!(fields["f:finalizers"].get("v:\"x/a\"").is_some(), "{fields}");
    let third = applied(Some(&second), "two", &with(json!([]), json!([])), false).unwrap();
    assert_eq!(third["metadata"]["ownerReferences"], json!([owner("u", "n")]));
    assert_eq!(third["metadata"]["finalizers"], json!(["x/a"]), "it is the other's too");
    let twice = with(json!([owner("u", "n"), owner("u", "m")]), json!([]));
    let why = ".metadata.ownerReferences: duplicate entries for key [uid=\"u\"]".to_owned();
    assert_eq!(applied(None, "one", &twice, false), Err(Unapplied::Malformed(why)));
    let keyless = with(json!([{"name": "n"}]), json!([]));
    assert!(matches!(applied(None, "one", &keyless, false), Err(Unapplied::Malformed(_))));
}

#[test]
fn earlier_fields_belong_to_earlier_managers() {
    let mut old = map(json!({"data": {"a": "1"}}));
    let Err(Unapplied::Conflicts(conflicts)) =
        applied(Some(&old), "one", &map(json!({"data": {"a": "2"}})), false)
    else {
        panic!("no conflict")
    };
    assert!(conflicts[0].owner.starts_with("\"before-first-apply\" using v1"), "{conflicts:?}");
    let before = old.clone();
    Registry::default().record(&Key::new("configmaps", "", "a"), Some(&before), &mut old);
    assert!(old["metadata"].get("managedFields").is_none(), "nothing changed");
    old["data"]["b"] = json!("1");
    Registry::default().record(&Key::new("configmaps", "", "a"), Some(&before), &mut old);
    assert_eq!(account(&old), [("vireo".to_owned(), json!({"f:data": {"f:b": {}}}))]);
}

#[test]
fn kubectl_may_go_on_with_what_it_applied_in_the_client() {
    let client = |data: Value| {
        let note = map(json!({"data": data})).to_string();
        let metadata = json!({"annotations": {LAST_APPLIED: note}});
        updated(&map(json!({})), "kubectl-client-side-apply", json!({"metadata": metadata, "data": data}))
    };
    let live = client(json!({"a": "1", "b": "1"}));
    let wanted = map(json!({"data": {"a": "2", "b": "1"}}));
    assert!(applied(Some(&live), "other", &wanted, false).is_err());
    let went_on = applied(Some(&live), "kubectl", &wanted, false).unwrap();
    let note: Value =
        serde_json::from_str(went_on["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap()).unwrap();
    assert_eq!((&went_on["data"]["a"], &note), (&json!("2"), &wanted));
    let edited = updated(&live, "kubectl-edit", json!({"data": {"a": "3"}}));
    assert!(applied(Some(&edited), "kubectl", &wanted, false).is_err(), "another manager changed it since");
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![Just(json!(null)), any::<bool>().prop_map(Value::from), (0..3u8).prop_map(Value::from)];
    leaf.prop_recursive(3, 16, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..3).prop_map(|fields| json!(fields)),
        ]
    })
}

proptest! {
    #[test]
    fn objects_differ_where_they_do(one in tree(), other in tree()) {
        let (one, other) = (map(json!({"data": {"x": one}})), map(json!({"data": {"x": other}})));
        let difference = difference(Type::of_kind("ConfigMap"), Some(&one), &other);
        let same = difference.changed().is_empty() && difference.removed.is_empty();
        prop_assert_eq!(same, one == other, "{:?}", difference);
    }

    #[test]
    fn what_is_applied_is_there_and_is_taken_back(one in tree(), other in tree()) {
        let manifest = |tree: &Value| json!({"apiVersion": "v1", "kind": "Unknown", "metadata": {"name": "a"}, "spec": tree});
        let author = author("one");
        let apply = |live: Option<&Value>, manifest: &Value| {
            let Applied { mut object, managers } =
                super::apply(live, &Application { of: Type::of_kind("Unknown"), author: &author, manifest, force: false }).unwrap();
            managers.write(&mut object);
            object
        };
        let first = apply(None, &manifest(&one));
        let second = apply(Some(&first), &manifest(&other));
        prop_assert_eq!(&second["spec"], &other, "there is no other manager");
    }
}

fn fields() -> impl Strategy<Value = Value> {
    let step = prop_oneof![
        "[fkvi]:[a-c0-9]{0,2}",
        Just("k:{\"a\":1}".to_owned()),
        Just("v:\"x\"".to_owned()),
        Just(".".to_owned()),
    ];
    let leaf = prop_oneof![Just(json!({})), Just(json!(1))];
    leaf.prop_recursive(5, 24, 4, move |inner| {
        prop::collection::btree_map(step.clone(), inner, 0..4).prop_map(|fields| json!(fields))
    })
}

proptest! {
    /// Clients may write what they like to `managedFields`.
    #[test]
    fn no_account_is_too_odd(one in fields(), other in fields(), tree in tree()) {
        let entry = |fields: Value, operation: &str| json!({"manager": operation, "operation": operation,
            "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields});
        let managed = json!([entry(one, "Apply"), entry(other, "Update")]);
        let live = map(json!({"metadata": {"managedFields": managed}, "data": {"x": tree}}));
        for manager in ["Apply", "kubectl"] {
            let _ = applied(Some(&live), manager, &map(json!({"data": {"a": "1"}})), true);
        }
        let mut after = live.clone();
        after["data"] = json!({"b": "2"});
        Registry::default().record(&Key::new("configmaps", "", "a"), Some(&live), &mut after);
    }
}
