//! Interfaces and networks that not every API server and every configuration has.

use serde_json::Value;
use vireo_client::Kind;

use super::host_paths::Instance;
use crate::Problem;

const INTERFACES: &str = "domain.devices.interfaces";
/// Why there is no bridge without Pods.
const NO_BRIDGE: &str = "Unsupported value: bridge: there are no networks of Pods or of Multus on a single host: use masquerade: {}";
/// Why there are no networks of Multus without Pods.
const NO_MULTUS: &str = "Unsupported value: multus: Multus attaches networks to Pods in clusters, not on a single host: use pod: {}";

/// What an object is refused for where launchers are not in Pods. What is as it was is not refused.
pub fn without_pods(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<Problem> {
    let Some(instance) = Instance::of(kind, new, old) else { return Vec::new() };
    let bridges = changed(&instance, INTERFACES).filter(|(_, one)| one["bridge"].is_object());
    let bridges = bridges.map(|(field, _)| Problem::unsupported(format!("{field}.bridge"), NO_BRIDGE));
    let multus = changed(&instance, "networks").filter(|(_, one)| one["multus"].is_object());
    let multus = multus.map(|(field, _)| Problem::unsupported(format!("{field}.multus"), NO_MULTUS));
    bridges.chain(multus).collect()
}

/// Bridges on the pod network that a cluster does not permit. What is as it was is not refused.
pub(super) fn bridge_on_pod_network(kind: Kind, new: &Value, old: Option<&Value>) -> Vec<Problem> {
    let Some(instance) = Instance::of(kind, new, old) else { return Vec::new() };
    let networks = instance.part("/networks").and_then(Value::as_array);
    let is_pod = |name: &Value| {
        let mut networks = networks.into_iter().flatten();
        networks.any(|network| network["name"] == *name && network["pod"].is_object())
    };
    let bridges = changed(&instance, INTERFACES).filter(|(_, one)| one["bridge"].is_object());
    let on_pods = bridges.filter(|(_, one)| is_pod(&one["name"]));
    let why = "Bridge on pod network configuration is not enabled under kubevirt-config";
    on_pods.map(|(field, _)| Problem::invalid(format!("{field}.bridge"), why)).collect()
}

/// The elements of a list of an instance with their fields, if one of them changed.
pub(super) fn changed<'a>(
    instance: &Instance<'a>,
    list: &'a str,
) -> impl Iterator<Item = (String, &'a Value)> {
    let path = format!("/{}", list.replace('.', "/"));
    let elements = instance.changed(&path).and_then(Value::as_array).into_iter().flatten();
    let at = instance.field(list);
    elements.enumerate().map(move |(index, element)| (format!("{at}[{index}]"), element))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vm() -> Value {
        json!({"spec": {"template": {"spec": {
            "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}, {"name": "b", "masquerade": {}},
                {"name": "c", "bridge": {}}]}},
            "networks": [{"name": "c", "multus": {"networkName": "lan"}}, {"name": "a", "pod": {}}],
        }}}})
    }

    fn fields(problems: Vec<Problem>) -> Vec<String> {
        problems.into_iter().map(|problem| problem.field.replace("spec.template.spec.", "")).collect()
    }

    #[test]
    fn a_single_host_has_neither_bridges_nor_multus() {
        let found = fields(without_pods(Kind::VM, &vm(), None));
        let bridge = |index: u8| format!("domain.devices.interfaces[{index}].bridge");
        assert_eq!(found, [bridge(0), bridge(2), "networks[0].multus".to_owned()]);
        assert_eq!(without_pods(Kind::VM, &vm(), Some(&vm())), [], "it was stored before");
        assert_eq!(without_pods(Kind::CLAIM, &vm(), None), []);
    }

    #[test]
    fn a_cluster_may_forbid_bridges_on_the_pod_network() {
        let found = fields(bridge_on_pod_network(Kind::VM, &vm(), None));
        assert_eq!(found, ["domain.devices.interfaces[0].bridge"]);
        assert_eq!(bridge_on_pod_network(Kind::VM, &vm(), Some(&vm())), []);
    }
}
