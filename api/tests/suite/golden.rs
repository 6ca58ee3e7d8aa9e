//! Manifests survive a round trip: every field comes out as it came in, known or not.

use std::fs;
use std::path::Path;

use serde_json::Value;
use vireo_api::decode;
use vireo_api::v1::VirtualMachineInstance;

#[test]
fn golden_manifests_come_out_as_they_came_in() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut read = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        for document in decode::documents(&fs::read_to_string(&path).unwrap()).unwrap() {
            let decoded = decode::object::<VirtualMachineInstance>(document.clone());
            assert_eq!(decoded.mistyped(), [], "{}", path.display());
            let out = serde_json::to_value(&decoded.object).unwrap();
            assert_eq!(normal(out), normal(document), "{}", path.display());
            read += 1;
        }
    }
    assert!(read >= 5, "only {read} golden manifests were found");
}

/// The normal form that [`vireo_api::v1`] promises: no nulls, no empty lists or devices, quantities as text.
fn normal(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .map(|(name, value)| {
                    let quantity = matches!(name.as_str(), "memory" | "cpu" | "guest" | "capacity");
                    match value {
                        Value::Number(number) if quantity => (name, Value::String(number.to_string())),
                        value => (name, normal(value)),
                    }
                })
                .filter(|(name, value)| !is_nothing(name, value))
                .collect(),
        ),
        Value::Array(elements) => Value::Array(elements.into_iter().map(normal).collect()),
        other => other,
    }
}

fn is_nothing(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(elements) => elements.is_empty(),
        Value::Object(fields) => name == "devices" && fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[test]
fn unknown_fields_survive_at_every_level() {
    let text = include_str!("../golden/unknown-fields.yaml");
    let decoded = decode::manifest(text).unwrap().remove(0);
    let out = serde_json::to_value(&decoded.object).unwrap();
    for pointer in [
        "/future",
        "/metadata/managedFields/0/manager",
        "/spec/futureSpec/a",
        "/spec/domain/futureDomain",
        "/spec/domain/cpu/futureCpu",
        "/spec/domain/devices/disks/0/disk/futureDisk",
        "/spec/domain/devices/interfaces/0/masquerade/futureMasquerade",
        "/spec/volumes/0/futureVolume",
        "/status/conditions/0/futureCondition",
        "/status/futureStatus",
    ] {
        assert!(out.pointer(pointer).is_some(), "{pointer} is lost in\n{out:#}");
    }
    // Preserved, but not used: one of them may be the one that mattered.
    let report = decoded.check_request().unwrap_err();
    let fields: Vec<_> = report.problems().iter().map(|problem| problem.field().as_str()).collect();
    assert!(fields.contains(&"spec.domain.devices.disks[0].disk.futureDisk"), "{report}");
    assert!(!fields.iter().any(|field| field.starts_with("status") || *field == "future"), "{report}");
}
