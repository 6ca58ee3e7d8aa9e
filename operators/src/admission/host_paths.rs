//! Paths of a node that objects name, as disks and as images.

use std::path::PathBuf;

use serde_json::Value;
use vireo_api::spec::ImageRef;
use vireo_client::Kind;

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

/// The spec of an instance in an object.
pub(super) struct Instance<'a> {
    path: &'static [&'static str],
    new: &'a Value,
    old: Option<&'a Value>,
}

impl<'a> Instance<'a> {
    /// That of an object of a kind, if such objects have one.
    pub(super) fn of(kind: Kind, new: &'a Value, old: Option<&'a Value>) -> Option<Self> {
        let path: &[&str] = match kind {
            Kind::VMI => &["spec"],
            Kind::VM | Kind::REPLICA_SET => &["spec", "template", "spec"],
            Kind::POOL => &["spec", "virtualMachineTemplate", "spec", "template", "spec"],
            _ => return None,
        };
        Some(Self { path, new, old })
    }

    fn part_of(&self, object: &'a Value, pointer: &str) -> Option<&'a Value> {
        object.pointer(&format!("/{}{pointer}", self.path.join("/")))
    }

    /// A part of it. The pointer begins at the spec.
    pub(super) fn part(&self, pointer: &str) -> Option<&'a Value> {
        self.part_of(self.new, pointer)
    }

    /// What a part of it was. The pointer begins at the spec.
    pub(super) fn old_part(&self, pointer: &str) -> Option<&'a Value> {
        self.part_of(self.old?, pointer)
    }

    /// A part of it that is not as it was. The pointer begins at the spec.
    pub(super) fn changed(&self, pointer: &str) -> Option<&'a Value> {
        let before = self.old_part(pointer);
        self.part(pointer).filter(|value| before != Some(value))
    }

    /// The path of a field of it in the object; what precedes those paths, of an empty one.
    pub(super) fn field(&self, field: &str) -> String {
        format!("{}.{field}", self.path.join("."))
    }

    /// The volumes that it did not have, or not as they are now, with their fields.
    pub(super) fn changed_volumes(&self) -> impl Iterator<Item = (String, &'a Value)> {
        let before = self.old_part("/volumes").and_then(Value::as_array);
        let volumes = self.part("/volumes").and_then(Value::as_array).into_iter().flatten().enumerate();
        let changed = volumes.filter(move |(_, volume)| before.is_none_or(|before| !before.contains(volume)));
        changed.map(|(number, volume)| (self.field(&format!("volumes[{number}]")), volume))
    }
}

/// What an object names, each with its field. Volumes and a kernel that are as they were are left out: they were stored
/// when they might be.
pub fn named(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<(String, Used)> {
    let Some(instance) = Instance::of(kind, new, old) else { return Vec::new() };
    let mut found = Vec::new();
    for (field, volume) in instance.changed_volumes() {
        if let Some(file) = volume.pointer("/hostDisk/path").and_then(Value::as_str) {
            found.push((field.clone(), Used::HostDisk(file.into())));
        }
        found.extend(image(volume.get("containerDisk"), format!("{field}.containerDisk.image")));
    }
    found.extend(image(
        instance.changed(KERNEL),
        instance.field("domain.firmware.kernelBoot.container.image"),
    ));
    found
}

fn image(container: Option<&Value>, field: String) -> Option<(String, Used)> {
    // What is no reference is refused for that.
    let image: ImageRef = container?.get("image")?.as_str()?.parse().ok()?;
    Some((field, Used::Image(image)))
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
            let volumes = format!("/{}/volumes", at.replace('.', "/"));
            let mut plugged = object.clone();
            let list = plugged.pointer_mut(&volumes).and_then(Value::as_array_mut).unwrap();
            list.insert(0, json!({"name": "e", "hostDisk": {"path": "/srv/e.img", "type": "Disk"}}));
            let added = [(format!("{at}.volumes[0]"), Used::HostDisk("/srv/e.img".into()))];
            assert_eq!(named(kind, &plugged, Some(&object)), added, "the others were stored before");
        }
        assert_eq!(named(Kind::CLAIM, &json!({"spec": spec()}), None), [], "no instance comes of it");
    }
}
