//! Every text and value gets an answer, never a panic.

use proptest::prelude::*;
use serde_json::{Value, json};
use vireo_api::decode;
use vireo_api::v1::VirtualMachineInstance;

use super::manifest::good;

/// Values that manifests do not expect.
fn odd() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,12}".prop_map(Value::from),
        prop_oneof![Just(""), Just("-1"), Just("1Gi"), Just("oci:/x"), Just("../.."), Just("é")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,6}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Every path in a value.
fn pointers(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                pointers(value, format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), all);
            }
        }
        Value::Array(elements) => {
            for (index, value) in elements.iter().enumerate() {
                pointers(value, format!("{at}/{index}"), all);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    all.push(at);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        if let Ok(vmis) = decode::manifest(&text) {
            for vmi in vmis {
                let _ = vmi.check();
            }
        }
    }

    #[test]
    fn any_yaml_like_text_is_read_or_refused(text in "([ ]{0,4}(- |[a-c]: |&a |\\*a|\\[|\\]|\\{|\\}|\\||---|'|\"|\n|~|1|<<: ){0,6}\n?){0,12}") {
        if let Ok(vmis) = decode::manifest(&text) {
            for vmi in vmis {
                let _ = vmi.check();
            }
        }
    }

    #[test]
    fn a_manifest_with_strange_values_is_answered_and_what_was_understood_round_trips(
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd()), 1..6),
    ) {
        let mut value = good();
        for (path, odd) in changes {
            let mut all = Vec::new();
            pointers(&value, String::new(), &mut all);
            if let Some(target) = value.pointer_mut(path.get(all.as_slice()).as_str()) {
                *target = odd;
            }
        }
        let decoded = decode::object::<VirtualMachineInstance>(value);
        let checked = decoded.check();
        prop_assert!(decoded.mistyped().is_empty() || checked.is_err());
        if let Err(report) = checked {
            prop_assert!(!report.problems().is_empty());
        }
        let again = decode::object::<VirtualMachineInstance>(serde_json::to_value(&decoded.object).unwrap());
        prop_assert!(again.mistyped().is_empty());
        prop_assert_eq!(again.object, decoded.object);
    }
}
