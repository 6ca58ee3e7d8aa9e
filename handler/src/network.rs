//! The network of one VM: a namespace, a veth pair to the host, a tap for the guest, and NAT between them.
//!
//! ```text
//! host                         | namespace vireo-<uid>                     | guest
//! vv<hash> 10.201.0.1/30 ------- eth0 10.201.0.2/30 --NAT-- tap0 10.0.2.1/24 ---- 10.0.2.2
//! ```
//!
//! The same again for IPv6, where it is wanted: a /126 for the wire, fd10:0:2::1/120 for the tap.
//!
//! Its [`Plan`] is written to disk before any of it exists, so that the network can be completed or removed after a
//! crash at any point.

pub mod address;
pub mod antispoof;
pub mod bridge;
pub mod dns;
pub mod host;
pub(crate) mod inside;
mod ipv6;
mod link;
pub mod netns;
pub mod nft;
mod owner;
pub mod ports;
pub mod tap;
mod wire;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::{Ipv4Net, Ipv6Net};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tracing::info;
use uuid::Uuid;
use vireo_api::spec;
use vireo_vmconfig::MacAddr;

use address::{AddressError, WIRE_IPV6_PREFIX, WIRE_PREFIX, Wire, WireIpv6};
use antispoof::{Addresses, Ipv6Source, Sender};
use host::GuestAccess;
use nft::NftError;
use ports::Ports;
use wire::{find_wire, make_namespace, make_wire, unless_foreign, verify_namespace};

/// The guest's tap, in its namespace.
pub const TAP: &str = "tap0";
/// The namespace's end of the wire.
pub const POD_INTERFACE: &str = vireo_api::names::PRIMARY_POD_INTERFACE;
const LOOPBACK: &str = "lo";
const LARGEST_MTU: u32 = 1500;
/// The least an IPv4 link must carry that a guest would also use for IPv6.
const SMALLEST_MTU: u32 = 1280;

/// Why a VM has no network.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// The handler lacks a capability.
    #[error(
        "the handler lacks {0}, which networks need: run virt-handler as root, or give the VM no interface \
         (spec.domain.devices.autoattachPodInterface: false)"
    )]
    Capability(&'static str),
    /// The namespace.
    #[error("cannot {verb} the network namespace {name}")]
    Namespace {
        /// "make", "enter" or "remove".
        verb: &'static str,
        /// Which.
        name: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A part of a name that is the VMI's exists, and is not its own.
    #[error(
        "{what} exists and is not this VMI's (alias {alias:?}): it is left alone; remove it if nothing uses it"
    )]
    Foreign {
        /// What.
        what: String,
        /// The alias that should be the mark of the VMI.
        alias: String,
    },
    /// Netlink itself.
    #[error("cannot speak netlink")]
    Netlink(#[source] io::Error),
    /// A link, address or route.
    #[error("cannot {what}")]
    Kernel {
        /// What was tried.
        what: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A network that the Pod is not on.
    #[error(
        "the Pod has no interface {0}: Multus, or another plugin that reads the annotation k8s.v1.cni.cncf.io/networks, \
         must be installed on the node, and its dynamic networks controller for Pods that run"
    )]
    NoPodInterface(String),
    /// A kernel setting.
    #[error("cannot set {path}")]
    Sysctl {
        /// Below /proc/sys.
        path: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The packet rules.
    #[error("cannot set up packet rules")]
    Nft(#[from] NftError),
    /// No address is left.
    #[error(transparent)]
    Address(#[from] AddressError),
}

/// The parts of one VM's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The namespace's name.
    pub namespace: String,
    /// The host's end of the wire.
    pub host_link: String,
    /// The /30 of the wire.
    pub wire: Ipv4Net,
    /// The /126 of the wire, where guests have IPv6.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_ipv6: Option<Ipv6Net>,
    /// The MTU of wire and tap.
    pub mtu: u32,
    /// The VMI that namespace and wire are marked with. Those of earlier releases have no marks, and shorter names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Uuid>,
}

impl Plan {
    /// Names the parts of a VM's network after it.
    pub fn new(uid: Uuid, wire: Wire, wire_ipv6: Option<WireIpv6>, mtu: u32) -> Self {
        Self {
            namespace: owner::namespace(uid),
            host_link: owner::host_link(uid),
            wire: wire.net,
            wire_ipv6: wire_ipv6.map(|wire| wire.net),
            mtu,
            owner: Some(uid),
        }
    }

    fn mark(&self) -> Option<String> {
        self.owner.map(owner::mark)
    }

    /// The ends of the wire.
    pub fn wire(&self) -> Wire {
        Wire { net: self.wire }
    }

    /// The ends of the wire in IPv6.
    pub fn wire_ipv6(&self) -> Option<WireIpv6> {
        self.wire_ipv6.map(|net| WireIpv6 { net })
    }

    /// All addresses of the wire.
    pub fn wire_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let (ipv4, ipv6) = (self.wire(), self.wire_ipv6());
        let ipv6 = ipv6.into_iter().flat_map(|wire| [wire.host().into(), wire.vm().into()]);
        [ipv4.host().into(), ipv4.vm().into()].into_iter().chain(ipv6)
    }

    /// The addresses of the VMI, IPv4 first.
    pub fn vm_addresses(&self) -> Vec<IpAddr> {
        let ipv6 = self.wire_ipv6().map(|wire| wire.vm().into());
        std::iter::once(self.wire().vm().into()).chain(ipv6).collect()
    }
}

/// The guest's own network, inside the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inside {
    /// The network; the gateway has its first address and the guest the second.
    pub net: spec::Ipv4Net,
    /// The same in IPv6; it counts where the namespace has an IPv6 address.
    pub net6: spec::Ipv6Net,
    /// The ports that reach the guest; all when empty.
    pub forwards: Vec<Ports>,
    /// The MAC of its NIC.
    pub mac: MacAddr,
    /// Of the tap.
    pub queues: tap::Queues,
}

impl Inside {
    fn sender(&self, has_ipv6: bool) -> Sender {
        let ipv6 = if has_ipv6 { Ipv6Source::Known(self.net6.guest()) } else { Ipv6Source::None };
        Sender { mac: self.mac, addresses: Addresses::Known { ipv4: self.net.guest(), ipv6 } }
    }
}

/// What a guest behind masquerade gets of its network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uplink {
    /// The MTU.
    pub mtu: u32,
    /// The addresses outside, IPv4 first. Guests have IPv6 where there is an IPv6 address.
    pub addresses: Vec<IpAddr>,
}

impl Uplink {
    /// Whether the guest gets an IPv6 address.
    pub fn has_ipv6(&self) -> bool {
        self.addresses.iter().any(IpAddr::is_ipv6)
    }
}

impl From<&Plan> for Uplink {
    fn from(plan: &Plan) -> Self {
        Self { mtu: plan.mtu, addresses: plan.vm_addresses() }
    }
}

/// The first of the addresses of each family, IPv4 first.
pub(crate) fn first_of_each_family(addresses: impl IntoIterator<Item = IpAddr>) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for address in addresses {
        if found.iter().all(|known| known.is_ipv4() != address.is_ipv4()) {
            found.push(address);
        }
    }
    // V4 sorts before V6.
    found.sort();
    found
}

/// Whether this process may make networks.
///
/// # Errors
/// Names the capability it lacks.
pub fn permitted() -> Result<(), NetworkError> {
    let effective =
        rustix::thread::capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty());
    for (capability, name) in
        [(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"), (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")]
    {
        if !effective.contains(capability) {
            return Err(NetworkError::Capability(name));
        }
    }
    Ok(())
}

/// All addresses of the host, so that none is used twice, and the MTU for new wires. Blocks.
///
/// # Errors
/// When netlink fails.
pub fn host_facts() -> Result<(BTreeSet<IpAddr>, u32), NetworkError> {
    link::with_links(async |links| {
        let addresses = links.addresses().await?.into_iter().collect();
        let mtu = links.uplink_mtu().await?.unwrap_or(LARGEST_MTU).clamp(SMALLEST_MTU, LARGEST_MTU);
        Ok((addresses, mtu))
    })
}

/// Lets the host forward and masquerade for ranges of guests, and filters what they send to it and to each other. Blocks;
/// repeatable.
///
/// # Errors
/// When a setting or rule is rejected.
pub fn prepare_host(
    range: Ipv4Net,
    range_ipv6: Option<Ipv6Net>,
    access: &GuestAccess,
) -> Result<(), NetworkError> {
    nft::apply(&host::filter_rules(access, &dns::of_host().servers))?;
    if sysctl("net/ipv4/ip_forward", "1")? == Setting::Changed {
        info!("IPv4 forwarding is now on for this host: guests reach the network through it");
    }
    nft::apply(&host::nat_rules(range))?;
    range_ipv6.map_or(Ok(()), ipv6::prepare_host)
}

/// Makes a VM's network, or completes it. Without a guest's side of it, there is no tap: the guest uses sockets in the namespace.
/// Blocks; repeatable.
///
/// # Errors
/// When the kernel rejects a part, and when a part exists that is not the VM's; the created parts stay for the retry or
/// [`remove`].
pub fn ensure(plan: &Plan, inside: Option<&Inside>) -> Result<(), NetworkError> {
    permitted()?;
    make_namespace(plan)?;
    make_wire(plan)?;
    let (wire, host_link) = (plan.wire(), &plan.host_link);
    link::with_links(async |links| {
        if plan.wire_ipv6.is_some() {
            ipv6::distrust_neighbours(host_link)?;
        }
        links.raise(host_link, Some((wire.host(), WIRE_PREFIX)), Some(plan.mtu)).await?;
        match plan.wire_ipv6() {
            Some(wire) => links.add_ipv6(host_link, wire.host(), WIRE_IPV6_PREFIX).await,
            None => Ok(()),
        }
    })?;
    let (plan, inside) = (plan.clone(), inside.cloned());
    in_namespace(&netns::path(&plan.namespace), move || set_up_namespace(&plan, inside.as_ref()))
}

/// Makes the guest's side of a Pod's network, or completes it: the tap behind the interface that the Pod has. Returns
/// what the Pod has. Blocks; repeatable.
///
/// # Errors
/// When the kernel rejects a part.
pub fn ensure_in_pod(namespace: &Path, inside: &Inside) -> Result<Uplink, NetworkError> {
    permitted()?;
    let inside = inside.clone();
    in_namespace(namespace, move || {
        let (mtu, addresses) = link::with_links(async |links| {
            let addresses = links.global_addresses(POD_INTERFACE).await?;
            Ok((links.uplink_mtu().await?, first_of_each_family(addresses)))
        })?;
        let uplink = Uplink { mtu: mtu.unwrap_or(LARGEST_MTU).max(SMALLEST_MTU), addresses };
        sysctl("net/ipv4/ip_forward", "1")?;
        set_up_guest_side(uplink.mtu, &inside, uplink.has_ipv6())?;
        if uplink.has_ipv6() {
            ipv6::forward_in_pod()?;
        }
        sysctl("net/ipv4/conf/all/rp_filter", "1")?;
        Ok(uplink)
    })
}

/// The addresses of the network of a Pod, IPv4 first. Blocks.
///
/// # Errors
/// When the namespace cannot be entered, or the kernel does not answer.
pub fn addresses_in_pod(namespace: &Path) -> Result<Vec<IpAddr>, NetworkError> {
    let addresses = || link::with_links(async |links| links.global_addresses(POD_INTERFACE).await);
    Ok(first_of_each_family(in_namespace(namespace, addresses)?))
}

/// Prepares the calling thread's network namespace for a process of passt with a user and a group: its guest may send ICMP echo
/// requests (icmp(7)), and reaches nothing in the namespace itself. Blocks; repeatable.
///
/// # Errors
/// When a setting or rule is rejected.
pub(crate) fn prepare_passt(user: u32, group: u32) -> Result<(), NetworkError> {
    sysctl("net/ipv4/ping_group_range", "0\t2147483647")?;
    Ok(nft::apply(&nft::passt_rules(user, group))?)
}

/// Does work in the network namespace of a Pod.
fn in_namespace<T: Send + 'static>(
    namespace: &Path,
    work: impl FnOnce() -> Result<T, NetworkError> + Send + 'static,
) -> Result<T, NetworkError> {
    let name = namespace.display().to_string();
    netns::inside(namespace, work).map_err(|source| NetworkError::Namespace {
        verb: "enter",
        name,
        source,
    })?
}

/// Makes the tap, its rules and its addresses. Rules come before addresses: no packet passes unfiltered.
fn set_up_guest_side(mtu: u32, inside: &Inside, has_ipv6: bool) -> Result<(), NetworkError> {
    tap::create(TAP, inside.queues)
        .or_else(busy_is_fine)
        .map_err(|source| NetworkError::Kernel { what: format!("make {TAP}"), source })?;
    nft::apply(&antispoof::rules(TAP, inside.sender(has_ipv6), ipv6::ROUTER))?;
    nft::apply(&nft::guest_rules(inside.net.guest(), inside.net.gateway(), &inside.forwards))?;
    if has_ipv6 {
        ipv6::filter_guest(inside)?;
    } else {
        // The guest must not be able to make the namespace configure itself.
        sysctl(&format!("net/ipv6/conf/{TAP}/disable_ipv6"), "1").or_else(absent_is_fine)?;
    }
    link::with_links(async |links| {
        links.raise(TAP, Some((inside.net.gateway(), inside.net.prefix())), Some(mtu)).await?;
        if has_ipv6 { ipv6::address_tap(&links, inside).await } else { Ok(()) }
    })
}

/// Sets up the inside of the namespace.
fn set_up_namespace(plan: &Plan, inside: Option<&Inside>) -> Result<(), NetworkError> {
    let (wire, wire_ipv6) = (plan.wire(), plan.wire_ipv6());
    if wire_ipv6.is_some() {
        sysctl("net/ipv6/conf/all/disable_ipv6", "0")?;
        ipv6::distrust_neighbours(POD_INTERFACE)?;
    } else {
        sysctl("net/ipv6/conf/all/disable_ipv6", "1").or_else(absent_is_fine)?;
    }
    if let Some(inside) = inside {
        sysctl("net/ipv4/ip_forward", "1")?;
        set_up_guest_side(plan.mtu, inside, wire_ipv6.is_some())?;
    }
    link::with_links(async |links| {
        links.raise(LOOPBACK, None, None).await?;
        links.raise(POD_INTERFACE, Some((wire.vm(), WIRE_PREFIX)), Some(plan.mtu)).await?;
        links.default_route(wire.host().into()).await?;
        if let Some(wire) = wire_ipv6 {
            links.add_ipv6(POD_INTERFACE, wire.vm(), WIRE_IPV6_PREFIX).await?;
            links.default_route(wire.host().into()).await?;
        }
        Ok(())
    })?;
    if inside.is_some() && wire_ipv6.is_some() {
        ipv6::forward()?;
    }
    // Drop packets with a source address that is not the guest's own.
    sysctl("net/ipv4/conf/all/rp_filter", "1")?;
    Ok(())
}

/// A busy tap exists already: a launcher has opened it.
fn busy_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::ResourceBusy { Ok(()) } else { Err(error) }
}

/// A kernel without IPv6 has nothing to disable.
fn absent_is_fine(error: NetworkError) -> Result<Setting, NetworkError> {
    match error {
        NetworkError::Sysctl { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            Ok(Setting::Unchanged)
        }
        other => Err(other),
    }
}

/// Removes a VM's network. Blocks; what is gone already, or is not the VM's, is success.
///
/// # Errors
/// When the kernel refuses.
pub fn remove(plan: &Plan) -> Result<(), NetworkError> {
    permitted()?;
    // The host's end first: a namespace with a process left in it would keep the wire, and with it the address.
    if let Some(true) = unless_foreign(find_wire(plan))? {
        link::with_links(async |links| links.remove(&plan.host_link).await)?;
    }
    let is_there = netns::exists(&netns::path(&plan.namespace));
    if is_there && unless_foreign(verify_namespace(plan))?.is_none() {
        return Ok(());
    }
    netns::remove(&plan.namespace).map_err(namespace_error("remove", plan))
}

fn namespace_error(verb: &'static str, plan: &Plan) -> impl FnOnce(io::Error) -> NetworkError {
    let name = plan.namespace.clone();
    move |source| NetworkError::Namespace { verb, name, source }
}

/// Sets a value that is per namespace, in the calling thread's. A value that is set already is left alone, so that a
/// read-only /proc/sys with the right value does.
fn sysctl(path: &str, value: &str) -> Result<Setting, NetworkError> {
    let file = format!("/proc/sys/{path}");
    if fs::read_to_string(&file).is_ok_and(|now| now.trim() == value) {
        return Ok(Setting::Unchanged);
    }
    fs::write(&file, value).map_err(|source| NetworkError::Sysctl { path: path.to_owned(), source })?;
    Ok(Setting::Changed)
}

/// Whether a kernel setting had to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    Unchanged,
    Changed,
}

#[cfg(test)]
mod tests;
