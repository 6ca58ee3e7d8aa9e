//! Fields of features whose gates are disabled.

use serde_json::Value;
use vireo_client::Kind;

use super::host_paths::Instance;
use crate::Problem;
use crate::config::ClusterConfig;
use crate::config::feature_gates::{DOWNWARD_METRICS, HOST_DEVICES, REBOOT_POLICY, VSOCK};

/// Fields of an instance with their gates, as pointers without the first `/`.
const FIELDS: [(&str, &str); 5] = [
    (DOWNWARD_METRICS, "domain/devices/downwardMetrics"),
    (HOST_DEVICES, "domain/devices/hostDevices"),
    (HOST_DEVICES, "domain/devices/gpus"),
    (REBOOT_POLICY, "domain/rebootPolicy"),
    (VSOCK, "domain/devices/autoattachVSOCK"),
];

/// What an instance may not have, as its gate is disabled. What is as it was is not refused.
pub(super) fn disabled(kind: Kind, new: &Value, old: Option<&Value>, config: &ClusterConfig) -> Vec<Problem> {
    let Some(instance) = Instance::of(kind, new, old) else { return Vec::new() };
    let is_used = |value: &Value| match value {
        Value::Array(list) => !list.is_empty(),
        value => !matches!(value, Value::Null | Value::Bool(false)),
    };
    let refused = FIELDS.iter().filter(|(gate, field)| {
        config.disabled_gates.contains(gate) && instance.changed(&format!("/{field}")).is_some_and(is_used)
    });
    let fields = refused.map(|(gate, field)| (*gate, instance.field(&field.replace('/', "."))));
    let volumes = instance.changed_volumes().filter(|(_, volume)| {
        config.disabled_gates.contains(&DOWNWARD_METRICS) && !volume["downwardMetrics"].is_null()
    });
    let disks = volumes.map(|(field, _)| (DOWNWARD_METRICS, format!("{field}.downwardMetrics")));
    let problem = |(gate, field): (&str, String)| {
        Problem::forbidden(field, format!("{gate} feature gate is not enabled in kubevirt-config"))
    };
    fields.chain(disks).map(problem).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_disabled_gates_are_refused() {
        let vm = |devices: Value| json!({"spec": {"template": {"spec": {"domain": {"devices": devices, "rebootPolicy": "Terminate"}}}}});
        let given = vm(json!({"autoattachVSOCK": true, "gpus": [{"name": "a"}], "hostDevices": []}));
        let fields = |gates: &[&'static str], old: Option<&Value>| -> Vec<String> {
            let config = ClusterConfig { disabled_gates: gates.to_vec(), ..ClusterConfig::default() };
            let problems = disabled(Kind::VM, &given, old, &config).into_iter();
            problems.map(|problem| problem.field.replace("spec.template.spec.domain.", "")).collect()
        };
        assert_eq!(fields(&[], None), [""; 0]);
        assert_eq!(fields(&[HOST_DEVICES, VSOCK], None), ["devices.gpus", "devices.autoattachVSOCK"]);
        assert_eq!(fields(&[REBOOT_POLICY], None), ["rebootPolicy"]);
        let disk =
            json!({"spec": {"domain": {}, "volumes": [{"name": "a"}, {"name": "m", "downwardMetrics": {}}]}});
        let config = ClusterConfig { disabled_gates: vec![DOWNWARD_METRICS], ..ClusterConfig::default() };
        let problems = disabled(Kind::VMI, &disk, None, &config);
        assert_eq!(
            problems.iter().map(|one| one.field.as_str()).collect::<Vec<_>>(),
            ["spec.volumes[1].downwardMetrics"]
        );
        assert!(disabled(Kind::VMI, &disk, Some(&disk), &config).is_empty());
        assert_eq!(disabled(Kind::VMI, &disk, None, &ClusterConfig::default()).len(), 0);
        let mut plugged = disk.clone();
        plugged["spec"]["volumes"].as_array_mut().unwrap().insert(0, json!({"name": "b"}));
        assert_eq!(disabled(Kind::VMI, &plugged, Some(&disk), &config).len(), 0, "it had the metrics");
        plugged["spec"]["volumes"][1] = json!({"name": "a", "downwardMetrics": {}});
        let problems = disabled(Kind::VMI, &plugged, Some(&disk), &config);
        let added: Vec<_> = problems.iter().map(|one| one.field.as_str()).collect();
        assert_eq!(added, ["spec.volumes[1].downwardMetrics"]);
        assert_eq!(fields(&[REBOOT_POLICY, VSOCK], Some(&vm(json!({})))), ["devices.autoattachVSOCK"]);
    }
}
