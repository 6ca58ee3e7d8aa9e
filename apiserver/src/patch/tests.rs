use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::store::Limits;

fn apply(kind: Kind, object: &Value, patch: Value, keys: &[(&str, &str)]) -> Result<Value, PatchError> {
    Patch::read(kind, patch)?.apply(object, keys)
}

#[test]
fn each_patch_kind_follows_its_standard() {
    let object = json!({"a": {"b": 1, "c": 2}, "list": [1, 2]});
    let rows = [
        (Kind::Merge, json!({"a": {"b": null}, "list": [3]}), json!({"a": {"c": 2}, "list": [3]})),
        (Kind::Strategic, json!({"a": {"b": null}, "list": [3]}), json!({"a": {"c": 2}, "list": [3]})),
        (
            Kind::Strategic,
            json!({"a": {"$patch": "replace", "d": 1}}),
            json!({"a": {"d": 1}, "list": [1, 2]}),
        ),
        (Kind::Strategic, json!({"a": {"$patch": "delete"}}), json!({"list": [1, 2]})),
        (
            Kind::Json,
            json!([{"op": "test", "path": "/a/b", "value": 1}, {"op": "add", "path": "/list/-", "value": 3}]),
            json!({"a": {"b": 1, "c": 2}, "list": [1, 2, 3]}),
        ),
    ];
    for (kind, patch, expected) in rows {
        assert_eq!(apply(kind, &object, patch, &[]).unwrap(), expected);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let object = json!({"a": 1});
    let failing = json!([{"op": "remove", "path": "/a"}, {"op": "test", "path": "/b", "value": 1}]);
    assert!(matches!(apply(Kind::Json, &object, failing, &[]), Err(PatchError::Unfit(_))));
    for kind in [Kind::Json, Kind::Merge, Kind::Strategic] {
        assert!(matches!(apply(kind, &object, json!("a"), &[]), Err(PatchError::Malformed(_))), "{kind:?}");
    }
    assert!(matches!(
        apply(Kind::Json, &object, json!([{"op": "invent"}]), &[]),
        Err(PatchError::Malformed(_))
    ));
    let unknown = json!({"a": {"$patch": "invent"}});
    assert!(matches!(apply(Kind::Strategic, &object, unknown, &[]), Err(PatchError::Malformed(_))));
}

#[test]
fn lists_of_a_strategic_patch_are_merged_by_their_key() {
    let keys = [("metadata.finalizers", ""), ("status.conditions", "type")];
    let object = json!({"metadata": {"finalizers": ["a"]},
        "status": {"conditions": [{"type": "Ready", "status": "True", "x": 1}, {"type": "Old"}]}});
    let patch = json!({"metadata": {"finalizers": ["b", "a"]}, "status": {"conditions": [
        {"type": "Ready", "status": "False"}, {"type": "New"}, {"type": "Old", "$patch": "delete"}]}});
    let expected = json!({"metadata": {"finalizers": ["a", "b"]},
        "status": {"conditions": [{"type": "Ready", "status": "False", "x": 1}, {"type": "New"}]}});
    assert_eq!(apply(Kind::Strategic, &object, patch, &keys).unwrap(), expected);
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}});
    let patched = apply(Kind::Strategic, &object, patch, &keys).unwrap();
    assert_eq!(patched["metadata"]["finalizers"], json!([]));
    let keyless = json!({"status": {"conditions": [{"status": "True"}]}});
    assert!(apply(Kind::Strategic, &object, keyless, &keys).is_err());
}

#[test]
fn directives_in_new_elements_are_not_stored() {
    let keys = [("spec.containers", "name"), ("spec.containers.env", "name")];
    let patch = json!({"spec": {"containers": [{"name": "a", "image": null,
        "env": [{"name": "A", "$patch": "delete"}, {"name": "B", "value": "1"}],
        "securityContext": {"$patch": "replace", "privileged": true},
        "resources": {"$retainKeys": ["limits"], "limits": {"cpu": 1}}}]}});
    for object in [json!({"spec": {"containers": []}}), json!({})] {
        let patched = apply(Kind::Strategic, &object, patch.clone(), &keys).unwrap();
        let expected = json!([{"name": "a", "env": [{"name": "B", "value": "1"}],
            "securityContext": {"privileged": true}, "resources": {"limits": {"cpu": 1}}}]);
        assert_eq!(patched["spec"]["containers"], expected);
    }
}

#[test]
fn a_test_for_null_holds_where_there_is_nothing() {
    let adding = json!([
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": ["one"]},
    ]);
    let bare = json!({"metadata": {}});
    let held = apply(Kind::Json, &bare, adding.clone(), &[]).unwrap();
    assert_eq!(held, json!({"metadata": {"finalizers": ["one"]}}));
    assert!(matches!(apply(Kind::Json, &held, adding, &[]), Err(PatchError::Unfit(_))));
    let other = json!([{"op": "test", "path": "/metadata/name", "value": "x"}]);
    let message = apply(Kind::Json, &bare, other, &[]).unwrap_err().to_string();
    assert!(message.contains("operation 0 at '/metadata/name'"), "{message}");
}

#[test]
fn copies_of_a_patch_are_bounded_together() {
    let object = json!({"data": {"a": "x".repeat(1 << 20)}});
    let copies = |count: usize| {
        let copy = |number| json!({"op": "copy", "from": "/data", "path": format!("/data/x{number}")});
        Value::Array((0..count).map(copy).collect())
    };
    assert!(apply(Kind::Json, &object, copies(1), &[]).is_ok());
    let Err(PatchError::TooLarge(why)) = apply(Kind::Json, &object, copies(24), &[]) else {
        panic!("2^24 times the object is made")
    };
    assert!(why.contains("exceeding the limit 3145728"), "{why}");
    let replaced = json!([{"op": "copy", "from": "/data/a", "path": "/b"}, {"op": "remove", "path": "/b"}]);
    let replaced: Vec<&Value> = replaced.as_array().unwrap().iter().cycle().take(8).collect();
    let refused = apply(Kind::Json, &object, json!(replaced), &[]);
    assert!(matches!(refused, Err(PatchError::TooLarge(_))), "also when each copy replaces another");
}

#[test]
fn operations_are_bounded_in_number_and_in_what_they_move() {
    let test = json!({"op": "test", "path": "/x", "value": null});
    let Err(PatchError::TooLarge(why)) = apply(Kind::Json, &json!({}), json!(vec![test; 10_001]), &[]) else {
        panic!("it is not refused")
    };
    assert_eq!(why, "The allowed maximum operations in a JSON patch is 10000, got 10001");
    let object = json!({"list": vec![0; 500_000]});
    let rotate = json!({"op": "move", "from": "/list/0", "path": "/list/1"});
    let refused = apply(Kind::Json, &object, json!(vec![rotate.clone(); 9_000]), &[]);
    assert!(matches!(refused, Err(PatchError::TooLarge(_))));
    assert!(apply(Kind::Json, &object, json!(vec![rotate; 10]), &[]).is_ok());
}

/// The pointer of a value that is so deep.
fn pointer(depth: usize) -> String {
    "/a".repeat(depth)
}

#[test]
fn no_operation_nests_deeper_than_an_object_may_be() {
    let most = Limits::REQUEST.depth;
    let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!({"a": inner}));
    let half = nested(most / 2);
    let onto = |operation: Value| apply(Kind::Json, &half, json!([operation]), &[]);
    let end = pointer(most / 2);
    assert!(onto(json!({"op": "replace", "path": end, "value": nested(most / 2)})).is_ok());
    assert!(onto(json!({"op": "copy", "from": "", "path": end})).is_ok());
    for operation in [
        json!({"op": "replace", "path": end, "value": nested(most / 2 + 1)}),
        json!({"op": "add", "path": end, "value": nested(most / 2 + 1)}),
    ] {
        let Err(PatchError::Unfit(why)) = onto(operation) else { panic!("it is not refused") };
        assert!(why.ends_with("may be nested at most 96 levels deep"), "{why}");
    }
    // Each copy doubles what there is.
    let doubling = (0..20).map(|times| json!({"op": "copy", "from": "", "path": pointer(1 << times)}));
    let doubled = apply(Kind::Json, &json!({"a": {}}), doubling.collect(), &[]);
    assert!(matches!(doubled, Err(PatchError::Unfit(_))), "{doubled:?}");
    let aside = json!({"a": nested(60), "b": nested(60)});
    let moved = json!([{"op": "move", "from": "/b", "path": pointer(50)}]);
    assert!(matches!(apply(Kind::Json, &aside, moved, &[]), Err(PatchError::Unfit(_))));
}

/// In a time that grows with the lists, and not with the square of it.
#[test]
fn long_lists_are_merged() {
    let keys = [("finalizers", ""), ("owners", "uid")];
    let words = |from: usize| (from..from + 100_000).map(|word| format!("a/{word}")).collect::<Vec<_>>();
    let owners = |from: usize| words(from).into_iter().map(|uid| json!({"uid": uid})).collect::<Vec<_>>();
    let object = json!({"finalizers": words(0), "owners": owners(0)});
    let patch = json!({"finalizers": words(50_000), "owners": owners(50_000),
        "$deleteFromPrimitiveList/finalizers": words(200_000)});
    let patched = apply(Kind::Strategic, &object, patch, &keys).unwrap();
    assert_eq!(patched["finalizers"].as_array().map(Vec::len), Some(150_000));
    assert_eq!(patched["owners"].as_array().map(Vec::len), Some(150_000));
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf =
        prop_oneof![Just(Value::Null), (0..3u8).prop_map(Value::from), "[a-c$]{0,2}".prop_map(Value::from)];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof![
            "[a-c]",
            Just("$patch".to_owned()),
            Just("$retainKeys".to_owned()),
            Just("$deleteFromPrimitiveList/a".to_owned()),
            Just("$setElementOrder/a".to_owned()),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..4).prop_map(|fields| json!(fields)),
        ]
    })
}

fn operation() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["add", "remove", "replace", "move", "copy", "test", "invent"]);
    let pointer = || {
        let step =
            prop::sample::select(vec!["/a", "/b", "/c", "/0", "/1", "/-", "/~0", "/~1", "/01", "/", "x"]);
        prop::collection::vec(step, 0..4).prop_map(|steps| steps.concat())
    };
    (name, pointer(), pointer(), tree())
        .prop_map(|(op, from, path, value)| json!({"op": op, "from": from, "path": path, "value": value}))
}

proptest! {
    #[test]
    fn no_patch_is_too_odd(object in tree(), patch in tree(), operations in prop::collection::vec(operation(), 0..8)) {
        let keys = [("a", "b"), ("b", ""), ("a.a", "a"), ("c.a", "")];
        for kind in [Kind::Merge, Kind::Strategic] {
            let _ = apply(kind, &object, patch.clone(), &keys);
        }
        let _ = apply(Kind::Json, &object, patch, &keys);
        if let Ok(patched) = apply(Kind::Json, &object, Value::Array(operations), &keys) {
            prop_assert!(Limits::REQUEST.check(&patched).is_ok());
        }
    }

    /// Merging by an index of keys does what looking for each key does.
    #[test]
    fn words_are_merged_once_and_in_order(has in prop::collection::vec(0..6u8, 0..8), more in prop::collection::vec(0..6u8, 0..8)) {
        let merged = apply(Kind::Strategic, &json!({"a": has}), json!({"a": more}), &[("a", "")]).unwrap();
        let mut expected = has;
        for word in more {
            if !expected.contains(&word) {
                expected.push(word);
            }
        }
        prop_assert_eq!(&merged["a"], &json!(expected));
    }
}
