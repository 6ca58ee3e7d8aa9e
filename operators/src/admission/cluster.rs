//! What is not available in a cluster yet, or not for the users of its API.

use serde_json::Value;
use vireo_client::Kind;

use super::host_paths::{Used, named};
use crate::Problem;

/// What an object is refused for. What is as it was is not refused: it was stored when it might be.
pub fn validate(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<Problem> {
    named(kind, new, old).into_iter().filter_map(path_of_node).collect()
}

/// Paths of nodes are not for those who create instances.
fn path_of_node((field, used): (String, Used)) -> Option<Problem> {
    match used {
        Used::HostDisk(_) => Some(Problem::invalid(
            field,
            "HostDisk feature gate is not enabled: files of nodes are not available in a cluster yet: use \
             containerDisk or persistentVolumeClaim",
        )),
        Used::Image(image) => image.path().is_some().then(|| {
            let why = "images of nodes are not available in a cluster: use one of a registry";
            Problem::unsupported(field, format!("Unsupported value: \"{image}\": {why}"))
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_cluster_lacks_is_refused_by_field() {
        let vm = json!({"spec": {"template": {"spec": {
            "domain": {"firmware": {
                "kernelBoot": {"container": {"image": "oci-archive:/srv/linux.tar:v1"}},
            }},
            "volumes": [{"name": "a", "emptyDisk": {"capacity": "1Gi"}},
                {"name": "b", "hostDisk": {"path": "/etc/shadow", "type": "Disk"}},
                {"name": "c", "containerDisk": {"image": "registry.example/c:1"}},
                {"name": "d", "persistentVolumeClaim": {"claimName": "d", "hotpluggable": true}}],
        }}}});
        let problems = validate(Kind::VM, &vm, None);
        let found: Vec<_> =
            problems.iter().map(|problem| (problem.field.as_str(), problem.message.as_str())).collect();
        for ((field, message), (expected, part)) in found.iter().zip([
            ("volumes[1]", "HostDisk feature gate is not enabled"),
            ("domain.firmware.kernelBoot.container.image", "oci-archive:/srv/linux.tar:v1"),
        ]) {
            assert_eq!(*field, format!("spec.template.spec.{expected}"));
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(validate(Kind::VM, &vm, Some(&vm)), [], "it was stored before");
        assert_eq!(validate(Kind::CLAIM, &vm, None), [], "no instance comes of it");
    }
}
