//! KubeVirt objects: which of their settings are valid, and which have no effect.

use serde_json::Value;
use vireo_api::decode;
use vireo_api::v1::{KubeVirt, Shape as _};

use super::vm::{mistyped, without_status};
use crate::Problem;
use crate::certificates::Strategy;

/// Deletes VMs and VMIs with the installation.
pub const REMOVE_WORKLOADS: &str = "RemoveWorkloads";
/// Keeps the installation while there are VMs or VMIs; the default.
pub const BLOCK_UNINSTALL: &str = "BlockUninstallIfWorkloadsExist";
const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
/// Types of patches.
const PATCHES: [&str; 2] = ["json", "merge"];
/// The highest verbosity of logs.
const LOUDEST: u32 = 9;

/// Reads a KubeVirt object.
///
/// # Errors
/// What is not valid in it.
pub fn validate(object: &Value) -> Result<KubeVirt, Vec<Problem>> {
    let decoded = decode::object::<KubeVirt>(without_status(object));
    let mut problems = mistyped(decoded.mistyped());
    let kubevirt = decoded.object;
    let spec = &kubevirt.spec;
    let mut one_of = |field: String, given: &str, supported: &[&str]| {
        if !given.is_empty() && !supported.contains(&given) {
            problems.push(unsupported(field, given, supported));
        }
    };
    let strategies = [BLOCK_UNINSTALL, REMOVE_WORKLOADS];
    one_of("spec.imagePullPolicy".to_owned(), &spec.image_pull_policy, &PULL_POLICIES);
    one_of("spec.uninstallStrategy".to_owned(), &spec.uninstall_strategy, &strategies);
    for (index, patch) in spec.customize_components.patches.iter().enumerate() {
        one_of(format!("spec.customizeComponents.patches[{index}].type"), &patch.r#type, &PATCHES);
    }
    for (index, patch) in spec.customize_components.patches.iter().enumerate() {
        let field = format!("spec.customizeComponents.patches[{index}]");
        let needed = [
            ("resourceType", &patch.resource_type),
            ("resourceName", &patch.resource_name),
            ("type", &patch.r#type),
        ];
        for (name, value) in needed {
            if value.is_empty() {
                problems.push(Problem::required(format!("{field}.{name}"), "must be set"));
            }
        }
        if serde_json::from_str::<Value>(&patch.patch).is_err() {
            problems.push(Problem::invalid(format!("{field}.patch"), "must be JSON"));
        }
    }
    if spec.infra.as_ref().is_some_and(|infra| infra.replicas == Some(0)) {
        problems.push(Problem::invalid("spec.infra.replicas", "must be greater than or equal to 1"));
    }
    let developer = spec.configuration.developer_configuration.as_ref();
    if let Some(verbosity) = developer.and_then(|developer| developer.log_verbosity.as_ref()) {
        let given = [
            ("virtAPI", verbosity.virt_api),
            ("virtController", verbosity.virt_controller),
            ("virtHandler", verbosity.virt_handler),
        ];
        for (name, _) in given.into_iter().filter(|(_, level)| level.is_some_and(|level| level > LOUDEST)) {
            let field = format!("spec.configuration.developerConfiguration.logVerbosity.{name}");
            problems.push(Problem::invalid(field, "must be less than or equal to 9"));
        }
    }
    problems.extend(Strategy::new(spec).err().unwrap_or_default());
    if problems.is_empty() { Ok(kubevirt) } else { Err(problems) }
}

fn unsupported(field: String, given: &str, supported: &[&str]) -> Problem {
    let supported: Vec<String> = supported.iter().map(|one| format!("{one:?}")).collect();
    let message = format!("Unsupported value: {given:?}: supported values: {}", supported.join(", "));
    Problem::unsupported(field, message)
}

/// The fields that are set and have no effect.
pub fn without_effect(kubevirt: &KubeVirt) -> Vec<String> {
    let mut unknown = Vec::new();
    kubevirt.spec.unknown_fields("spec", &mut unknown);
    let has_replicas = kubevirt.spec.workloads.as_ref().is_some_and(|workloads| workloads.replicas.is_some());
    let replicas = has_replicas.then(|| "spec.workloads.replicas".to_owned());
    unknown.into_iter().map(|one| one.field).chain(replicas).collect()
}

/// Whether VMs and VMIs keep an installation from being deleted.
pub fn blocks_uninstall(kubevirt: &KubeVirt) -> bool {
    kubevirt.spec.uninstall_strategy != REMOVE_WORKLOADS
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(spec: Value) -> Vec<String> {
        let problems = validate(&json!({"metadata": {"name": "kubevirt"}, "spec": spec})).err();
        problems.unwrap_or_default().into_iter().map(|problem| problem.field).collect()
    }

    #[test]
    fn settings_are_valid_or_named() {
        assert_eq!(problems(json!({})), [""; 0]);
        let patch =
            json!({"resourceType": "Deployment", "resourceName": "virt-api", "patch": "{}", "type": "merge"});
        let valid = json!({"imagePullPolicy": "Never", "uninstallStrategy": REMOVE_WORKLOADS,
            "customizeComponents": {"patches": [patch]}, "infra": {"replicas": 1}});
        assert_eq!(problems(valid), [""; 0]);
        for (spec, field) in [
            (json!({"imagePullPolicy": "Sometimes"}), "spec.imagePullPolicy"),
            (json!({"uninstallStrategy": "Never"}), "spec.uninstallStrategy"),
            (json!({"infra": {"replicas": 0}}), "spec.infra.replicas"),
            (
                json!({"certificateRotateStrategy": {"selfSigned": {"ca": {"duration": "long"}}}}),
                "spec.certificateRotateStrategy.selfSigned.ca.duration",
            ),
            (
                json!({"customizeComponents": {"patches": [
                    {"resourceType": "a", "resourceName": "b", "patch": "{}", "type": "strategic"}]}}),
                "spec.customizeComponents.patches[0].type",
            ),
            (
                json!({"customizeComponents": {"patches": [{"resourceType": "a", "resourceName": "b", "patch": "-", "type": "json"}]}}),
                "spec.customizeComponents.patches[0].patch",
            ),
            (
                json!({"customizeComponents": {"patches": [{"resourceType": "a", "patch": "{}", "type": "json"}]}}),
                "spec.customizeComponents.patches[0].resourceName",
            ),
            (
                json!({"configuration": {"developerConfiguration": {"logVerbosity": {"virtAPI": 10}}}}),
                "spec.configuration.developerConfiguration.logVerbosity.virtAPI",
            ),
        ] {
            assert_eq!(problems(spec), [field]);
        }
    }

    #[test]
    fn settings_without_effect_are_named() {
        let spec = json!({
            "workloadUpdateStrategy": {}, "workloads": {"replicas": 2}, "imageTag": "1",
            "certificateRotateStrategy": {"selfSigned": {"caOverlapInterval": "24h"}},
            "configuration": {"machineType": "q35",
                "developerConfiguration": {"useEmulation": true, "featureGates": ["Snapshot"]}},
        });
        let kubevirt = validate(&json!({ "spec": spec })).unwrap();
        let mut named = without_effect(&kubevirt);
        named.sort();
        assert_eq!(
            named,
            [
                "spec.certificateRotateStrategy.selfSigned.caOverlapInterval",
                "spec.configuration.developerConfiguration.featureGates",
                "spec.configuration.machineType",
                "spec.workloadUpdateStrategy",
                "spec.workloads.replicas",
            ]
        );
    }
}
