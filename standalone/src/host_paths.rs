//! Paths of this host that objects name, as disks and as images: refused where an object that names one is stored, and
//! once more where a VM is prepared, which also sees where links lead.

use serde_json::Value;
use vireo_apiserver::resource::Cause;
use vireo_client::Kind;
use vireo_handler::storage::{AllowedPaths, NotAllowed};
use vireo_operators::admission::host_paths::{Used, named};

/// What an object would be refused for. One whose volumes and kernel are as they were is not: it was stored when it might
/// be.
pub(crate) fn validate(allowed: &AllowedPaths, kind: Kind, new: &Value, old: Option<&Value>) -> Vec<Cause> {
    named(kind, new, old).into_iter().filter_map(|(field, used)| check(allowed, field, &used)).collect()
}

fn check(allowed: &AllowedPaths, field: String, used: &Used) -> Option<Cause> {
    let image = match used {
        Used::HostDisk(path) => {
            let why = allowed.check_host_disk(path).err()?;
            let field = match why {
                NotAllowed::NoHostDisks => field,
                _ => format!("{field}.hostDisk.path"),
            };
            return Some(Cause::invalid(field, why.to_string()));
        }
        Used::Image(image) => image,
    };
    let why = match image.path() {
        Some(path) => allowed.check_image(path).err()?,
        None if image.is_local_name() => allowed.check_named_image().err()?,
        None => return None,
    };
    Some(Cause::invalid(field, format!("Invalid value: \"{image}\": {why}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_handler::storage::AllowedDirectories;

    use super::*;

    fn allowed(directories: &[&str]) -> AllowedPaths {
        let named_images: Vec<_> = directories.iter().map(Into::into).collect();
        let directories = AllowedDirectories::Below(named_images.clone());
        AllowedPaths { host_disks: directories.clone(), images: directories, named_images }
    }

    #[test]
    fn files_are_validated_by_the_allowed_directories() {
        let vmi = json!({"spec": {"volumes": [{"name": "a", "emptyDisk": {"capacity": "1Gi"}},
            {"name": "b", "hostDisk": {"path": "/etc/shadow", "type": "Disk"}}]}});
        let causes = validate(&allowed(&[]), Kind::VMI, &vmi, None);
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert_eq!(causes[0].field, "spec.volumes[1]");
        assert!(causes[0].message.starts_with("HostDisk feature gate is not enabled"), "{causes:?}");
        let causes = validate(&allowed(&["/srv"]), Kind::VMI, &vmi, None);
        assert_eq!(causes[0].field, "spec.volumes[1].hostDisk.path");
        assert_eq!(validate(&AllowedPaths::any(), Kind::VMI, &vmi, None), []);
        assert_eq!(validate(&allowed(&[]), Kind::VMI, &vmi, Some(&vmi)), [], "it was stored before");
    }

    #[test]
    fn images_are_validated_wherever_a_vmi_names_them() {
        let spec = json!({
            "domain": {"firmware": {"kernelBoot": {"container": {"image": "oci-archive:/etc/shadow:v1"}}}},
            "volumes": [{"name": "a", "containerDisk": {"image": "oci:/srv/a"}},
                {"name": "b", "containerDisk": {"image": "oci:/var/lib"}},
                {"name": "c", "containerDisk": {"image": "registry.example/c:1"}}],
        });
        let vmi = json!({"spec": spec});
        let causes = validate(&allowed(&["/srv"]), Kind::VMI, &vmi, None);
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
                    "spec.domain.firmware.kernelBoot.container.image",
                    "Invalid value: \"oci-archive:/etc/shadow:v1\": /etc/shadow is not below a directory of --images: /srv"
                ),
            ]
        );
        assert_eq!(validate(&AllowedPaths::any(), Kind::VMI, &vmi, None), []);
    }

    #[test]
    fn images_with_local_names_need_a_directory() {
        let vmi = json!({"spec": {
            "domain": {"firmware": {"kernelBoot": {"container": {"image": "localhost/vireo/kernel:1"}}}},
            "volumes": [{"name": "a", "containerDisk": {"image": "localhost/vireo/guest@sha256:00ff"}},
                {"name": "b", "containerDisk": {"image": "localhost:5000/vireo/guest:1"}}],
        }});
        let causes = validate(&allowed(&[]), Kind::VMI, &vmi, None);
        let fields: Vec<_> = causes.iter().map(|cause| cause.field.as_str()).collect();
        let kernel = "spec.domain.firmware.kernelBoot.container.image";
        assert_eq!(fields, ["spec.volumes[0].containerDisk.image", kernel]);
        let message = "Invalid value: \"localhost/vireo/kernel:1\": localhost is no registry: start vireo with --images DIR";
        assert!(causes[1].message.starts_with(message), "{causes:?}");
        assert_eq!(validate(&allowed(&["/srv"]), Kind::VMI, &vmi, None), []);
        assert_eq!(validate(&allowed(&[]), Kind::VMI, &vmi, Some(&vmi)), [], "it was stored before");
    }
}
