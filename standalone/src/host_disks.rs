//! Files of this machine as disks of VMs: refused where an object that wants one is stored, and once more where the disk is
//! prepared, which also sees where links lead.

use std::path::Path;

use serde_json::Value;
use vireo_handler::storage::{HostDisks, NotAllowed};

use crate::place;
use crate::resource::{Cause, Resource};

/// Where an object of a kind has the spec of an instance, if it has one.
fn instance(resource: &Resource) -> Option<&'static [&'static str]> {
    let has = |row: &'static Resource| std::ptr::eq(resource, row);
    if has(place::vmis()) {
        Some(&["spec"])
    } else if has(place::vms()) || has(place::replica_sets()) {
        Some(&["spec", "template", "spec"])
    } else if has(place::pools()) {
        Some(&["spec", "virtualMachineTemplate", "spec", "template", "spec"])
    } else {
        None
    }
}

/// What an object would be refused for. One whose volumes are as they were is not: it was stored when it might be.
pub(crate) fn judge(
    allowed: &HostDisks,
    resource: &Resource,
    new: &Value,
    old: Option<&Value>,
) -> Vec<Cause> {
    let Some(path) = instance(resource) else { return Vec::new() };
    let of = |object: &Value| {
        object.pointer(&format!("/{}/volumes", path.join("/"))).and_then(Value::as_array).cloned()
    };
    let Some(volumes) = of(new) else { return Vec::new() };
    if old.and_then(of).is_some_and(|before| before == volumes) {
        return Vec::new();
    }
    let refused = volumes.iter().enumerate().filter_map(|(number, volume)| {
        let file = volume.pointer("/hostDisk/path")?.as_str()?;
        let why = allowed.judge(Path::new(file)).err()?;
        let volume = format!("{}.volumes[{number}]", path.join("."));
        let field = match why {
            NotAllowed::Off => volume,
            NotAllowed::Elsewhere { .. } => format!("{volume}.hostDisk.path"),
        };
        Some(Cause::invalid(field, why.to_string()))
    });
    refused.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_object_that_makes_instances_is_judged_by_its_volumes() {
        let volumes = json!([{"name": "a", "emptyDisk": {"capacity": "1Gi"}},
            {"name": "b", "hostDisk": {"path": "/etc/shadow", "type": "Disk"}}]);
        let spec = json!({"volumes": volumes});
        let template = json!({"template": {"spec": spec}});
        let (off, some) = (HostDisks::Below(Vec::new()), HostDisks::Below(vec!["/srv".into()]));
        for (row, object, at) in [
            (place::vmis(), json!({"spec": spec}), "spec"),
            (place::vms(), json!({"spec": template}), "spec.template.spec"),
            (place::replica_sets(), json!({"spec": template}), "spec.template.spec"),
            (
                place::pools(),
                json!({"spec": {"virtualMachineTemplate": {"spec": template}}}),
                "spec.virtualMachineTemplate.spec.template.spec",
            ),
        ] {
            let told = judge(&off, row, &object, None);
            assert_eq!(told.len(), 1, "{told:?}");
            assert_eq!(told[0].field, format!("{at}.volumes[1]"));
            assert!(told[0].message.starts_with("HostDisk feature gate is not enabled"), "{told:?}");
            let told = judge(&some, row, &object, None);
            assert_eq!(told[0].field, format!("{at}.volumes[1].hostDisk.path"));
            assert_eq!(judge(&HostDisks::Anywhere, row, &object, None), []);
            assert_eq!(judge(&off, row, &object, Some(&object)), [], "it was stored before");
            let before = json!({"spec": {}});
            assert_eq!(judge(&off, row, &object, Some(&before)).len(), 1, "it is new");
        }
        let map = json!({"spec": spec});
        assert_eq!(judge(&off, place::claims(), &map, None), [], "no instance comes of it");
    }
}
