//! The NICs of a VMI in its status.

use std::collections::BTreeSet;
use std::net::IpAddr;

use vireo_api::names::PRIMARY_POD_INTERFACE;
use vireo_api::spec::{Binding, DeviceSource, Interface, VirtualFunction, Vm};
use vireo_api::v1::InterfaceStatus;

use super::Facts;

/// What the node knows itself.
const DOMAIN: &str = "domain";
const MULTUS: &str = "multus-status";

/// One for each NIC that is on its network; the one on the pod network first, as KubeVirt has them.
pub(super) fn statuses(vm: &Vm, facts: &Facts<'_>) -> Vec<InterfaceStatus> {
    let mut nics: Vec<&Interface> = vm.interfaces().iter().collect();
    nics.sort_by_key(|nic| !nic.network().is_primary());
    let functions = vm.host_devices().iter().filter_map(|device| match device.source() {
        DeviceSource::Network(function) => Some(function),
        DeviceSource::Resource(_) => None,
    });
    let functions = functions.filter(|_| !facts.phase.is_final()).map(of_function);
    // The guest is to release these.
    let is_wanted = |name: &str| vm.interfaces().iter().any(|nic| nic.name() == name);
    let leaving = facts.bridged.iter().filter(|(name, _)| !facts.phase.is_final() && !is_wanted(name));
    let leaving = leaving.map(|(name, pod)| InterfaceStatus {
        name: name.clone(),
        mac: pod.mac().map(|mac| mac.to_string()).unwrap_or_default(),
        pod_interface_name: pod.name.clone(),
        info_source: DOMAIN.to_owned(),
        ..InterfaceStatus::default()
    });
    nics.into_iter().filter_map(|nic| status(vm, nic, facts)).chain(leaving).chain(functions).collect()
}

/// Whether the guest has a NIC. Launchers of earlier releases do not report that.
fn has_nic(facts: &Facts<'_>, name: &str) -> bool {
    let links = facts.state.and_then(|state| state.links.as_ref());
    links.is_none_or(|links| links.up.iter().chain(&links.down).any(|known| known == name))
}

/// What is known of a NIC that is a virtual function.
fn of_function(function: &VirtualFunction) -> InterfaceStatus {
    InterfaceStatus {
        name: function.name().to_owned(),
        mac: function.mac().map(|mac| mac.to_string()).unwrap_or_default(),
        pod_interface_name: function.pod_interface(),
        info_source: DOMAIN.to_owned(),
        ..InterfaceStatus::default()
    }
}

fn status(vm: &Vm, nic: &Interface, facts: &Facts<'_>) -> Option<InterfaceStatus> {
    if facts.phase.is_final() {
        return None;
    }
    let (mac, addresses): (_, Vec<IpAddr>) = match nic.binding() {
        Binding::Masquerade { .. } | Binding::Passt { .. } if facts.addresses.is_empty() => return None,
        Binding::Masquerade { .. } | Binding::Passt { .. } => (nic.mac(), facts.addresses.clone()),
        Binding::Bridge => {
            let pod = facts.bridged.get(nic.name())?;
            let own = pod.address.map(|net| net.addr().into());
            (nic.mac().or_else(|| pod.mac()), own.into_iter().collect())
        }
    };
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    Some(InterfaceStatus {
        name: nic.name().to_owned(),
        mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
        ip_address: addresses.first().cloned().unwrap_or_default(),
        ip_addresses: addresses,
        pod_interface_name: nic.pod_interface(),
        info_source: if has_nic(facts, nic.name()) { DOMAIN } else { "" }.to_owned(),
        link_state: if nic.is_link_up() { "up" } else { "down" }.to_owned(),
        queue_count: i32::try_from(vm.queue_pairs(nic)).ok(),
        ..InterfaceStatus::default()
    })
}

/// The NIC at which the VMI is reached: that on the network of its Pod. The addresses of others may be the guest's word.
pub(crate) fn primary(interfaces: &[InterfaceStatus]) -> Option<&InterfaceStatus> {
    interfaces.first().filter(|first| first.pod_interface_name == PRIMARY_POD_INTERFACE)
}

/// Notes which interfaces of the Pod Multus has reported.
pub(super) fn note_multus(interfaces: &mut [InterfaceStatus], reported: &BTreeSet<String>) {
    for interface in interfaces.iter_mut().filter(|one| reported.contains(&one.pod_interface_name)) {
        add_source(&mut interface.info_source, MULTUS);
    }
}

/// Adds a source of information to those of an interface, unless it is among them.
pub(super) fn add_source(sources: &mut String, source: &str) {
    if !sources.split(", ").any(|one| one == source) {
        if !sources.is_empty() {
            sources.push_str(", ");
        }
        sources.push_str(source);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::v1::VirtualMachineInstance;
    use vireo_proto::launcher::{Links, State};

    use super::super::Phase;
    use super::super::tests::facts;
    use super::*;
    use crate::network::bridge::{Bridged, PodInterface};

    const IPV6: &str = "fd00:10:244::5";

    const POD: &str = "10.244.0.7";

    fn vm() -> Vm {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "cpu": {"cores": 2}, "devices": {"networkInterfaceMultiqueue": true, "interfaces": [
                    {"name": "lan", "bridge": {}, "state": "down"}, {"name": "default", "masquerade": {}}]}},
                "networks": [{"name": "lan", "multus": {"networkName": "lan"}}, {"name": "default", "pod": {}}],
            },
        }))
        .unwrap();
        Vm::try_from(&vmi).unwrap()
    }

    fn bridged() -> Bridged {
        let lan = PodInterface {
            name: "pod094a367b026".to_owned(),
            mac: [2, 0, 0, 0, 0, 9],
            mtu: 1500,
            address: Some("10.77.0.2/24".parse().unwrap()),
            routes: Vec::new(),
        };
        Bridged::from([("lan".to_owned(), lan)])
    }

    #[test]
    fn each_nic_has_an_entry_and_that_of_the_pods_network_is_first() {
        let (vm, bridged) = (vm(), bridged());
        let facts = Facts {
            addresses: vec![POD.parse().unwrap(), IPV6.parse().unwrap()],
            bridged: &bridged,
            ..facts(Phase::Running)
        };
        let mut found = statuses(&vm, &facts);
        let first = primary(&found).unwrap();
        assert_eq!(
            (first.ip_address.as_str(), &first.ip_addresses[..]),
            (POD, &[POD.to_owned(), IPV6.to_owned()][..])
        );
        let [_, lan] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((lan.name.as_str(), lan.mac.as_str()), ("lan", "02:00:00:00:00:09"));
        assert_eq!((lan.ip_address.as_str(), lan.ip_addresses.len()), ("10.77.0.2", 1));
        assert_eq!(lan.pod_interface_name, "pod094a367b026");
        assert_eq!((lan.queue_count, lan.link_state.as_str()), (Some(2), "down"));
        note_multus(&mut found, &BTreeSet::from(["pod094a367b026".to_owned()]));
        let sources: Vec<_> = found.iter().map(|one| one.info_source.as_str()).collect();
        assert_eq!(sources, ["domain", "domain, multus-status"]);
    }

    #[test]
    fn a_nic_is_shown_until_the_guest_has_released_it() {
        let (vm, mut bridged) = (vm(), bridged());
        let red = PodInterface { name: "podb1f51a511f1".to_owned(), ..bridged["lan"].clone() };
        bridged.insert("red".to_owned(), red);
        let links = Links { up: vec!["default".to_owned(), "red".to_owned()], down: Vec::new() };
        let state = State { links: Some(links), ..State::default() };
        let facts = Facts { bridged: &bridged, state: Some(&state), ..facts(Phase::Running) };
        let mut found = statuses(&vm, &facts);
        note_multus(&mut found, &BTreeSet::from(["pod094a367b026".to_owned()]));
        let shown: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.info_source.as_str())).collect();
        // The first one is in the Pod alone so far.
        assert_eq!(shown, [("lan", "multus-status"), ("red", "domain")]);
    }

    #[test]
    fn a_virtual_function_has_an_entry() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"}, "devices": {"interfaces": [
                    {"name": "lan", "sriov": {}, "macAddress": "02:00:00:00:00:09"}]}},
                "networks": [{"name": "lan", "multus": {"networkName": "lan"}}],
            },
        }))
        .unwrap();
        let vm = Vm::try_from(&vmi).unwrap();
        let found = statuses(&vm, &facts(Phase::Running));
        let [lan] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((lan.name.as_str(), lan.mac.as_str()), ("lan", "02:00:00:00:00:09"));
        assert_eq!(lan.pod_interface_name, "pod094a367b026");
        assert_eq!(statuses(&vm, &facts(Phase::Succeeded)), []);
    }

    #[test]
    fn a_nic_that_is_not_on_its_network_has_none() {
        let (vm, bridged) = (vm(), bridged());
        assert_eq!(statuses(&vm, &facts(Phase::Scheduled)), []);
        let ended = Facts { bridged: &bridged, ..facts(Phase::Succeeded) };
        assert_eq!(statuses(&vm, &ended), []);
        let found = statuses(&vm, &Facts { bridged: &bridged, ..facts(Phase::Running) });
        assert_eq!(primary(&found), None, "the address of another network is not the Pod's");
    }
}
