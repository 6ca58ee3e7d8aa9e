use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use super::report::Findings;
use super::{Field, Port};
use crate::v1;

/// What masquerade uses where a manifest sets none.
const VM_NETWORK: Ipv4Net = Ipv4Net { address: Ipv4Addr::new(10, 0, 2, 0), prefix: 24 };

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

/// How a NIC is bound to the pod's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Address translation: the guest has an address of a network of its own.
    Masquerade {
        /// The guest's own network.
        network: Ipv4Net,
        /// What is forwarded to the guest; everything when empty.
        ports: Vec<Port>,
    },
}

/// A network and where it was written.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) name: String,
    /// The guest's own network; absent unless it is the pod network.
    pub(super) pod: Option<Ipv4Net>,
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
            0 => found.required_value(&at, "write pod: {}"),
            _ => found.invalid(&at, "is several networks at once: keep one of pod, multus and resourceClaim"),
        }
        for (field, there, what) in [
            ("multus", network.multus.is_some(), "a secondary network"),
            ("resourceClaim", network.resource_claim.is_some(), "a network of a resource claim"),
        ] {
            if there {
                found.not_supported(&at.at(field), format!("{what} is not available yet: use pod"));
            }
        }
        let pod = network.pod.as_ref().and_then(|pod| vm_network(pod, &at.at("pod"), found));
        if network.pod.is_some() && networks.iter().take(index).any(|other| other.pod.is_some()) {
            found.duplicate(&at.at("pod"), "a network before this one is the pod network, too: keep one");
        }
        read.push(Network { name: network.name.clone(), pod });
    }
    read
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

fn vm_network(pod: &v1::PodNetwork, at: &Field, found: &mut Findings) -> Option<Ipv4Net> {
    found.notice_if(
        !pod.vm_ipv6_network_cidr.is_empty(),
        &at.at("vmIPv6NetworkCIDR"),
        "the guest has IPv4 only",
    );
    if pod.vm_network_cidr.is_empty() {
        return Some(VM_NETWORK);
    }
    let parsed = pod.vm_network_cidr.parse().ok();
    if parsed.is_none() {
        found.invalid_value(
            &at.at("vmNetworkCIDR"),
            &pod.vm_network_cidr,
            format!("must be an IPv4 network of 8 to 30 bits, such as {VM_NETWORK}"),
        );
    }
    parsed
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
}
