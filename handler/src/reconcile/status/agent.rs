//! What the guest agent adds to the status. It does not change what the node knows: the guest cannot set the address
//! at which it is reached, which is that on the network of its Pod.

use super::interfaces::add_source;
use vireo_api::names::PRIMARY_POD_INTERFACE;
use vireo_api::v1::{GuestOsInfo, InterfaceStatus, VirtualMachineInstanceStatus as Status};
use vireo_proto::launcher::{Agent, GuestInterface, GuestOs};

/// The limit of NICs that are not in the VMI's spec, such as a guest's own bridges.
const OTHERS: usize = 16;
/// The limit of addresses of each.
const ADDRESSES: usize = 16;
const SOURCE: &str = "guest-agent";
/// What file systems are that the agent has frozen; of those that are not, the status has no word.
const FROZEN: &str = "frozen";

/// What the status of a VMI and its subresources are made of.
const COMMANDS: [&str; 7] = [
    "guest-info",
    "guest-get-osinfo",
    "guest-get-host-name",
    "guest-get-timezone",
    "guest-network-get-interfaces",
    "guest-get-users",
    "guest-get-fsinfo",
];

/// The commands that the agent lacks, if any.
pub(super) fn lacks(agent: &Agent) -> Option<String> {
    let has = |name: &str| agent.commands.iter().any(|command| command.enabled && command.name == name);
    let lacking: Vec<&str> = COMMANDS.into_iter().filter(|name| !has(name)).collect();
    (!lacking.is_empty()).then(|| lacking.join(", "))
}

/// Applies the agent's report, or removes an earlier one.
pub(super) fn apply(status: &mut Status, agent: Option<&Agent>) {
    status.guest_os_info = agent.and_then(|agent| agent.os.as_ref()).map(os).unwrap_or_default();
    let is_frozen = agent.is_some_and(|agent| agent.freeze_status == FROZEN);
    status.fs_freeze_status = if is_frozen { FROZEN.to_owned() } else { String::new() };
    // Of a VMI whose spec cannot be read, the others stay in the status.
    status.interfaces.retain(|interface| interface.info_source != SOURCE);
    let Some(agent) = agent else { return };
    for interface in &mut status.interfaces {
        let same = |nic: &&GuestInterface| nic.mac.eq_ignore_ascii_case(&interface.mac);
        if let Some(nic) = agent.interfaces.iter().find(same) {
            interface.interface_name.clone_from(&nic.name);
            add_source(&mut interface.info_source, SOURCE);
            // The network gave it none that the node knows. Where clients are connected to is not the guest's to say.
            if interface.ip_addresses.is_empty() && interface.pod_interface_name != PRIMARY_POD_INTERFACE {
                interface.ip_addresses = nic.addresses.iter().take(ADDRESSES).cloned().collect();
                interface.ip_address = interface.ip_addresses.first().cloned().unwrap_or_default();
            }
        }
    }
    let known: Vec<String> = status.interfaces.iter().map(|interface| interface.mac.to_lowercase()).collect();
    let other = |nic: &&GuestInterface| !nic.mac.is_empty() && !is_loopback(nic) && !known.contains(&nic.mac);
    status.interfaces.extend(agent.interfaces.iter().filter(other).take(OTHERS).map(others));
}

fn is_loopback(nic: &GuestInterface) -> bool {
    nic.mac.bytes().all(|letter| matches!(letter, b'0' | b':'))
}

fn others(nic: &GuestInterface) -> InterfaceStatus {
    InterfaceStatus {
        interface_name: nic.name.clone(),
        mac: nic.mac.clone(),
        ip_address: nic.addresses.first().cloned().unwrap_or_default(),
        ip_addresses: nic.addresses.iter().take(ADDRESSES).cloned().collect(),
        info_source: SOURCE.to_owned(),
        ..InterfaceStatus::default()
    }
}

/// The guest's operating system in the API's form.
pub(crate) fn os(os: &GuestOs) -> GuestOsInfo {
    GuestOsInfo {
        name: os.name.clone(),
        kernel_release: os.kernel_release.clone(),
        version: os.version.clone(),
        pretty_name: os.pretty_name.clone(),
        version_id: os.version_id.clone(),
        kernel_version: os.kernel_version.clone(),
        machine: os.machine.clone(),
        id: os.id.clone(),
        ..GuestOsInfo::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_adds_and_does_not_change_what_the_node_knows() {
        let nic = |name: &str, mac: &str, address: &str| GuestInterface {
            name: name.to_owned(),
            mac: mac.to_owned(),
            addresses: vec![address.to_owned()],
        };
        let mut interfaces = vec![
            nic("lo", "00:00:00:00:00:00", "127.0.0.1"),
            nic("lan7", "52:54:00:4d:7a:01", "169.254.169.254"),
        ];
        interfaces
            .extend((0..100).map(|at| nic(&format!("v{at}"), &format!("02:00:00:00:00:{at:02x}"), "::1")));
        let os = GuestOs { id: "debian".to_owned(), ..GuestOs::default() };
        let freeze_status = "frozen".to_owned();
        let agent = Agent { os: Some(os), interfaces, freeze_status, ..Agent::default() };
        let mine = InterfaceStatus {
            mac: "52:54:00:4D:7A:01".to_owned(),
            ip_address: "10.201.0.2".to_owned(),
            ip_addresses: vec!["10.201.0.2".to_owned()],
            info_source: "domain".to_owned(),
            ..InterfaceStatus::default()
        };
        let mut status = Status { interfaces: vec![mine.clone()], ..Status::default() };
        apply(&mut status, Some(&agent));
        assert_eq!(
            (status.guest_os_info.id.as_str(), status.fs_freeze_status.as_str()),
            ("debian", "frozen")
        );
        let thawed = Agent { freeze_status: "thawed".to_owned(), ..Agent::default() };
        let mut other = Status { fs_freeze_status: "frozen".to_owned(), ..Status::default() };
        apply(&mut other, Some(&thawed));
        assert_eq!(other, Status::default());

        let first = &status.interfaces[0];
        assert_eq!(
            (first.interface_name.as_str(), first.info_source.as_str()),
            ("lan7", "domain, guest-agent")
        );
        assert_eq!((&first.ip_address, &first.ip_addresses), (&mine.ip_address, &mine.ip_addresses));
        assert_eq!(status.interfaces.len(), 1 + OTHERS);
        assert!(status.interfaces.iter().skip(1).all(|other| other.info_source == SOURCE));

        status.interfaces = vec![mine.clone()];
        apply(&mut status, None);
        assert_eq!(status, Status { interfaces: vec![mine], ..Status::default() });
    }

    #[test]
    fn reports_do_not_accumulate_where_the_spec_cannot_be_read() {
        let agent = |other: &str| {
            let nic = |mac: &str| GuestInterface { mac: mac.to_owned(), ..GuestInterface::default() };
            Agent { interfaces: vec![nic("02:00:00:00:00:01"), nic(other)], ..Agent::default() }
        };
        let mine = InterfaceStatus {
            mac: "02:00:00:00:00:01".to_owned(),
            info_source: "domain".to_owned(),
            ..InterfaceStatus::default()
        };
        let mut status = Status { interfaces: vec![mine], ..Status::default() };
        for number in 10..30 {
            apply(&mut status, Some(&agent(&format!("02:00:00:00:00:{number}"))));
        }
        let sources: Vec<&str> = status.interfaces.iter().map(|one| one.info_source.as_str()).collect();
        assert_eq!(sources, ["domain, guest-agent", "guest-agent"]);
        assert_eq!(status.interfaces[1].mac, "02:00:00:00:00:29");
    }

    #[test]
    fn a_guest_says_its_address_on_secondary_networks_alone() {
        let nic = |mac: &str| GuestInterface {
            name: "eth".to_owned(),
            mac: mac.to_owned(),
            addresses: vec!["10.9.0.9".to_owned()],
        };
        let agent = Agent {
            interfaces: vec![nic("02:00:00:00:00:01"), nic("02:00:00:00:00:02")],
            ..Agent::default()
        };
        let without_address = |mac: &str, pod_interface: &str| InterfaceStatus {
            mac: mac.to_owned(),
            pod_interface_name: pod_interface.to_owned(),
            ..InterfaceStatus::default()
        };
        let interfaces = vec![
            without_address("02:00:00:00:00:01", PRIMARY_POD_INTERFACE),
            without_address("02:00:00:00:00:02", "pod16477688c0e"),
        ];
        let mut status = Status { interfaces, ..Status::default() };
        apply(&mut status, Some(&agent));
        let addresses: Vec<&str> = status.interfaces.iter().map(|one| one.ip_address.as_str()).collect();
        assert_eq!(addresses, ["", "10.9.0.9"]);
    }
}
