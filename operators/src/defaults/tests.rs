use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::Map;
use vireo_api::decode;
use vireo_api::spec::{Vm, VmiUid};
use vireo_api::v1::VirtualMachineInstance;

use super::*;

const UID: &str = "5d307ca9-b3ef-428c-8861-06e72d69f223";

/// What the firmware of the VMI shows that is not completed.
fn uuid() -> Uuid {
    UID.parse::<VmiUid>().unwrap().derive("firmware")
}

fn completed(spec: &Value, config: &ClusterConfig) -> Value {
    let mut spec = spec.as_object().unwrap().clone();
    set_defaults(&mut spec, config, uuid());
    let once = spec.clone();
    set_defaults(&mut spec, config, Uuid::nil());
    assert_eq!(spec, once, "to do it again changes nothing");
    Value::Object(spec)
}

fn decoded(spec: &Value) -> decode::Decoded<VirtualMachineInstance> {
    decode::object(json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "web", "namespace": "n", "uid": UID}, "spec": spec}))
}

fn vm(spec: &Value) -> Vm {
    decoded(spec).check().unwrap_or_else(|report| panic!("{spec}\n{report}"))
}

/// The spec of a VMI with the smallest domain and these changes.
fn spec(change: Value) -> Value {
    let mut spec = json!({"domain": {"memory": {"guest": "64Mi"}}});
    json_patch::merge(&mut spec, &change);
    spec
}

fn domain(change: Value) -> Value {
    spec(json!({ "domain": change }))
}

/// What every VMI gets that sets nothing.
fn usual() -> Value {
    json!({
        "architecture": "amd64", "evictionStrategy": "None",
        "networks": [{"name": "default", "pod": {}}],
        "domain": {
            "machine": {"type": "q35"}, "memory": {"guest": "64Mi"},
            "cpu": {"cores": 1, "sockets": 1, "threads": 1, "model": "host-model"},
            "firmware": {"uuid": uuid().to_string()}, "features": {"acpi": {"enabled": true}},
            "devices": {"interfaces": [{"name": "default", "masquerade": {}}]},
        },
    })
}

/// What is stored of a VMI: the usual, with these changes.
fn stored(change: Value) -> Value {
    let mut stored = usual();
    json_patch::merge(&mut stored, &change);
    stored
}

fn devices(change: Value) -> Value {
    json!({"domain": {"devices": change}})
}

/// Specs, and the changes of what is usual that are stored of them.
fn cases() -> Vec<(Value, Value)> {
    let volumes = json!([{"name": "root", "containerDisk": {"image": "oci:/images/x"}},
        {"name": "data", "emptyDisk": {"capacity": "1Gi"}}]);
    let policy = |image: &str| {
        let of = |more: Value| {
            let mut disk = json!({ "image": image });
            json_patch::merge(&mut disk, &more);
            json!([{"name": "root", "containerDisk": disk}])
        };
        let expected = if image.ends_with(":latest") || image == "linux" { "Always" } else { "IfNotPresent" };
        let mut stored = devices(json!({"disks": [{"name": "root", "disk": {"bus": "sata"}}]}));
        stored["volumes"] = of(json!({"imagePullPolicy": expected}));
        (spec(json!({"volumes": of(json!({}))})), stored)
    };
    let resources = |resources: Value| domain(json!({"memory": null, "resources": resources}));
    vec![
        (spec(json!({})), json!({})),
        (
            spec(json!({"architecture": "amd64", "evictionStrategy": "External"})),
            json!({"evictionStrategy": "External"}),
        ),
        (
            domain(json!({"machine": {"type": "pc-q35-9.0"}})),
            json!({"domain": {"machine": {"type": "pc-q35-9.0"}}}),
        ),
        // Resources.
        (
            resources(json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}})),
            json!({"domain": {"memory": {"guest": "1Gi"},
                "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}}}),
        ),
        (
            resources(json!({"limits": {"memory": "2Gi", "cpu": "1500m"}})),
            json!({"domain": {"memory": {"guest": "2Gi"}, "cpu": {"sockets": 2},
                "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "2Gi", "cpu": "1500m"}}}}),
        ),
        (
            domain(json!({"resources": {"requests": {"cpu": 3}}})),
            json!({"domain": {"cpu": {"sockets": 3}, "resources": {"requests": {"cpu": 3}}}}),
        ),
        (
            domain(json!({"cpu": {"cores": 0, "sockets": null}, "resources": {"limits": {"cpu": "2"}}})),
            json!({"domain": {"cpu": {"sockets": 2},
                "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}}}),
        ),
        (
            domain(
                json!({"cpu": {"cores": 2, "model": "host-passthrough"}, "resources": {"limits": {"cpu": "4"}}}),
            ),
            json!({"domain": {"cpu": {"cores": 2, "sockets": null, "threads": null, "model": "host-passthrough"},
                "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "4"}}}}),
        ),
        // Networks.
        (
            spec(devices(json!({"autoattachPodInterface": false}))),
            json!({"networks": null, "domain": {"devices": {"interfaces": null, "autoattachPodInterface": false}}}),
        ),
        (
            spec(json!({"networks": [{"name": "a", "pod": {}}],
                "domain": {"devices": {"interfaces": [{"name": "a", "masquerade": {}}]}}})),
            json!({"networks": [{"name": "a", "pod": {}}],
                "domain": {"devices": {"interfaces": [{"name": "a", "masquerade": {}}]}}}),
        ),
        (spec(json!({"networks": [], "domain": {"devices": {"interfaces": []}}})), json!({})),
        // Disks.
        (
            spec(
                json!({"volumes": volumes, "domain": {"devices": {"disks": [{"name": "data", "disk": {"bus": "virtio"}}]}}}),
            ),
            json!({"volumes": [{"name": "root", "containerDisk": {"image": "oci:/images/x", "imagePullPolicy": "IfNotPresent"}},
                    {"name": "data", "emptyDisk": {"capacity": "1Gi"}}],
                "domain": {"devices": {"disks": [
                    {"name": "data", "disk": {"bus": "virtio"}}, {"name": "root", "disk": {"bus": "sata"}}]}}}),
        ),
        (
            spec(json!({"volumes": [{"name": "data", "emptyDisk": {"capacity": "1Gi"}}],
                "domain": {"devices": {"disks": [{"name": "data", "serial": "1"}, {"name": "drive", "cdrom": {}}]}}})),
            json!({"volumes": [{"name": "data", "emptyDisk": {"capacity": "1Gi"}}],
                "domain": {"devices": {"disks": [{"name": "data", "serial": "1", "disk": {"bus": "sata"}},
                    {"name": "drive", "cdrom": {"bus": "sata", "readonly": true, "tray": "closed"}}]}}}),
        ),
        (
            spec(json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
                "domain": {"devices": {"disks": [{"name": "data", "lun": {}}]}}})),
            json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
                "domain": {"devices": {"disks": [{"name": "data", "lun": {"bus": "scsi"}}]}}}),
        ),
        (
            spec(json!({"volumes": [{"name": "answers", "sysprep": {"secret": {"name": "s"}}}]})),
            json!({"volumes": [{"name": "answers", "sysprep": {"secret": {"name": "s"}}}],
                "domain": {"devices": {"disks": [
                    {"name": "answers", "cdrom": {"bus": "sata", "readonly": true, "tray": "closed"}}]}}}),
        ),
        policy("registry.example/a/linux:latest"),
        policy("registry.example/a/linux:1"),
        policy("linux"),
        policy("linux@sha256:00"),
        // Types.
        (
            domain(json!({
                "features": {"apic": {}, "smm": {}, "acpi": null},
                "clock": {"timer": {"hpet": {"present": false}, "pit": {}, "rtc": {}, "kvm": {}}},
                "firmware": {"serial": "1"},
            })),
            json!({"domain": {
                "features": {"apic": {"enabled": true}, "smm": {"enabled": true}},
                "clock": {"timer": {"hpet": {"present": false}, "pit": {"present": true}, "rtc": {"present": true},
                    "kvm": {"present": true}}},
                "firmware": {"serial": "1"},
            }}),
        ),
        (
            spec(devices(
                json!({"inputs": [{"name": "t", "type": "tablet"}], "watchdog": {"name": "w", "i6300esb": {}}}),
            )),
            devices(json!({"inputs": [{"name": "t", "type": "tablet", "bus": "usb"}],
                "watchdog": {"name": "w", "i6300esb": {"action": "reset"}}})),
        ),
        (
            spec(
                json!({"readinessProbe": {"guestAgentPing": {}, "periodSeconds": 0, "failureThreshold": 5}}),
            ),
            json!({"readinessProbe": {"guestAgentPing": {}, "timeoutSeconds": 1, "periodSeconds": 10,
                "successThreshold": 1, "failureThreshold": 5}}),
        ),
    ]
}

#[test]
fn what_is_not_set_is_stored() {
    for (given, change) in cases() {
        assert_eq!(completed(&given, &ClusterConfig::default()), stored(change), "{given}");
    }
}

#[test]
fn a_guest_does_not_change_by_it() {
    for (given, _) in cases() {
        assert_eq!(vm(&completed(&given, &ClusterConfig::default())), vm(&given), "{given}");
    }
}

/// Fragments that are not valid, alone or with others.
fn odd() -> Vec<Value> {
    vec![
        domain(json!({"cpu": {"cores": 200, "threads": 2}})),
        domain(json!({"cpu": {"sockets": 3, "maxSockets": 2}})),
        domain(json!({"memory": {"maxGuest": "96Mi"}})),
        domain(json!({"memory": null, "resources": {"requests": {"memory": "128Mi"}}})),
        domain(json!({"features": {"acpi": {"enabled": false}}})),
        domain(json!({"machine": {"type": "virt"}})),
        spec(devices(json!({"disks": [{"name": "root", "lun": {}}]}))),
        spec(devices(json!({"interfaces": [{"name": "default", "bridge": {}}]}))),
        spec(
            json!({"volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "c", "readOnly": true}}]}),
        ),
        spec(json!({"volumes": [{"name": "root"}], "evictionStrategy": "Maybe"})),
        spec(json!({"livenessProbe": {"guestAgentPing": {}, "successThreshold": 2}})),
    ]
}

proptest! {
    #[test]
    fn mixed_specs_are_accepted_as_before(parts in subsequence((0..64).collect::<Vec<usize>>(), 0..6)) {
        let fragments: Vec<Value> = cases().into_iter().map(|(given, _)| given).chain(odd()).collect();
        let mut given = spec(json!({}));
        for part in parts {
            json_patch::merge(&mut given, &fragments[part % fragments.len()]);
        }
        let after = decoded(&completed(&given, &ClusterConfig::default())).check();
        match decoded(&given).check() {
            Ok(before) => prop_assert_eq!(after, Ok(before)),
            Err(_) => prop_assert!(after.is_err(), "{}", given),
        }
    }
}

/// The specs of VMIs in the manifests of a directory, valid or not.
fn examples(directory: &Path) -> Vec<(PathBuf, Value)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(examples(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let Ok(documents) = decode::documents(&fs::read_to_string(&path).unwrap()) else { continue };
            for document in documents {
                let pointer = match document["kind"].as_str() {
                    Some("VirtualMachineInstance") => "/spec",
                    Some("VirtualMachine" | "VirtualMachineInstanceReplicaSet") => "/spec/template/spec",
                    Some("VirtualMachinePool") => "/spec/virtualMachineTemplate/spec/template/spec",
                    _ => continue,
                };
                found.extend(document.pointer(pointer).map(|spec| (path.clone(), spec.clone())));
            }
        }
    }
    found
}

#[test]
fn what_is_not_valid_stays_so_and_what_is_means_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let found = [examples(&root.join("examples")), examples(&root.join("api/tests/golden"))].concat();
    let mut valid = 0;
    for (path, spec) in &found {
        let after = decoded(&completed(spec, &ClusterConfig::default())).check();
        match decoded(spec).check() {
            Ok(before) => {
                assert_eq!(after.unwrap_or_else(|report| panic!("{}\n{report}", path.display())), before);
                valid += 1;
            }
            Err(_) => assert!(after.is_err(), "{}", path.display()),
        }
    }
    assert!(valid > 10 && found.len() > valid, "{valid} of {}", found.len());
}

#[test]
fn a_cluster_has_its_own_defaults() {
    let config = ClusterConfig {
        machine_type: "pc-q35-9.0".to_owned(),
        cpu_model: "host-passthrough".to_owned(),
        cpu_request: Some(Quantity("500m".to_owned())),
        eviction_strategy: "LiveMigrate".to_owned(),
        ..ClusterConfig::default()
    };
    let expected = stored(json!({"evictionStrategy": "LiveMigrate", "domain": {
        "machine": {"type": "pc-q35-9.0"}, "cpu": {"model": "host-passthrough"},
        "resources": {"requests": {"cpu": "500m"}},
    }}));
    assert_eq!(completed(&spec(json!({})), &config), expected);
    let own = json!({"evictionStrategy": "None", "domain": {"machine": {"type": "q35"},
        "cpu": {"model": "host-model"}, "resources": {"limits": {"cpu": "1"}}}});
    let requested = json!({"domain": {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}});
    assert_eq!(completed(&spec(own), &config), stored(requested), "what a VMI sets");
    let dedicated = completed(&domain(json!({"cpu": {"dedicatedCpuPlacement": true}})), &config);
    assert_eq!(dedicated["domain"].get("resources"), None);
}

#[test]
fn an_update_that_differs_by_defaults_alone_leaves_what_is_stored() {
    let config = ClusterConfig { eviction_strategy: "LiveMigrate".to_owned(), ..ClusterConfig::default() };
    let volumes = json!([{"name": "root", "containerDisk": {"image": "linux:1"}}]);
    let given = spec(json!({ "volumes": volumes }));
    let stored = json!({"spec": completed(&given, &ClusterConfig::default())});
    let kept = |new: Value, old: &Value| {
        let mut new = json!({ "spec": new });
        keep_stored(&mut new, old, &config);
        new
    };
    assert_eq!(kept(given.clone(), &stored), stored, "the manifest as a whole");
    let mut merged = stored["spec"].clone();
    merged["volumes"] = volumes;
    merged["domain"]["devices"]["disks"] = json!([]);
    assert_eq!(kept(merged, &stored), stored, "its lists");
    let earlier = json!({"spec": given});
    let mut merged = given.clone();
    merged["domain"]["devices"] = json!({"disks": []});
    assert_eq!(kept(merged, &earlier), earlier, "what an earlier release stored");
    let mut larger = given.clone();
    larger["domain"]["memory"]["guest"] = json!("128Mi");
    assert_eq!(kept(larger.clone(), &stored), json!({ "spec": larger }));
    for odd in
        [json!("x"), json!({"domain": "x"}), json!({"domain": {"devices": [1], "cpu": 2}, "volumes": {}})]
    {
        assert_eq!(kept(odd.clone(), &stored), json!({ "spec": odd }));
    }
}

#[test]
fn the_template_of_a_vm_has_an_identity_and_a_machine() {
    let config = ClusterConfig { machine_type: "pc-q35-9.0".to_owned(), ..ClusterConfig::default() };
    let filled = |template: Value, preference: Option<&Value>, identity: &Identity| {
        let mut template = template.as_object().cloned().unwrap_or_else(Map::new);
        fill_template(&mut template, preference, &config, identity);
        Value::Object(template)
    };
    let new = filled(json!({"spec": {"domain": {"memory": {}}}}), None, &Identity::new(None));
    let firmware = new["spec"]["domain"]["firmware"].clone();
    assert_ne!(firmware["uuid"], firmware["serial"]);
    for text in [&firmware["uuid"], &firmware["serial"]] {
        assert_eq!(text.as_str().unwrap().parse::<Uuid>().unwrap().get_version_num(), 4);
    }
    let domain = json!({"memory": {}, "machine": {"type": "pc-q35-9.0"}, "firmware": firmware});
    assert_eq!(new, json!({"spec": {"architecture": "amd64", "domain": domain}}));
    assert_eq!(filled(new.clone(), None, &Identity::new(None)), new, "again");

    let known = Identity::new(Some(&json!({"spec": {"template": new}})));
    let replaced = filled(json!({"spec": {"domain": {"memory": {}}}}), None, &known);
    assert_eq!(replaced, new, "a VM keeps its identity");
    let own = filled(json!({"spec": {"domain": {"firmware": {"serial": "1"}}}}), None, &known);
    let expected = json!({"uuid": firmware["uuid"], "serial": "1"});
    assert_eq!(own["spec"]["domain"]["firmware"], expected);
    let earlier = Identity::new(Some(&json!({"spec": {"template": {"spec": {"domain": {}}}}})));
    let updated = filled(json!({"spec": {"domain": {}}}), None, &earlier);
    assert_eq!(updated["spec"]["domain"].get("firmware"), None, "that of an earlier release has none");

    let preference = json!({"preferredArchitecture": "arm64", "machine": {"preferredMachineType": "q35"}});
    let preferred = filled(json!({}), Some(&preference), &earlier);
    assert_eq!(preferred, json!({"spec": {"architecture": "arm64", "domain": {"machine": {"type": "q35"}}}}));
}
