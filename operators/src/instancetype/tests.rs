use serde_json::{Value, json};

use super::*;

fn small() -> Value {
    json!({"cpu": {"guest": 2}, "memory": {"guest": "128Mi"}})
}

fn template(spec: Value) -> Value {
    json!({"metadata": {}, "spec": spec})
}

fn conflicts(instancetype: &Value, spec: Value) -> Vec<String> {
    apply(&mut template(spec), instancetype, None).unwrap()
}

#[test]
fn an_instance_type_fills_the_template() {
    let mut one = template(json!({"domain": {"devices": {}, "cpu": {"features": [{"name": "vmx"}]}}}));
    let mut large = small();
    large["memory"]["overcommitPercent"] = json!(25);
    large["nodeSelector"] = json!({"zone": "a"});
    large["annotations"] = json!({"kind": "small"});
    large["ioThreadsPolicy"] = json!("auto");
    large["cpu"]["dedicatedCPUPlacement"] = json!(true);
    assert_eq!(apply(&mut one, &large, None), Ok(vec![]));
    let domain = &one["spec"]["domain"];
    assert_eq!(domain["cpu"]["sockets"], 2);
    assert_eq!(
        (&domain["cpu"]["features"][0]["name"], &domain["cpu"]["dedicatedCpuPlacement"]),
        (&json!("vmx"), &json!(true))
    );
    assert_eq!((&domain["memory"]["guest"], &domain["ioThreadsPolicy"]), (&json!("128Mi"), &json!("auto")));
    assert_eq!(domain["resources"]["requests"]["memory"], (96_u64 << 20).to_string());
    assert_eq!(
        (&one["spec"]["nodeSelector"]["zone"], &one["metadata"]["annotations"]["kind"]),
        (&json!("a"), &json!("small"))
    );
}

#[test]
fn fields_set_in_both_are_conflicts() {
    for (spec, expected) in [
        (json!({"domain": {"cpu": {"cores": 1}}}), vec!["spec.domain.cpu.cores"]),
        (json!({"domain": {"cpu": {"cores": 0}, "memory": {}}}), vec![]),
        (json!({"domain": {"memory": {"guest": "1Gi"}}}), vec!["spec.domain.memory.guest"]),
        (
            json!({"domain": {"resources": {"requests": {"memory": "1Gi", "cpu": 1}}}}),
            vec!["spec.domain.resources.requests.cpu", "spec.domain.resources.requests.memory"],
        ),
        (json!({"domain": {"ioThreadsPolicy": "auto"}}), vec![]),
    ] {
        assert_eq!(conflicts(&small(), spec.clone()), expected, "{spec}");
    }
    let mut more = small();
    more["ioThreadsPolicy"] = json!("shared");
    more["nodeSelector"] = json!({"zone": "a", "disk": "fast"});
    let spec = json!({"domain": {"ioThreadsPolicy": "auto"}, "nodeSelector": {"zone": "b", "disk": "fast"}});
    assert_eq!(conflicts(&more, spec), ["spec.domain.ioThreadsPolicy", "spec.nodeSelector.zone"]);
}

#[test]
fn cpu_topology_is_as_preferred() {
    let laid = |guest: u64, cpu: Value| {
        let topology = Topology::of(&json!({"cpu": {"guest": guest}}), Some(&json!({ "cpu": cpu })))?;
        Ok::<_, String>((topology.sockets, topology.cores, topology.threads))
    };
    let spread = |across: &str, ratio: u64| json!({"preferredCPUTopology": "spread", "spreadOptions": {"across": across, "ratio": ratio}});
    for (guest, cpu, expected) in [
        (4, json!({}), (4, 1, 1)),
        (4, json!({"preferredCPUTopology": "cores"}), (1, 4, 1)),
        (4, json!({"preferredCPUTopology": "preferThreads"}), (1, 1, 4)),
        (4, json!({"preferredCPUTopology": "any"}), (4, 1, 1)),
        (6, json!({"preferredCPUTopology": "spread"}), (3, 2, 1)),
        (8, spread("SocketsCoresThreads", 2), (2, 2, 2)),
        (8, spread("CoresThreads", 2), (1, 4, 2)),
        (9, spread("SocketsCores", 3), (3, 3, 1)),
    ] {
        assert_eq!(laid(guest, cpu.clone()), Ok(expected), "{cpu}");
    }
    for (guest, cpu) in [
        (3, json!({"preferredCPUTopology": "spread"})),
        (1, spread("CoresThreads", 1)),
        (4, spread("Everything", 2)),
        (4, json!({"preferredCPUTopology": "heap"})),
        (0, json!({})),
    ] {
        assert!(laid(guest, cpu.clone()).is_err(), "{cpu}");
    }
}

#[test]
fn a_preference_fills_gaps_and_nothing_else() {
    let mut one = template(json!({
        "terminationGracePeriodSeconds": 0,
        "networks": [{"name": "pod", "pod": {}}, {"name": "other", "multus": {}}],
        "domain": {"devices": {
            "disks": [{"name": "a"}, {"name": "b", "disk": {"bus": "scsi"}}, {"name": "c", "cdrom": {}}],
            "interfaces": [{"name": "pod"}, {"name": "other"}],
            "autoattachGraphicsDevice": true,
        }},
    }));
    prefer(
        &mut one,
        &json!({
            "annotations": {"os": "linux"}, "preferredTerminationGracePeriodSeconds": 60,
            "clock": {"preferredClockOffset": {"utc": {}}},
            "cpu": {"preferredCPUFeatures": [{"name": "vmx"}]},
            "machine": {"preferredMachineType": "q35"},
            "firmware": {"preferredEfi": {"secureBoot": false}},
            "devices": {"preferredDiskBus": "virtio", "preferredCdromBus": "sata", "preferredRng": {},
                "preferredInterfaceModel": "virtio", "preferredInterfaceMasquerade": {},
                "preferredAutoattachGraphicsDevice": false, "preferredDiskDedicatedIoThread": true},
        }),
    );
    let spec = &one["spec"];
    let devices = &spec["domain"]["devices"];
    assert_eq!(spec["terminationGracePeriodSeconds"], 0, "it was set");
    assert_eq!(devices["autoattachGraphicsDevice"], true);
    let buses: Vec<_> = [(0, "disk"), (1, "disk"), (2, "cdrom")]
        .iter()
        .map(|&(index, target)| devices["disks"][index][target]["bus"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(buses, ["virtio", "scsi", "sata"]);
    assert_eq!(
        (&devices["disks"][0]["dedicatedIOThread"], devices["disks"][1].get("dedicatedIOThread")),
        (&json!(true), None)
    );
    assert_eq!(
        (&devices["interfaces"][0]["masquerade"], devices["interfaces"][1].get("masquerade")),
        (&json!({}), None)
    );
    assert_eq!((&devices["rng"], &devices["interfaces"][1]["model"]), (&json!({}), &json!("virtio")));
    assert_eq!(spec["domain"]["firmware"]["bootloader"], json!({"efi": {"secureBoot": false}}));
    assert_eq!(
        (&spec["domain"]["machine"]["type"], &spec["domain"]["clock"]),
        (&json!("q35"), &json!({"utc": {}}))
    );
    assert_eq!(
        (&one["metadata"]["annotations"]["os"], &spec["domain"]["cpu"]["features"][0]["name"]),
        (&json!("linux"), &json!("vmx"))
    );
    let mut open = template(json!({}));
    prefer(&mut open, &json!({"preferredTerminationGracePeriodSeconds": 0}));
    assert_eq!(open["spec"]["terminationGracePeriodSeconds"], 0, "nothing is a time, too");
    let before = one.clone();
    prefer(&mut one, &json!({"firmware": {"preferredUseBios": true}, "annotations": {"os": "other"}}));
    assert_eq!(one, before, "filled fields are set");
}

#[test]
fn the_display_the_clock_and_confidential_computing_are_filled_where_unset() {
    let preference = json!({
        "devices": {"preferredVideoType": "virtio"},
        "preferredLaunchSecurity": {"snp": {}},
        "clock": {"preferredClockOffset": {"timezone": "UTC"}},
    });
    let filled = |spec: Value| {
        let mut one = template(spec);
        prefer(&mut one, &preference);
        one["spec"]["domain"].take()
    };
    let all = json!({"devices": {"video": {"type": "virtio"}}, "launchSecurity": {"snp": {}},
        "clock": {"timezone": "UTC"}});
    assert_eq!(filled(json!({"domain": {}})), all);
    let set = json!({"devices": {"video": {"type": "vga"}}, "launchSecurity": {"sev": {}},
        "clock": {"utc": {"offsetSeconds": 0}}});
    assert_eq!(filled(json!({"domain": set})), set);
    let blind = json!({"devices": {"autoattachGraphicsDevice": false}});
    assert_eq!(
        filled(json!({"domain": blind.clone()}))["devices"],
        blind["devices"],
        "no display has no type"
    );
}

#[test]
fn the_deprecated_ratio_counts_where_there_is_no_other() {
    let topology = |preference: Value| Topology::of(&json!({"cpu": {"guest": 12}}), Some(&preference));
    let mut preference =
        json!({"preferSpreadSocketToCoreRatio": 3, "cpu": {"preferredCPUTopology": "spread"}});
    assert_eq!(topology(preference.clone()), Ok(Topology { sockets: 4, cores: 3, threads: 1 }));
    preference["cpu"]["spreadOptions"] = json!({"ratio": 4});
    assert_eq!(topology(preference.clone()), Ok(Topology { sockets: 3, cores: 4, threads: 1 }));
    preference["cpu"]["spreadOptions"] = json!({});
    preference["preferSpreadSocketToCoreRatio"] = json!(0);
    assert_eq!(topology(preference), Ok(Topology { sockets: 6, cores: 2, threads: 1 }), "the default");
}

#[test]
fn a_preference_may_have_requirements() {
    let has = template(json!({"domain": {"cpu": {"sockets": 2}, "memory": {"guest": "1Gi"}}}));
    let lacks = |requirements: Value| -> Vec<String> {
        let lacks = missing(&has, &json!({ "requirements": requirements }));
        lacks.into_iter().map(|(field, _)| field).collect()
    };
    assert!(
        lacks(json!({"cpu": {"guest": 2}, "memory": {"guest": "1024Mi"}, "architecture": "amd64"}))
            .is_empty()
    );
    assert_eq!(
        lacks(json!({"cpu": {"guest": 3}, "memory": {"guest": "2Gi"}, "architecture": "arm64"})),
        ["spec.domain.cpu", "spec.domain.memory", "spec.architecture"]
    );
}

#[test]
fn kinds_are_read_as_people_write_them() {
    use Choice::{Instancetype, Preference};
    for (choice, kind, expected) in [
        (Instancetype, "", Some(Scope::Cluster)),
        (Instancetype, "virtualmachineinstancetypes", Some(Scope::Namespaced)),
        (Instancetype, "VirtualMachineClusterInstancetype", Some(Scope::Cluster)),
        (Preference, "VirtualMachinePreference", Some(Scope::Namespaced)),
        (Preference, "VirtualMachineInstancetype", None),
    ] {
        assert_eq!(choice.scope(kind), expected, "{kind}");
    }
}
