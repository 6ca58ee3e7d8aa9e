//! Paths of a node that objects name, as disks and as images.

use std::path::PathBuf;

use serde_json::Value;
use vireo_api::spec::ImageRef;
use vireo_client::Kind;

use crate::Problem;

/// What an instance would use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Used {
    /// A file of the node, as a disk. The field is that of its volume.
    HostDisk(PathBuf),
    /// An image, as a container disk or for its kernel. The field is that of its reference.
    Image(ImageRef),
}

/// In the spec of an instance.
const KERNEL: &str = "/domain/firmware/kernelBoot/container";

/// Where an object of a kind has the spec of an instance, if it has one.
fn instance(kind: Kind) -> Option<&'static [&'static str]> {
    match kind {
        Kind::VMI => Some(&["spec"]),
        Kind::VM | Kind::REPLICA_SET => Some(&["spec", "template", "spec"]),
        Kind::POOL => Some(&["spec", "virtualMachineTemplate", "spec", "template", "spec"]),
        _ => None,
    }
}

/// What an object names, each with its field. Volumes and a kernel that are as they were are left out: they were stored
/// when they might be.
pub fn named(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<(String, Used)> {
    let Some(path) = instance(kind) else { return Vec::new() };
    let of = |object: &Value, field: &str| object.pointer(&format!("/{}{field}", path.join("/"))).cloned();
    let changed = |field: &str| {
        let value = of(new, field)?;
        (old.and_then(|old| of(old, field)).as_ref() != Some(&value)).then_some(value)
    };
    let mut found = Vec::new();
    let volumes = changed("/volumes").and_then(|volumes| volumes.as_array().cloned()).unwrap_or_default();
    for (number, volume) in volumes.iter().enumerate() {
        let field = format!("{}.volumes[{number}]", path.join("."));
        if let Some(file) = volume.pointer("/hostDisk/path").and_then(Value::as_str) {
            found.push((field.clone(), Used::HostDisk(file.into())));
        }
        found.extend(image(volume.get("containerDisk"), format!("{field}.containerDisk.image")));
    }
    let field = format!("{}.domain.firmware.kernelBoot.container.image", path.join("."));
    found.extend(image(changed(KERNEL).as_ref(), field));
    found
}

fn image(container: Option<&Value>, field: String) -> Option<(String, Used)> {
    // What is no reference is refused for that.
    let image: ImageRef = container?.get("image")?.as_str()?.parse().ok()?;
    Some((field, Used::Image(image)))
}

/// What an object is refused for in a cluster, where paths of nodes are not for the users of its API.
pub fn refuse(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<Problem> {
    let problem = |(field, used)| match used {
        Used::HostDisk(_) => Some(Problem::invalid(
            field,
            "HostDisk feature gate is not enabled: files of nodes are not available in a cluster yet: use \
             containerDisk or persistentVolumeClaim",
        )),
        Used::Image(image) => image.path().is_some().then(|| {
            let why = "images of nodes are not available in a cluster: use one of a registry";
            Problem::unsupported(field, format!("Unsupported value: \"{image}\": {why}"))
        }),
    };
    named(kind, new, old).into_iter().filter_map(problem).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> Value {
        json!({
            "domain": {"firmware": {"kernelBoot": {"container": {"image": "oci-archive:/srv/linux.tar:v1"}}}},
            "volumes": [{"name": "a", "emptyDisk": {"capacity": "1Gi"}},
                {"name": "b", "hostDisk": {"path": "/etc/shadow", "type": "Disk"}},
                {"name": "c", "containerDisk": {"image": "registry.example/c:1"}},
                {"name": "d", "containerDisk": {"image": "no reference"}}],
        })
    }

    #[test]
    fn every_object_that_makes_instances_names_what_they_use() {
        let template = json!({"template": {"spec": spec()}});
        for (kind, object, at) in [
            (Kind::VMI, json!({"spec": spec()}), "spec"),
            (Kind::VM, json!({"spec": template}), "spec.template.spec"),
            (Kind::REPLICA_SET, json!({"spec": template}), "spec.template.spec"),
            (
                Kind::POOL,
                json!({"spec": {"virtualMachineTemplate": {"spec": template}}}),
                "spec.virtualMachineTemplate.spec.template.spec",
            ),
        ] {
            let image = |text: &str| Used::Image(text.parse().unwrap());
            let all = [
                (format!("{at}.volumes[1]"), Used::HostDisk("/etc/shadow".into())),
                (format!("{at}.volumes[2].containerDisk.image"), image("registry.example/c:1")),
                (
                    format!("{at}.domain.firmware.kernelBoot.container.image"),
                    image("oci-archive:/srv/linux.tar:v1"),
                ),
            ];
            assert_eq!(named(kind, &object, None), all);
            assert_eq!(named(kind, &object, Some(&object)), [], "it was stored before");
            assert_eq!(named(kind, &object, Some(&json!({"spec": {}}))), all, "it is new");
        }
        assert_eq!(named(Kind::CLAIM, &json!({"spec": spec()}), None), [], "no instance comes of it");
    }

    #[test]
    fn in_a_cluster_images_come_from_registries() {
        let problems = refuse(Kind::VMI, &json!({"spec": spec()}), None);
        let fields: Vec<_> = problems.iter().map(|problem| problem.field.as_str()).collect();
        assert_eq!(fields, ["spec.volumes[1]", "spec.domain.firmware.kernelBoot.container.image"]);
        assert!(problems[0].message.starts_with("HostDisk feature gate is not enabled"), "{problems:?}");
        assert!(problems[1].message.contains("oci-archive:/srv/linux.tar:v1"), "{problems:?}");
    }
}
