//! Devices of a VMI.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::fields::{Fields, existing, fill, get, items, names, object};

/// The name of the interface and the network of VMIs that have neither.
const NETWORK: &str = "default";
/// How a volume is shown.
const TARGETS: [&str; 3] = ["disk", "cdrom", "lun"];
/// The bus of disks; KubeVirt's for amd64.
const BUS: &str = "sata";
/// The only bus that a LUN can be on. KubeVirt writes the one of disks, with which such a VM does not start.
const LUN_BUS: &str = "scsi";

/// `binding` is that of the interface on the pod network that VMIs without interfaces get.
pub(super) fn set_defaults(spec: &mut Fields, binding: &str) {
    let without_disk = without_disk(spec);
    let has_network = has_some(spec, "networks") || has_some(spec, "domain.devices.interfaces");
    let is_off = get(spec, "domain.devices.autoattachPodInterface") == Some(&Value::Bool(false));
    if !has_network && !is_off {
        spec.insert("networks".to_owned(), json!([{"name": NETWORK, "pod": {}}]));
    }
    let Some(devices) = object(spec, "domain").and_then(|domain| object(domain, "devices")) else { return };
    if !has_network && !is_off {
        devices.insert("interfaces".to_owned(), json!([{"name": NETWORK, binding: {}}]));
    }
    if !without_disk.is_empty() {
        fill(devices, "disks", Vec::<Value>::new());
        if let Some(disks) = devices.get_mut("disks").and_then(Value::as_array_mut) {
            disks.extend(without_disk);
        }
    }
    items(devices, "disks").for_each(disk);
    for input in items(devices, "inputs") {
        fill(input, "bus", "usb");
    }
    if let Some(watchdog) = existing(devices, "watchdog").and_then(|one| existing(one, "i6300esb")) {
        fill(watchdog, "action", "reset");
    }
}

fn has_some(spec: &Fields, list: &str) -> bool {
    get(spec, list).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

/// Disks for the volumes that neither a disk nor a filesystem shows. Answer files are on a CD-ROM, where Windows looks for
/// them.
fn without_disk(spec: &Fields) -> Vec<Value> {
    let shown = ["domain.devices.disks", "domain.devices.filesystems"].map(|list| names(spec, list));
    let shown: BTreeSet<String> = shown.into_iter().flatten().collect();
    let volumes = get(spec, "volumes").and_then(Value::as_array).into_iter().flatten();
    let disk = |volume: &Value| {
        let name = volume["name"].as_str().filter(|name| !shown.contains(*name))?;
        let is_sysprep = volume.get("sysprep").is_some_and(|source| !source.is_null());
        Some(if is_sysprep { json!({"name": name, "cdrom": {}}) } else { json!({ "name": name }) })
    };
    volumes.filter_map(disk).collect()
}

fn disk(disk: &mut Fields) {
    if TARGETS.iter().all(|target| get(disk, target).is_none()) {
        disk.insert("disk".to_owned(), json!({}));
    }
    for name in TARGETS {
        if let Some(target) = existing(disk, name) {
            fill(target, "bus", if name == "lun" { LUN_BUS } else { BUS });
        }
    }
    if let Some(cdrom) = existing(disk, "cdrom") {
        fill(cdrom, "readonly", true);
        fill(cdrom, "tray", "closed");
    }
}
