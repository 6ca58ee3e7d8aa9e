use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::report::Findings;
use super::syntax::is_dns_subdomain;
use super::{Field, Forwards, Port};
use crate::names::{PRIMARY_POD_INTERFACE, pod_interface};
use crate::v1;

/// What masquerade uses where a manifest sets none.
const VM_NETWORK: Ipv4Net = Ipv4Net { address: Ipv4Addr::new(10, 0, 2, 0), prefix: 24 };
/// The same for IPv6.
const VM_IPV6_NETWORK: Ipv6Net = Ipv6Net { address: Ipv6Addr::new(0xfd10, 0, 2, 0, 0, 0, 0, 0), prefix: 120 };

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Net {
    address: Ipv4Addr,
    prefix: u8,
}

impl Ipv4Net {
    /// Its address: no bit below the prefix is set.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Bits of the network part: 0 to 30.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Its address and `host` more: 1 is the gateway, 2 the guest.
    pub fn host(&self, host: u8) -> Ipv4Addr {
        // The two lowest bits at least are free, and callers ask for the first few.
        Ipv4Addr::from(u32::from(self.address).wrapping_add(u32::from(host)))
    }

    /// What its gateway has.
    pub fn gateway(&self) -> Ipv4Addr {
        self.host(1)
    }

    /// What its guest is given.
    pub fn guest(&self) -> Ipv4Addr {
        self.host(2)
    }
}

impl FromStr for Ipv4Net {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, prefix) = text.split_once('/').ok_or(())?;
        let address: Ipv4Addr = address.parse().map_err(|_| ())?;
        let prefix: u8 = prefix.parse().map_err(|_| ())?;
        if !(8..=30).contains(&prefix) {
            return Err(());
        }
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        Ok(Self { address: Ipv4Addr::from(u32::from(address) & mask), prefix })
    }
}

impl fmt::Display for Ipv4Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// An IPv6 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Net {
    address: Ipv6Addr,
    prefix: u8,
}

impl Ipv6Net {
    /// Its address: no bit below the prefix is set.
    pub fn address(&self) -> Ipv6Addr {
        self.address
    }

    /// Bits of the network part: 8 to 126.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Its address and `host` more, as [`Ipv4Net::host`].
    fn host(&self, host: u8) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(self.address).wrapping_add(u128::from(host)))
    }

    /// What its gateway has.
    pub fn gateway(&self) -> Ipv6Addr {
        self.host(1)
    }

    /// What its guest is given.
    pub fn guest(&self) -> Ipv6Addr {
        self.host(2)
    }
}

impl FromStr for Ipv6Net {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (address, prefix) = text.split_once('/').ok_or(())?;
        let address: Ipv6Addr = address.parse().map_err(|_| ())?;
        let prefix: u8 = prefix.parse().map_err(|_| ())?;
        if !(8..=126).contains(&prefix) {
            return Err(());
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
        let address = Ipv6Addr::from(u128::from(address) & mask);
        // ::/8 has the loopback address and those that stand for IPv4 (RFC 4291, section 2.4).
        let is_reserved = address.octets().starts_with(&[0]);
        if is_reserved || address.is_multicast() || address.is_unicast_link_local() {
            return Err(());
        }
        Ok(Self { address, prefix })
    }
}

impl fmt::Display for Ipv6Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The guest's own networks behind masquerade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestNetworks {
    /// The IPv4 network.
    pub ipv4: Ipv4Net,
    /// The IPv6 network, which counts where the Pod has an IPv6 address.
    pub ipv6: Ipv6Net,
}

/// How a NIC is bound to its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Address translation: the guest has an address of a network of its own.
    Masquerade {
        /// The guest's own networks.
        networks: GuestNetworks,
        /// What is forwarded to the guest.
        forwards: Forwards,
    },
    /// A Linux bridge: the guest takes over the MAC and the IP address of the interface in the Pod.
    Bridge,
    /// A process of passt: the guest has the IP addresses of the Pod, and what it sends and gets goes through sockets there.
    Passt {
        /// What is forwarded to the guest.
        forwards: Forwards,
    },
}

impl Binding {
    /// The ports that are forwarded and may have names; none where everything is, or ranges are.
    pub fn ports(&self) -> &[Port] {
        match self {
            Self::Masquerade { forwards, .. } | Self::Passt { forwards } => forwards.ports(),
            Self::Bridge => &[],
        }
    }
}

/// What a network is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkSource {
    /// The network of Pods.
    Pod,
    /// A NetworkAttachmentDefinition of Multus.
    Multus(NetworkAttachment),
}

/// A reference to a NetworkAttachmentDefinition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAttachment {
    namespace: Option<String>,
    name: String,
    is_default: bool,
}

impl NetworkAttachment {
    /// The reference of a network, if it has a valid one.
    pub fn read(multus: &v1::MultusNetwork) -> Option<Self> {
        let (namespace, name) = match multus.network_name.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, multus.network_name.as_str()),
        };
        let is_namespace = |namespace: &str| is_dns_subdomain(namespace) && !namespace.contains('.');
        (is_dns_subdomain(name) && namespace.is_none_or(is_namespace)).then(|| Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            is_default: multus.default == Some(true),
        })
    }

    /// Its namespace, if it is not that of the VMI.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it replaces the network of Pods.
    pub fn is_default(&self) -> bool {
        self.is_default
    }
}

impl NetworkSource {
    /// Whether it is what the first interface of the Pod is on.
    pub fn is_primary(&self) -> bool {
        match self {
            Self::Pod => true,
            Self::Multus(attachment) => attachment.is_default,
        }
    }

    /// The interface of the Pod on a network of this name.
    pub fn pod_interface(&self, network: &str) -> String {
        if self.is_primary() { PRIMARY_POD_INTERFACE.to_owned() } else { pod_interface(network) }
    }
}

/// A binding that there is.
#[derive(Clone, Copy)]
pub(super) enum BindingKind {
    Bridge,
    Masquerade,
    Passt,
    Sriov,
}

/// The binding of an interface, if it has one that there is.
pub(super) fn binding(interface: &v1::Interface, at: &Field, found: &mut Findings) -> Option<BindingKind> {
    let others = [
        ("slirp", interface.slirp.is_some()),
        ("macvtap", interface.macvtap.is_some()),
        ("passt", interface.passt.is_some()),
        ("binding", interface.binding.is_some()),
    ];
    let known = [
        interface.bridge.as_ref().map(|_| BindingKind::Bridge),
        interface.masquerade.as_ref().map(|_| BindingKind::Masquerade),
        interface.passt_binding.as_ref().map(|_| BindingKind::Passt),
        interface.sriov.as_ref().map(|_| BindingKind::Sriov),
    ];
    let mut given = known.iter().flatten().count();
    for (name, there) in others {
        if there {
            given += 1;
            let message = format!(
                "the binding {name} is not available: use masquerade: {{}}, bridge: {{}}, passtBinding: {{}} or sriov: {{}}"
            );
            found.not_supported(&at.at(name), message);
        }
    }
    match given {
        1 => {}
        0 if interface.extra.is_empty() => {
            let which =
                "write masquerade: {} or passtBinding: {} for the pod network, bridge: {}, or sriov: {}";
            found.required_value(at, which);
        }
        0 => {}
        _ => found.invalid(at, "has several bindings: keep one"),
    }
    known.into_iter().flatten().next().filter(|_| given == 1)
}

/// A network and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) name: String,
    /// What it is; absent where that cannot be read.
    pub(super) source: Option<NetworkSource>,
    /// The guest's own networks behind masquerade.
    pub(super) guest: Option<GuestNetworks>,
}

pub(super) fn read(
    networks: &[v1::Network],
    interfaces: &[v1::Interface],
    found: &mut Findings,
) -> Vec<Network> {
    let at = Field::new("spec.networks");
    let mut read: Vec<Network> = Vec::new();
    for (index, network) in networks.iter().enumerate() {
        let at = at.index(index);
        name(&network.name, &read, interfaces, &at.at("name"), found);
        let kinds = [network.pod.is_some(), network.multus.is_some(), network.resource_claim.is_some()];
        match kinds.iter().filter(|there| **there).count() {
            1 => {}
            0 if !network.extra.is_empty() => {}
            0 => found.required_value(&at, "write pod: {}, or multus with a networkName"),
            _ => found.invalid(&at, "is several networks at once: keep one of pod, multus and resourceClaim"),
        }
        if network.resource_claim.is_some() {
            let message = "a network of a resource claim is not available yet: use pod or multus";
            found.not_supported(&at.at("resourceClaim"), message);
        }
        let guest = network.pod.as_ref().and_then(|pod| vm_networks(pod, &at.at("pod"), found));
        let source = source(network, &at, found);
        let is_primary = |network: &Network| network.source.as_ref().is_some_and(NetworkSource::is_primary);
        let before = read.iter().find(|before| is_primary(before)).and_then(|before| before.source.as_ref());
        match (&source, before) {
            (Some(NetworkSource::Pod), Some(NetworkSource::Pod)) => {
                found.duplicate(&at.at("pod"), "a network before this one is the pod network, too: keep one");
            }
            (Some(source), Some(_)) if source.is_primary() => {
                let message = "a network before this one is what the first interface of the Pod is on, too: a VMI has \
                               either the pod network or one multus network with default: true";
                found.duplicate(&at, message);
            }
            _ => {}
        }
        read.push(Network { name: network.name.clone(), source, guest });
    }
    read
}

fn source(network: &v1::Network, at: &Field, found: &mut Findings) -> Option<NetworkSource> {
    if network.pod.is_some() {
        return Some(NetworkSource::Pod);
    }
    let multus = network.multus.as_ref()?;
    let at = at.at("multus").at("networkName");
    if multus.network_name.is_empty() {
        found.required_value(&at, "name a NetworkAttachmentDefinition");
        return None;
    }
    let read = NetworkAttachment::read(multus);
    if read.is_none() {
        let detail = "must be the name of a NetworkAttachmentDefinition, or its namespace, '/' and its name";
        found.invalid_value(&at, &multus.network_name, detail);
    }
    read.map(NetworkSource::Multus)
}

fn name(name: &str, before: &[Network], interfaces: &[v1::Interface], at: &Field, found: &mut Findings) {
    if name.is_empty() {
        found.required_value(at, "a network needs a name");
    } else if before.iter().any(|known| known.name == name) {
        found.duplicate(at, format!("a network before this one is called {name:?}, too"));
    } else if interfaces.iter().all(|interface| interface.name != name) {
        found.not_found(
            at,
            format!("no interface in spec.domain.devices.interfaces is called {name:?}: add one, or remove the network"),
        );
    }
}

fn vm_networks(pod: &v1::PodNetwork, at: &Field, found: &mut Findings) -> Option<GuestNetworks> {
    let ipv4 = or_default(&pod.vm_network_cidr, VM_NETWORK);
    if ipv4.is_none() {
        let detail = format!("must be an IPv4 network of 8 to 30 bits, such as {VM_NETWORK}");
        found.invalid_value(&at.at("vmNetworkCIDR"), &pod.vm_network_cidr, detail);
    }
    let ipv6 = or_default(&pod.vm_ipv6_network_cidr, VM_IPV6_NETWORK);
    if ipv6.is_none() {
        let detail = format!(
            "must be an IPv6 network of 8 to 126 bits for global unicast addresses, such as {VM_IPV6_NETWORK}"
        );
        found.invalid_value(&at.at("vmIPv6NetworkCIDR"), &pod.vm_ipv6_network_cidr, detail);
    }
    Some(GuestNetworks { ipv4: ipv4?, ipv6: ipv6? })
}

/// A network as it is written; `None` where it is invalid.
fn or_default<T: FromStr>(text: &str, default: T) -> Option<T> {
    if text.is_empty() { Some(default) } else { text.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_cut_to_their_prefix() {
        let net: Ipv4Net = "192.168.7.9/24".parse().unwrap();
        assert_eq!(net.to_string(), "192.168.7.0/24");
        assert_eq!(
            (net.gateway().to_string(), net.guest().to_string()),
            ("192.168.7.1".into(), "192.168.7.2".into())
        );
        for text in ["", "10.0.2.0", "10.0.2.0/31", "10.0.2.0/0", "10.0.2/24", "::/64", "10.0.2.0/-1"] {
            assert!(text.parse::<Ipv4Net>().is_err(), "{text}");
        }
    }

    #[test]
    fn ipv6_networks_have_room_for_a_gateway_and_a_guest() {
        let net: Ipv6Net = "fd10:0:2::9/120".parse().unwrap();
        assert_eq!(net, VM_IPV6_NETWORK);
        assert_eq!(
            (net.to_string(), net.gateway().to_string(), net.guest().to_string()),
            ("fd10:0:2::/120".into(), "fd10:0:2::1".into(), "fd10:0:2::2".into())
        );
        assert!("2001:db8::/126".parse::<Ipv6Net>().is_ok());
        for text in [
            "",
            "fd10::",
            "fd10::/127",
            "fd10::/0",
            "10.0.2.0/24",
            "fe80::/64",
            "ff02::/16",
            "::/64",
            "fd10::/-1",
        ] {
            assert!(text.parse::<Ipv6Net>().is_err(), "{text}");
        }
    }
}
