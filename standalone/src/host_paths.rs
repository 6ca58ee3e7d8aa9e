//! Paths of this host that objects name, as disks and as images: refused where an object that names one is stored, and
//! once more where a VM is prepared, which also sees where links lead.

use std::path::Path;

use serde_json::Value;
use vireo_api::spec::{ImageRef, NO_REGISTRY};
use vireo_apiserver::resource::{Cause, Resource};
use vireo_handler::storage::{AllowedPaths, NotAllowed};

use crate::resource::kubevirt;

/// In the spec of an instance.
const KERNEL: &str = "/domain/firmware/kernelBoot/container";

/// Where an object of a kind has the spec of an instance, if it has one.
fn instance(resource: &Resource) -> Option<&'static [&'static str]> {
    let has = |row: &'static Resource| std::ptr::eq(resource, row);
    if has(&kubevirt::VMIS) {
        Some(&["spec"])
    } else if has(&kubevirt::VMS) || has(&kubevirt::REPLICA_SETS) {
        Some(&["spec", "template", "spec"])
    } else if has(&kubevirt::POOLS) {
        Some(&["spec", "virtualMachineTemplate", "spec", "template", "spec"])
    } else {
        None
    }
}

/// What an object would be refused for. One whose volumes and kernel are as they were is not: it was stored when it might
/// be.
pub(crate) fn validate(
    allowed: &AllowedPaths,
    resource: &Resource,
    new: &Value,
    old: Option<&Value>,
) -> Vec<Cause> {
    let Some(path) = instance(resource) else { return Vec::new() };
    let of = |object: &Value, field: &str| object.pointer(&format!("/{}{field}", path.join("/"))).cloned();
    let changed = |field: &str| {
        let value = of(new, field)?;
        (old.and_then(|old| of(old, field)).as_ref() != Some(&value)).then_some(value)
    };
    let mut causes = Vec::new();
    let volumes = changed("/volumes").and_then(|volumes| volumes.as_array().cloned()).unwrap_or_default();
    for (number, volume) in volumes.iter().enumerate() {
        let field = format!("{}.volumes[{number}]", path.join("."));
        causes.extend(host_disk(allowed, volume, &field));
        causes.extend(image(allowed, volume.get("containerDisk"), &format!("{field}.containerDisk")));
    }
    let field = format!("{}.domain.firmware.kernelBoot.container", path.join("."));
    causes.extend(image(allowed, changed(KERNEL).as_ref(), &field));
    causes
}

fn host_disk(allowed: &AllowedPaths, volume: &Value, field: &str) -> Option<Cause> {
    let file = volume.pointer("/hostDisk/path")?.as_str()?;
    let why = allowed.check_host_disk(Path::new(file)).err()?;
    let field = match why {
        NotAllowed::NoHostDisks => field.to_owned(),
        _ => format!("{field}.hostDisk.path"),
    };
    Some(Cause::invalid(field, why.to_string()))
}

fn image(allowed: &AllowedPaths, container: Option<&Value>, field: &str) -> Option<Cause> {
    // What is no reference is refused for that.
    let image: ImageRef = container?.get("image")?.as_str()?.parse().ok()?;
    let Some(path) = image.path() else {
        let message = format!("Unsupported value: {:?}: {NO_REGISTRY}", image.to_string());
        return Some(Cause::unsupported(format!("{field}.image"), message));
    };
    let why = allowed.check_image(path).err()?;
    Some(Cause::invalid(format!("{field}.image"), format!("Invalid value: \"{image}\": {why}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_handler::storage::AllowedDirectories;

    use super::*;

    fn allowed(directories: &[&str]) -> AllowedPaths {
        let directories = AllowedDirectories::Below(directories.iter().map(Into::into).collect());
        AllowedPaths { host_disks: directories.clone(), images: directories }
    }

    #[test]
    fn every_object_that_makes_instances_is_judged_by_its_volumes() {
        let volumes = json!([{"name": "a", "emptyDisk": {"capacity": "1Gi"}},
            {"name": "b", "hostDisk": {"path": "/etc/shadow", "type": "Disk"}}]);
        let spec = json!({"volumes": volumes});
        let template = json!({"template": {"spec": spec}});
        let (off, some) = (allowed(&[]), allowed(&["/srv"]));
        for (row, object, at) in [
            (&kubevirt::VMIS, json!({"spec": spec}), "spec"),
            (&kubevirt::VMS, json!({"spec": template}), "spec.template.spec"),
            (&kubevirt::REPLICA_SETS, json!({"spec": template}), "spec.template.spec"),
            (
                &kubevirt::POOLS,
                json!({"spec": {"virtualMachineTemplate": {"spec": template}}}),
                "spec.virtualMachineTemplate.spec.template.spec",
            ),
        ] {
            let causes = validate(&off, row, &object, None);
            assert_eq!(causes.len(), 1, "{causes:?}");
            assert_eq!(causes[0].field, format!("{at}.volumes[1]"));
            assert!(causes[0].message.starts_with("HostDisk feature gate is not enabled"), "{causes:?}");
            let causes = validate(&some, row, &object, None);
            assert_eq!(causes[0].field, format!("{at}.volumes[1].hostDisk.path"));
            assert_eq!(validate(&AllowedPaths::any(), row, &object, None), []);
            assert_eq!(validate(&off, row, &object, Some(&object)), [], "it was stored before");
            let before = json!({"spec": {}});
            assert_eq!(validate(&off, row, &object, Some(&before)).len(), 1, "it is new");
        }
        let map = json!({"spec": spec});
        assert_eq!(validate(&off, &kubevirt::CLAIMS, &map, None), [], "no instance comes of it");
    }

    #[test]
    fn images_are_judged_wherever_an_instance_names_them() {
        let spec = json!({
            "domain": {"firmware": {"kernelBoot": {"container": {"image": "oci-archive:/etc/shadow:v1"}}}},
            "volumes": [{"name": "a", "containerDisk": {"image": "oci:/srv/a"}},
                {"name": "b", "containerDisk": {"image": "oci:/var/lib"}},
                {"name": "c", "containerDisk": {"image": "registry.example/c:1"}}],
        });
        let (vmi, vm) = (json!({"spec": spec}), json!({"spec": {"template": {"spec": spec}}}));
        let causes = validate(&allowed(&["/srv"]), &kubevirt::VMIS, &vmi, None);
        let causes: Vec<_> =
            causes.iter().map(|cause| (cause.field.as_str(), cause.message.as_str())).collect();
        assert_eq!(
            causes,
            [
                (
                    "spec.volumes[1].containerDisk.image",
                    "Invalid value: \"oci:/var/lib\": /var/lib is not below a directory of --images: /srv"
                ),
                (
                    "spec.volumes[2].containerDisk.image",
                    "Unsupported value: \"registry.example/c:1\": pulling from a registry is not available yet: use oci: or oci-archive:"
                ),
                (
                    "spec.domain.firmware.kernelBoot.container.image",
                    "Invalid value: \"oci-archive:/etc/shadow:v1\": /etc/shadow is not below a directory of --images: /srv"
                ),
            ]
        );
        let causes = validate(&allowed(&[]), &kubevirt::VMS, &vm, None);
        assert_eq!(causes.len(), 4, "{causes:?}");
        assert!(causes[0].field.starts_with("spec.template.spec.volumes[0]"), "{causes:?}");
        assert_eq!(validate(&allowed(&[]), &kubevirt::VMS, &vm, Some(&vm)), [], "it was stored before");
        let causes = validate(&AllowedPaths::any(), &kubevirt::VMS, &vm, None);
        assert_eq!(causes.len(), 1, "nothing is pulled: {causes:?}");
    }
}
