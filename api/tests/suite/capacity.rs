//! Limits on the devices of a VM, and their messages.

use serde_json::{Value, json};
use vireo_api::spec::Cause::TooMany;

use super::manifest::{changed, good};

/// Disks on a bus, a change to the manifest, and the field and message of its problem.
type Row<'a> = (&'a [(&'a str, usize)], Value, Option<(&'a str, &'a str)>);

/// The good manifest with so many more disks on these buses, and a change to it.
fn with_disks(buses: &[(&str, usize)], change: Value) -> Result<(), (String, String)> {
    let mut spec = good()["spec"].take();
    for (bus, count) in buses {
        for index in 0..*count {
            let name = format!("{bus}-{index}");
            let disk = json!({"name": name, "disk": {"bus": bus}});
            let volume = json!({"name": name, "emptyDisk": {"capacity": "1Mi"}});
            spec["domain"]["devices"]["disks"].as_array_mut().unwrap().push(disk);
            spec["volumes"].as_array_mut().unwrap().push(volume);
        }
    }
    super::manifest::merge(&mut spec, change["spec"].clone());
    let mut manifest = json!({"spec": spec});
    if let Some(metadata) = change.get("metadata") {
        manifest["metadata"] = metadata.clone();
    }
    let Err(report) = changed(manifest).check_request() else { return Ok(()) };
    assert!(report.problems().iter().all(|problem| problem.cause() == TooMany), "{report}");
    let problem = &report.problems()[0];
    Err((problem.field().to_string(), problem.message().to_owned()))
}

#[test]
fn a_bus_has_room_for_so_many_disks() {
    let disks = "spec.domain.devices.disks";
    let domain = |domain: Value| json!({"spec": {"domain": domain}});
    let devices = |devices: Value| domain(json!({"devices": devices}));
    let native = json!({"spec": {}, "metadata": {"annotations": {"vireo.io/hypervisor": "native"}}});
    let plain = || json!({"spec": {}});
    // The good manifest has 2 virtio disks, a NIC, a balloon, a SCSI controller for volumes that are plugged in and a
    // port for the agent: that leaves 25 slots of 8 disks.
    let rows: Vec<Row> = vec![
        (&[("virtio", 58)], plain(), None),
        (&[("virtio", 198)], plain(), None),
        (
            &[("virtio", 199)],
            plain(),
            Some((disks, "Too many: 201: must have at most 200 items on the bus virtio")),
        ),
        // Each further device has a slot, and so have six SATA disks beyond the first six.
        (
            &[("virtio", 191)],
            devices(json!({"rng": {}})),
            Some((disks, "Too many: 193: must have at most 192 items on the bus virtio")),
        ),
        (&[("virtio", 190), ("sata", 7)], plain(), None),
        (
            &[("virtio", 191), ("sata", 7)],
            plain(),
            Some((disks, "Too many: 193: must have at most 192 items on the bus virtio")),
        ),
        (&[("virtio", 198), ("scsi", 56)], plain(), None),
        (&[("scsi", 254)], plain(), None),
        (&[("scsi", 255)], plain(), Some((disks, "Too many: 257: must have at most 256 items"))),
        (&[("usb", 32)], plain(), None),
        (&[("usb", 33)], plain(), Some((disks, "Too many: 33: must have at most 32 items on the bus usb"))),
        (&[("sata", 150)], plain(), None),
        (
            &[("sata", 162)],
            plain(),
            Some(("spec.domain.devices", "Too many: 30: must have at most 29 items on the PCI bus")),
        ),
        // Native has a slot for each, and one SATA controller.
        (&[("virtio", 24)], native.clone(), None),
        (
            &[("virtio", 25)],
            native.clone(),
            Some((disks, "Too many: 27: must have at most 26 items on the bus virtio")),
        ),
        (&[("sata", 6)], native.clone(), None),
        (
            &[("sata", 7)],
            native,
            Some((
                disks,
                "Too many: 7: must have at most 6 items on the bus sata with the hypervisor native",
            )),
        ),
    ];
    for (buses, change, expected) in rows {
        let problem = with_disks(buses, change.clone()).err();
        let expected = expected.map(|(field, text)| (field.to_owned(), text.to_owned()));
        assert_eq!(problem, expected, "{buses:?} {change}");
    }
}

#[test]
fn native_attaches_eight_volumes() {
    let with = |count: usize| {
        let name = |index: usize| format!("data-{index}");
        let disks = (0..count).map(|index| json!({"name": name(index), "disk": {"bus": "scsi"}}));
        let volume = |index| json!({"name": name(index), "persistentVolumeClaim": {"claimName": name(index), "hotpluggable": true}});
        let plus = |more: Vec<Value>| Value::Array([vec![json!("+")], more].concat());
        let spec = json!({
            "domain": {"devices": {"disks": plus(disks.collect())}},
            "volumes": plus((0..count).map(volume).collect()),
        });
        let metadata = json!({"annotations": {"vireo.io/hypervisor": "native"}});
        let manifest = changed(json!({"spec": spec, "metadata": metadata}));
        manifest.check_request().err().map(|report| report.problems()[0].message().to_owned())
    };
    assert_eq!(with(8), None);
    let why = "Too many: 9: must have at most 8 items that are hotpluggable with the hypervisor native";
    assert_eq!(with(9).as_deref(), Some(why));
}

#[test]
fn lists_are_as_long_as_kubevirts_at_most() {
    let many = |element: Value| Value::Array(vec![element; 257]);
    for (change, field) in [
        (json!({"volumes": many(json!({"name": "x", "emptyDisk": {"capacity": "1Mi"}}))}), "spec.volumes"),
        (json!({"networks": many(json!({"name": "x", "pod": {}}))}), "spec.networks"),
        (
            json!({"domain": {"devices": {"interfaces": many(json!({"name": "x", "masquerade": {}}))}}}),
            "spec.domain.devices.interfaces",
        ),
        (json!({"accessCredentials": many(json!({}))}), "spec.accessCredentials"),
    ] {
        let report = changed(json!({"spec": change})).check_request().unwrap_err();
        let reported = report.problems().iter().find(|problem| problem.cause() == TooMany);
        let reported = reported.map(|problem| (problem.field().as_str(), problem.message()));
        assert_eq!(reported, Some((field, "Too many: 257: must have at most 256 items")));
    }
}

#[test]
fn volumes_without_a_disk_count_as_disks() {
    let of = |drives: usize, volumes: usize| {
        let drive = |index| json!({"name": format!("d{index}"), "cdrom": {"bus": "scsi"}});
        let volume = |index| json!({"name": format!("v{index}"), "emptyDisk": {"capacity": "1Mi"}});
        let drives: Vec<Value> = (0..drives).map(drive).collect();
        let volumes: Vec<Value> = (0..volumes).map(volume).collect();
        changed(json!({"spec": {"volumes": volumes, "domain": {"devices": {"disks": drives}}}}))
            .check_request()
    };
    assert!(of(196, 60).is_ok());
    let report = of(197, 60).unwrap_err();
    let reported: Vec<_> = report.problems().iter().map(ToString::to_string).collect();
    let expected = "spec.domain.devices.disks: Too many: 257: must have at most 256 items, with those of volumes without a disk";
    assert_eq!(reported, [expected]);
}

#[test]
fn volumes_are_plugged_into_so_many_ports_and_launchers_attach_so_many_tablets() {
    let disks: Vec<Value> =
        (0..5).map(|index| json!({"name": format!("p{index}"), "disk": {"bus": "virtio"}})).collect();
    let claim = |index: usize| json!({"claimName": format!("c{index}"), "hotpluggable": true});
    let volumes: Vec<Value> = (0..5)
        .map(|index| json!({"name": format!("p{index}"), "persistentVolumeClaim": claim(index)}))
        .collect();
    let change = json!({"spec": {"domain": {"devices": {"disks": disks}}, "volumes": volumes}});
    let text = "Too many: 5: must have at most 4 items that are hotpluggable on the bus virtio";
    assert_eq!(with_disks(&[], change), Err(("spec.domain.devices.disks".to_owned(), text.to_owned())));
    let inputs: Vec<Value> =
        (0..9).map(|index| json!({"name": format!("t{index}"), "type": "tablet", "bus": "virtio"})).collect();
    let change = json!({"spec": {"domain": {"devices": {"inputs": inputs}}}});
    let text = "Too many: 9: must have at most 8 items on the bus virtio";
    assert_eq!(with_disks(&[], change), Err(("spec.domain.devices.inputs".to_owned(), text.to_owned())));
}
