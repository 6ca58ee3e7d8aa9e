use std::net::Ipv4Addr;

use vireo_vmconfig::{MacAddr, NicModel, PciSlot, UnknownName};

use super::disk::{BootOrders, boot_order};
use super::network::{Binding, BindingKind, Network, NetworkSource, binding};
use super::report::Findings;
use super::syntax::is_one_line;
use super::{Field, VmiUid, port};
use crate::v1;

/// KubeVirt's own address on the other side of masquerade.
const RESERVED_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0];

/// A NIC with the network it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    name: String,
    field: Field,
    model: NicModel,
    mac: Option<MacAddr>,
    boot_order: Option<u32>,
    pci_slot: Option<PciSlot>,
    acpi_index: Option<u32>,
    network: NetworkSource,
    binding: Binding,
    dhcp: Dhcp,
    link_up: bool,
    tag: String,
}

/// DHCP options of the guest beside its address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dhcp {
    boot_file: Option<String>,
    tftp_server: Option<String>,
    ntp_servers: Vec<Ipv4Addr>,
    private_options: Vec<(u8, String)>,
}

impl Dhcp {
    /// Option 67.
    pub fn boot_file(&self) -> Option<&str> {
        self.boot_file.as_deref()
    }

    /// Option 66.
    pub fn tftp_server(&self) -> Option<&str> {
        self.tftp_server.as_deref()
    }

    /// Option 42.
    pub fn ntp_servers(&self) -> &[Ipv4Addr] {
        &self.ntp_servers
    }

    /// Options 224 to 254, each once.
    pub fn private_options(&self) -> &[(u8, String)] {
        &self.private_options
    }
}

impl Interface {
    /// The NIC's and the network's common name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `spec.domain.devices.interfaces[0]`.
    pub fn field(&self) -> &Field {
        &self.field
    }

    /// The NIC's model.
    pub fn model(&self) -> NicModel {
        self.model
    }

    /// Its address. Where the manifest gives none, behind masquerade and passt one that is derived from the VM and its name, and on
    /// a bridge none: it is that of the interface in the Pod.
    pub fn mac(&self) -> Option<MacAddr> {
        self.mac
    }

    /// From 1; unique in the VM.
    pub fn boot_order(&self) -> Option<u32> {
        self.boot_order
    }

    /// Its slot on the PCI bus, where the manifest decides.
    pub fn pci_slot(&self) -> Option<PciSlot> {
        self.pci_slot
    }

    /// By which the guest knows it in a config drive; empty without one.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// By which the guest names it; from 1, unique in the VM.
    pub fn acpi_index(&self) -> Option<u32> {
        self.acpi_index
    }

    /// What its network is.
    pub fn network(&self) -> &NetworkSource {
        &self.network
    }

    /// The interface of the Pod that is on its network.
    pub fn pod_interface(&self) -> String {
        self.network.pod_interface(&self.name)
    }

    /// How it is bound to its network.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// Whether its link is up when the guest starts.
    pub fn is_link_up(&self) -> bool {
        self.link_up
    }

    /// DHCP options of the guest.
    pub fn dhcp(&self) -> &Dhcp {
        &self.dhcp
    }
}

/// Joins NICs with networks. Those that are absent are none. A VM without any of both gets one masqueraded NIC on the pod network, unless it
/// says otherwise (KubeVirt's cluster setting chooses between bridge and masquerade; there is no bridge here).
pub(super) fn read(
    spec: &v1::VirtualMachineInstanceSpec,
    uid: Option<&VmiUid>,
    taken: &mut BootOrders,
    found: &mut Findings,
) -> Vec<Interface> {
    let devices = &spec.domain.devices;
    if devices.interfaces.is_empty() && spec.networks.is_empty() {
        if devices.autoattach_pod_interface == Some(false) {
            return Vec::new();
        }
        let interface = v1::Interface {
            name: "default".to_owned(),
            masquerade: Some(v1::InterfaceBinding::default()),
            ..v1::Interface::default()
        };
        let network = v1::Network {
            name: "default".to_owned(),
            pod: Some(v1::PodNetwork::default()),
            ..v1::Network::default()
        };
        return joined(&[interface], &[network], uid, taken, found);
    }
    joined(&devices.interfaces, &spec.networks, uid, taken, found)
}

fn joined(
    interfaces: &[v1::Interface],
    networks: &[v1::Network],
    uid: Option<&VmiUid>,
    taken: &mut BootOrders,
    found: &mut Findings,
) -> Vec<Interface> {
    let networks = super::network::read(networks, interfaces, found);
    let at = Field::new("spec.domain.devices.interfaces");
    let mut read = Vec::new();
    let mut macs = Vec::new();
    let mut indices = Vec::new();
    for (index, interface) in interfaces.iter().enumerate() {
        let field = at.index(index);
        let earlier = interfaces.get(..index).unwrap_or_default();
        let network = name(interface, earlier, &networks, &field.at("name"), found);
        let kind = binding(interface, &field, found);
        let forwards = port::read(interface, &field, found);
        let model = model(&interface.model, &field.at("model"), found);
        let mac = mac(interface, &field.at("macAddress"), found);
        if let Some(mac) = mac.filter(|mac| macs.contains(mac)) {
            found.duplicate_value(&field.at("macAddress"), &mac.to_string());
        }
        macs.extend(mac);
        let boot_order = boot_order(interface.boot_order, &field.at("bootOrder"), taken, found);
        let dhcp = interface.dhcp_options.as_ref();
        let dhcp = dhcp.map(|dhcp| self::dhcp(dhcp, &field.at("dhcpOptions"), found)).unwrap_or_default();
        state(&interface.state, &field.at("state"), found);
        tag(interface, kind, &field.at("tag"), found);
        let pci_slot = super::disk::pci_slot(&interface.pci_address, &field.at("pciAddress"), found);
        let acpi_index = acpi_index(interface.acpi_index, &indices, &field.at("acpiIndex"), found);
        indices.extend(acpi_index);
        let Some(Network { source: Some(source), guest, .. }) = network else { continue };
        if interface.is_absent() {
            can_be_absent(kind, source, &field.at("state"), found);
            continue;
        }
        let derived = || uid.map(|uid| uid.mac_of(&interface.name));
        let (binding, mac) = match (kind, guest) {
            (Some(BindingKind::Masquerade), Some(networks)) => {
                let Some(mac) = mac.or_else(derived) else { continue };
                (Binding::Masquerade { networks: *networks, forwards }, Some(mac))
            }
            (Some(BindingKind::Masquerade), None) => {
                if let NetworkSource::Multus(_) = source {
                    let message = "masquerade is for the pod network alone: write bridge: {}";
                    found.invalid(&field.at("masquerade"), message);
                }
                continue;
            }
            (Some(BindingKind::Bridge), _) => {
                let why = "a bridge forwards everything";
                found.notice_if(!interface.ports.is_empty(), &field.at("ports"), why);
                if !interface.port_ranges.is_empty() {
                    let at = field.at("portRanges");
                    found.forbidden(&at, "ranges of ports are for masquerade: a bridge forwards everything");
                }
                (Binding::Bridge, mac)
            }
            (Some(BindingKind::Passt), _) => {
                if *source != NetworkSource::Pod {
                    found.invalid(&field.at("passtBinding"), "passt is for the pod network alone");
                    continue;
                }
                let why = "passt has no other DHCP options than addresses and name servers";
                found.notice_if(interface.dhcp_options.is_some(), &field.at("dhcpOptions"), why);
                let Some(mac) = mac.or_else(derived) else { continue };
                (Binding::Passt { forwards }, Some(mac))
            }
            (Some(BindingKind::Sriov), _) => {
                if source.is_primary() {
                    let message =
                        "virtual functions are on secondary networks: write multus, without default: true";
                    found.invalid(&field.at("sriov"), message);
                }
                super::host_device::virtual_function(interface, field, mac, found);
                continue;
            }
            (None, _) => continue,
        };
        let name = interface.name.clone();
        let network = source.clone();
        let link_up = interface.state != "down";
        let tag = interface.tag.clone();
        read.push(Interface {
            name,
            field,
            model,
            mac,
            boot_order,
            pci_slot,
            acpi_index,
            network,
            binding,
            dhcp,
            link_up,
            tag,
        });
    }
    read
}

fn name<'a>(
    interface: &v1::Interface,
    before: &[v1::Interface],
    networks: &'a [Network],
    at: &Field,
    found: &mut Findings,
) -> Option<&'a Network> {
    let name = &interface.name;
    if name.is_empty() {
        found.required_value(at, "name the network the interface is on");
        return None;
    }
    if !name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')) || name.len() > 63 {
        found.invalid_value(at, name, "must be at most 63 letters, digits, '-' and '_'");
        return None;
    }
    if before.iter().any(|known| known.name == *name) {
        found.duplicate_value(at, name);
        return None;
    }
    let network = networks.iter().find(|network| network.name == *name);
    if network.is_none() {
        found.not_found(
            at,
            format!("no network in spec.networks is called {name:?}: add one, or remove the interface"),
        );
    }
    network
}

fn model(text: &str, at: &Field, found: &mut Findings) -> NicModel {
    match text {
        "" => NicModel::default(),
        text => text.parse().unwrap_or_else(|UnknownName { supported }| {
            found.unsupported_value(at, text, supported);
            NicModel::default()
        }),
    }
}

/// The address that a manifest gives.
fn mac(interface: &v1::Interface, at: &Field, found: &mut Findings) -> Option<MacAddr> {
    if interface.mac_address.is_empty() {
        return None;
    }
    match interface.mac_address.parse::<MacAddr>() {
        Ok(mac) if mac.octets() == RESERVED_MAC => {
            found.invalid(at, format!("{mac} is the gateway's: choose another"));
            None
        }
        Ok(mac) => Some(mac),
        Err(error) => {
            found.invalid(at, error.to_string());
            None
        }
    }
}

/// QEMU's limit of the index: what systemd names NICs by.
const LARGEST_INDEX: u32 = 16 * 1024 - 1;

fn acpi_index(index: Option<i64>, taken: &[u32], at: &Field, found: &mut Findings) -> Option<u32> {
    let given = index.filter(|index| *index != 0)?;
    let index = u32::try_from(given).ok().filter(|index| *index <= LARGEST_INDEX);
    match index {
        None => found.invalid_value(at, given, format!("must be between 1 and {LARGEST_INDEX}, inclusive")),
        Some(index) if taken.contains(&index) => found.duplicate(at, format!("Duplicate value: {index}")),
        Some(_) => {}
    }
    index
}

fn dhcp(options: &v1::DhcpOptions, at: &Field, found: &mut Findings) -> Dhcp {
    let mut read = Dhcp::default();
    let mut line = |text: &String, name: &str| {
        if !is_one_line(text, 255) {
            found.invalid_value(&at.at(name), text, "must be one line of at most 255 bytes");
        }
        Some(text.clone()).filter(|text| !text.is_empty())
    };
    read.boot_file = line(&options.boot_file_name, "bootFileName");
    read.tftp_server = line(&options.tftp_server_name, "tftpServerName");
    for (index, server) in options.ntp_servers.iter().enumerate() {
        match server.parse() {
            Ok(server) => read.ntp_servers.push(server),
            Err(_) => {
                found.invalid_value(&at.at("ntpServers").index(index), server, "must be a valid IPv4 address")
            }
        }
    }
    for (index, option) in options.private_options.iter().enumerate() {
        let at = at.at("privateOptions").index(index);
        let number = option.option.and_then(|number| u8::try_from(number).ok());
        match number.filter(|number| (224..=254).contains(number)) {
            None => {
                found.invalid_value(&at.at("option"), option.option, "must be between 224 and 254, inclusive")
            }
            Some(number) if read.private_options.iter().any(|(known, _)| *known == number) => {
                found.duplicate(&at.at("option"), format!("Duplicate value: {number}"));
            }
            Some(_) if !is_one_line(&option.value, 255) => {
                found.invalid_value(&at.at("value"), &option.value, "must be one line of at most 255 bytes");
            }
            Some(number) => read.private_options.push((number, option.value.clone())),
        }
    }
    read
}

fn state(state: &str, at: &Field, found: &mut Findings) {
    match state {
        "" | "up" | "down" | v1::Interface::ABSENT => {}
        other => found.unsupported_value(at, other, &["down", "up", v1::Interface::ABSENT]),
    }
}

/// A config drive names NICs by their MAC addresses. It is made before that of the interface of the Pod is known, which a bridge
/// takes over, and before that of a virtual function.
fn tag(interface: &v1::Interface, kind: Option<BindingKind>, at: &Field, found: &mut Findings) {
    let why = match kind {
        Some(BindingKind::Bridge) if interface.mac_address.is_empty() => {
            "the config drive has no tag of a bridge without macAddress: write one"
        }
        Some(BindingKind::Sriov) if interface.mac_address.is_empty() => {
            "the config drive has no tag of a virtual function without macAddress: write one"
        }
        _ => return,
    };
    found.notice_if(!interface.tag.is_empty(), at, why);
}

/// Whether a NIC can be unplugged: KubeVirt does so on bridges to secondary networks alone.
fn can_be_absent(kind: Option<BindingKind>, source: &NetworkSource, at: &Field, found: &mut Findings) {
    if source.is_primary() {
        found.invalid(at, "absent is for secondary networks alone: write multus, without default: true");
    } else if !matches!(kind, Some(BindingKind::Bridge)) {
        found.invalid(at, "absent is for bridges alone: write bridge: {}");
    }
}
