//! NICs of VMs and VMIs.

use vireo_api::v1::{Interface, VirtualMachineInstanceSpec};

use super::{Labels, NONE};

/// The labels of KubeVirt's metrics `kubevirt_vm_vnic_info` and `kubevirt_vmi_vnic_info` for each NIC, without those of the VM.
pub fn vnics(spec: &VirtualMachineInstanceSpec) -> Vec<Labels> {
    let label = |interface: &Interface| -> Labels {
        let network = spec.networks.iter().find(|network| network.name == interface.name);
        let network = match network.and_then(|network| network.multus.as_ref()) {
            Some(multus) => multus.network_name.clone(),
            None if network.is_some_and(|network| network.pod.is_some()) => "pod networking".to_owned(),
            None => NONE.to_owned(),
        };
        let (kind, binding) = binding(interface);
        let model = if interface.model.is_empty() { NONE } else { &interface.model };
        vec![
            ("vnic_name".into(), interface.name.clone()),
            ("binding_type".into(), kind.to_owned()),
            ("network".into(), network),
            ("binding_name".into(), binding.to_owned()),
            ("model".into(), model.to_owned()),
        ]
    };
    spec.domain.devices.interfaces.iter().map(label).collect()
}

/// The kind and the name of a binding.
fn binding(interface: &Interface) -> (&str, &str) {
    if let Some(plugin) = &interface.binding {
        return ("plugin", &plugin.name);
    }
    let bindings = [
        ("masquerade", interface.masquerade.is_some()),
        ("bridge", interface.bridge.is_some()),
        ("sriov", interface.sriov.is_some()),
        ("passt", interface.passt_binding.is_some()),
    ];
    let set = bindings.into_iter().find_map(|(name, is_set)| is_set.then_some(name));
    ("core", set.unwrap_or(NONE))
}
