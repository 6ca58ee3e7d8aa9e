//! Fields of features whose gates are disabled.

use serde_json::Value;
use vireo_client::Kind;

use super::host_paths::Instance;
use crate::Problem;
use crate::config::ClusterConfig;
use crate::config::feature_gates::{HOST_DEVICES, REBOOT_POLICY, VSOCK};

/// Fields of an instance with their gates, as pointers without the first `/`.
const FIELDS: [(&str, &str); 4] = [
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
    let problem = |(gate, field): &(&str, &str)| {
        let message = format!("{gate} feature gate is not enabled in kubevirt-config");
        Problem::forbidden(instance.field(&field.replace('/', ".")), message)
    };
    refused.map(problem).collect()
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
        assert_eq!(fields(&[REBOOT_POLICY, VSOCK], Some(&vm(json!({})))), ["devices.autoattachVSOCK"]);
    }
}
