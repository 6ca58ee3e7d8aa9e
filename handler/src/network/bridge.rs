//! NICs on bridges: the guest takes over an interface of its Pod.
//!
//! ```text
//! network --- eth0, without addresses, another MAC --- k6t-eth0 --- tap0 --- guest with the MAC and the address of eth0
//! ```
//!
//! What the guest takes over is written to disk before the interface changes: afterwards the Pod no longer has it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::Path;

use ipnet::Ipv4Net;
use rtnetlink::packet_route::AddressFamily;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use vireo_api::spec::{Binding, Vm};
use vireo_vmconfig::MacAddr;

use super::antispoof::{self, Addresses, Ipv6Source, Sender};
use super::link::{self, Links};
use super::{NetworkError, absent_is_fine, busy_is_fine, in_namespace, ipv6, nft, permitted, sysctl, tap};

/// The DHCP servers of bridges: link-local addresses from here on, as KubeVirt's.
const FIRST_SERVER: Ipv4Addr = Ipv4Addr::new(169, 254, 75, 10);

/// An interface of a Pod that a guest takes over, as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodInterface {
    /// Its name.
    pub name: String,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Its MTU.
    pub mtu: u32,
    /// Its IPv4 address; of several the first. Without one, the guest gets none.
    pub address: Option<Ipv4Net>,
    /// The IPv4 routes by it, but the one to the network of its address.
    pub routes: Vec<Route>,
}

/// The interfaces of a Pod that its guest takes over, by the names of its NICs.
pub type Bridged = BTreeMap<String, PodInterface>;

/// An IPv4 route by an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Where it leads to.
    pub destination: Ipv4Net,
    /// By which router; `None` for what is on the link.
    pub gateway: Option<Ipv4Addr>,
}

impl PodInterface {
    /// Its MAC, unless it is no Ethernet interface.
    pub fn mac(&self) -> Option<MacAddr> {
        MacAddr::unicast(self.mac)
    }

    /// The router of its default route.
    pub fn gateway(&self) -> Option<Ipv4Addr> {
        self.routes.iter().find(|route| route.destination.prefix_len() == 0)?.gateway
    }
}

/// A NIC on a bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bridge {
    /// Its position among the NICs of its VM.
    index: u8,
    /// The interface of the Pod.
    pub pod_interface: String,
    /// The MAC that the spec gives the guest; otherwise it has that of the interface.
    guest_mac: Option<MacAddr>,
    /// Of its tap.
    queues: tap::Queues,
}

impl Bridge {
    /// The bridges that a spec requests, with the names of their NICs.
    pub(crate) fn requested(vm: &Vm) -> impl Iterator<Item = (&str, Self)> {
        let bridged =
            vm.interfaces().iter().enumerate().filter(|(_, one)| matches!(one.binding(), Binding::Bridge));
        bridged.map(|(index, one)| {
            let index = u8::try_from(index).unwrap_or(u8::MAX);
            let queues = tap::Queues::of(vm.queue_pairs(one));
            let (pod_interface, guest_mac) = (one.pod_interface(), one.mac());
            (one.name(), Self { index, pod_interface, guest_mac, queues })
        })
    }

    /// That of one NIC.
    pub(crate) fn of(vm: &Vm, nic: &str) -> Option<Self> {
        Self::requested(vm).find_map(|(name, bridge)| (name == nic).then_some(bridge))
    }

    /// That of the first NIC, for tests.
    #[cfg(test)]
    pub(super) fn primary() -> Self {
        let pod_interface = super::POD_INTERFACE.to_owned();
        Self { index: 0, pod_interface, guest_mac: None, queues: tap::Queues::Single }
    }

    /// The Linux bridge; KubeVirt's name.
    pub fn name(&self) -> String {
        name(&self.pod_interface)
    }

    /// The guest's tap; KubeVirt's name.
    pub fn tap(&self) -> String {
        tap_name(&self.pod_interface)
    }

    /// The address of its DHCP server.
    pub fn server(&self) -> Ipv4Addr {
        let [a, b, c, first] = FIRST_SERVER.octets();
        Ipv4Addr::new(a, b, c, first.saturating_add(self.index))
    }

    /// What the guest may send from. `None` where the spec gives it no MAC and the interface, which is not Ethernet's, has none.
    fn sender(&self, before: &PodInterface) -> Option<Sender> {
        // As in KubeVirt, the guest takes over an IPv4 address alone, and configures itself on a network with IPv6.
        let known = |net: Ipv4Net| Addresses::Known { ipv4: net.addr(), ipv6: Ipv6Source::OfNetwork };
        let addresses = before.address.map_or(Addresses::OfNetwork, known);
        Some(Sender { mac: self.guest_mac.or_else(|| before.mac())?, addresses })
    }

    /// A MAC of the host's, which no guest has: it depends on what the guest takes over.
    fn mac(&self, purpose: &str, of: [u8; 6]) -> MacAddr {
        let digest = Sha256::digest([purpose.as_bytes(), &of].concat());
        let [a, b, c, d, e, ..]: [u8; 32] = digest.into();
        MacAddr::local([a, b, c, d, e])
    }
}

/// The Linux bridge of an interface of a Pod.
fn name(pod_interface: &str) -> String {
    format!("k6t-{}", pod_interface.strip_prefix("pod").unwrap_or(pod_interface))
}

/// The tap on that bridge.
fn tap_name(pod_interface: &str) -> String {
    match pod_interface.strip_prefix("pod") {
        None => super::TAP.to_owned(),
        Some(suffix) => format!("tap{suffix}"),
    }
}

/// Removes the bridge and the tap of an interface of a Pod, which stays. Blocks; what is gone already is success.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(namespace: &Path, pod_interface: String) -> Result<(), NetworkError> {
    permitted()?;
    in_namespace(namespace, move || {
        let (bridge, tap) = (name(&pod_interface), tap_name(&pod_interface));
        nft::apply(&antispoof::no_rules(&tap))?;
        link::with_links(async |links| {
            links.remove(&tap).await?;
            links.remove(&bridge).await
        })
    })
}

/// Reads interfaces of a Pod, before any of them is changed. Blocks.
///
/// # Errors
/// When one is not there.
pub fn read(namespace: &Path, names: Vec<String>) -> Result<Vec<PodInterface>, NetworkError> {
    permitted()?;
    in_namespace(namespace, move || {
        link::with_links(async |links| {
            let mut read = Vec::new();
            for name in names {
                let missing = || NetworkError::NoPodInterface(name.clone());
                read.push(links.pod_interface(&name).await?.ok_or_else(missing)?);
            }
            Ok(read)
        })
    })
}

/// Makes the bridges of a Pod, or completes them. Blocks; repeatable.
///
/// # Errors
/// When the kernel rejects a part.
pub fn ensure(namespace: &Path, bridges: Vec<(Bridge, PodInterface)>) -> Result<(), NetworkError> {
    permitted()?;
    in_namespace(namespace, move || {
        // Else a Pod's own packet filter would see what only passes through. Older kernels have one setting for all.
        for family in ["iptables", "ip6tables", "arptables"] {
            sysctl(&format!("net/bridge/bridge-nf-call-{family}"), "0").or_else(absent_is_fine)?;
        }
        bridges.iter().try_for_each(|(bridge, before)| set_up(bridge, before))
    })
}

fn set_up(bridge: &Bridge, before: &PodInterface) -> Result<(), NetworkError> {
    let (name, tap, pod) = (bridge.name(), bridge.tap(), &before.name);
    tap::create(&tap, bridge.queues)
        .or_else(busy_is_fine)
        .map_err(|source| NetworkError::Kernel { what: format!("make {tap}"), source })?;
    if let Some(sender) = bridge.sender(before) {
        nft::apply(&antispoof::rules(&tap, sender, ipv6::ROUTER))?;
    }
    link::with_links(async |links| links.add_bridge(&name, bridge.mac("bridge", before.mac)).await)?;
    for device in [&name, &tap, pod] {
        // The Pod has no address on the guest's network, and does not configure itself there.
        sysctl(&format!("net/ipv6/conf/{device}/disable_ipv6"), "1").or_else(absent_is_fine)?;
    }
    // It answers for its own address alone, not for those of other interfaces.
    sysctl(&format!("net/ipv4/conf/{name}/arp_ignore"), "1")?;
    let mac = bridge.mac("interface", before.mac);
    let server = before.address.map(|_| (bridge.server(), 32));
    link::with_links(async |links| {
        take_over(&links, bridge, before, mac).await?;
        links.raise(&tap, None, Some(before.mtu)).await?;
        links.set_controller(&tap, &name).await?;
        links.raise(&name, server, Some(before.mtu)).await
    })
}

/// Puts the interface of the Pod into the bridge, without its addresses and with another MAC.
async fn take_over(
    links: &Links,
    bridge: &Bridge,
    before: &PodInterface,
    mac: MacAddr,
) -> Result<(), NetworkError> {
    let name = &before.name;
    links.flush(name, AddressFamily::Inet).await?;
    if links.mac(name).await? != Some(mac.octets()) {
        // Not every interface takes another MAC while it is up.
        links.lower(name).await?;
        links.set_mac(name, mac).await?;
    }
    links.set_controller(name, &bridge.name()).await?;
    // The guest's MAC is behind the tap, also where the network repeats what the guest has sent.
    links.stop_learning(name).await?;
    links.raise(name, None, None).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bridge(index: u8, pod_interface: &str) -> Bridge {
        Bridge {
            index,
            pod_interface: pod_interface.to_owned(),
            guest_mac: None,
            queues: tap::Queues::Single,
        }
    }

    #[test]
    fn devices_have_kubevirts_names_which_fit() {
        let primary = bridge(0, "eth0");
        assert_eq!((primary.name().as_str(), primary.tap().as_str()), ("k6t-eth0", "tap0"));
        let secondary = bridge(1, "pod16477688c0e");
        assert_eq!(
            (secondary.name().as_str(), secondary.tap().as_str()),
            ("k6t-16477688c0e", "tap16477688c0e")
        );
        assert!(secondary.name().len() < 16, "IFNAMSIZ");
        assert_eq!(bridge(1, "x").server().to_string(), "169.254.75.11");
        assert_eq!(bridge(u8::MAX, "x").server().to_string(), "169.254.75.255");
    }

    #[test]
    fn the_macs_of_the_host_are_stable_and_not_the_guests() {
        let guest = [0x52, 0x54, 0, 0, 0, 1];
        let bridge = bridge(0, "eth0");
        let macs = [bridge.mac("interface", guest), bridge.mac("bridge", guest)];
        assert_eq!(macs, [bridge.mac("interface", guest), bridge.mac("bridge", guest)]);
        assert_ne!(macs[0], macs[1]);
        assert!(macs.iter().all(|mac| mac.octets() != guest && mac.octets()[0] == 2));
    }
}
