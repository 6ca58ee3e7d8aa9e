//! Devices of nodes that instances request: only those that the KubeVirt object permits.

use serde_json::Value;
use vireo_api::spec::PermittedHostDevices;
use vireo_client::Kind;

use super::host_paths::Instance;
use crate::Problem;

/// The lists of devices, with KubeVirt's words for an element.
const LISTS: [(&str, &str); 2] = [("gpus", "GPU"), ("hostDevices", "HostDevice")];

/// Devices that an instance may not have. Those of a list that is as it was are not refused.
pub(super) fn not_permitted(
    kind: Kind,
    new: &Value,
    old: Option<&Value>,
    permitted: &PermittedHostDevices,
) -> Vec<Problem> {
    let Some(instance) = Instance::of(kind, new, old) else { return Vec::new() };
    let mut problems = Vec::new();
    for (list, what) in LISTS {
        let devices = instance.changed(&format!("/domain/devices/{list}")).and_then(Value::as_array);
        for (index, device) in devices.into_iter().flatten().enumerate() {
            let Some(name) = device["deviceName"].as_str() else { continue };
            if permitted.get(name).is_none() {
                let field = instance.field(&format!("domain.devices.{list}[{index}].deviceName"));
                let message = format!("{what} {name} is not permitted in permittedHostDevices configuration");
                problems.push(Problem::invalid(field, message));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::spec::Field;

    use super::*;

    #[test]
    fn only_permitted_devices_are_accepted() {
        let setting = json!({"pciHostDevices": [{"pciVendorSelector": "1:2", "resourceName": "a.b/c"}]});
        let setting = serde_json::from_value(setting).unwrap();
        let (permitted, _) = PermittedHostDevices::read(&setting, &Field::new("p"));
        let vm = json!({"spec": {"template": {"spec": {"domain": {"devices": {
            "gpus": [{"name": "g", "deviceName": "a.b/gpu"}],
            "hostDevices": [{"name": "h", "deviceName": "a.b/c"}, {"name": "i", "deviceName": "a.b/d"}],
        }}}}}});
        let problems = not_permitted(Kind::VM, &vm, None, &permitted);
        let found: Vec<_> =
            problems.iter().map(|problem| (problem.field.as_str(), problem.message.as_str())).collect();
        let devices = "spec.template.spec.domain.devices";
        let gpu = "GPU a.b/gpu is not permitted in permittedHostDevices configuration";
        let device = "HostDevice a.b/d is not permitted in permittedHostDevices configuration";
        assert_eq!(
            found,
            [
                (format!("{devices}.gpus[0].deviceName").as_str(), gpu),
                (format!("{devices}.hostDevices[1].deviceName").as_str(), device)
            ]
        );
        assert_eq!(not_permitted(Kind::VM, &vm, Some(&vm), &permitted), [], "it was stored before");
        assert_eq!(not_permitted(Kind::VM, &vm, None, &PermittedHostDevices::default()).len(), 3);
    }
}
