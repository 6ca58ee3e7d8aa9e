//! IPv6 behind masquerade: the settings of the kernel, and the guest's side of it.

use std::fs;
use std::net::Ipv6Addr;

use ipnet::Ipv6Net;
use tracing::info;

use super::link;
use super::{Inside, NetworkError, POD_INTERFACE, Setting, TAP, host, nft, sysctl};

/// The gateway's link-local address, which guests have as their router. It does not depend on the tap's MAC.
pub(super) const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
const ROUTER_PREFIX: u8 = 64;
const FORWARDING: &str = "net/ipv6/conf/all/forwarding";

/// The address of a network and `n` more.
pub(super) fn nth(net: Ipv6Net, n: u128) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(net.network()).wrapping_add(n))
}

/// Whether the kernel has IPv6.
pub(super) fn is_available() -> bool {
    fs::exists(format!("/proc/sys/{FORWARDING}")).unwrap_or(false)
}

/// Whether an address is one that packets from elsewhere can be routed to.
pub(super) fn is_global(address: Ipv6Addr) -> bool {
    let is_local = address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local();
    !is_local && !address.is_multicast()
}

/// Has a link of this namespace take nothing from its neighbours: neither addresses nor routes.
pub(super) fn distrust_neighbours(name: &str) -> Result<(), NetworkError> {
    // Without duplicate address detection, addresses are there at once, and no neighbour can take one away.
    let settings = [
        ("accept_ra", "0"),
        ("autoconf", "0"),
        ("accept_redirects", "0"),
        ("accept_dad", "0"),
        ("disable_ipv6", "0"),
    ];
    for (setting, value) in settings {
        sysctl(&format!("net/ipv6/conf/{name}/{setting}"), value)?;
    }
    Ok(())
}

/// Lets the namespace of a Pod forward. A default route that its network has advertised stays.
pub(super) fn forward_in_pod() -> Result<(), NetworkError> {
    keep_advertised_routes(POD_INTERFACE)?;
    sysctl(FORWARDING, "1").map(drop)
}

/// Lets the namespace of a VM forward.
pub(super) fn forward() -> Result<Setting, NetworkError> {
    sysctl(FORWARDING, "1")
}

/// Lets the host forward for a range of guests.
pub(super) fn prepare_host(range: Ipv6Net) -> Result<(), NetworkError> {
    for name in link::with_links(async |links| links.advertised_uplinks().await)? {
        if keep_advertised_routes(&name)? == Setting::Changed {
            info!(
                interface = name,
                "accept_ra is now 2: its default route by router advertisements stays with forwarding"
            );
        }
    }
    if forward()? == Setting::Changed {
        info!("IPv6 forwarding is now on for this host: guests reach the network through it");
    }
    Ok(nft::apply(&host::ipv6_nat_rules(range))?)
}

/// A router takes advertisements of others only from links where that is said explicitly
/// (Documentation/networking/ip-sysctl.rst, accept_ra).
fn keep_advertised_routes(name: &str) -> Result<Setting, NetworkError> {
    let setting = format!("net/ipv6/conf/{name}/accept_ra");
    let value = fs::read_to_string(format!("/proc/sys/{setting}")).unwrap_or_default();
    if value.trim() == "1" { sysctl(&setting, "2") } else { Ok(Setting::Unchanged) }
}

/// Filters what the guest sends, before its tap has an address.
pub(super) fn filter_guest(inside: &Inside) -> Result<(), NetworkError> {
    nft::apply(&nft::guest_ipv6_rules(inside.net6.guest(), inside.net6.gateway(), ROUTER, &inside.forwards))?;
    distrust_neighbours(TAP)?;
    // 1: no link-local address but ours.
    sysctl(&format!("net/ipv6/conf/{TAP}/addr_gen_mode"), "1").map(drop)
}

/// Gives the tap its addresses.
pub(super) async fn address_tap(links: &link::Links, inside: &Inside) -> Result<(), NetworkError> {
    links.add_ipv6(TAP, ROUTER, ROUTER_PREFIX).await?;
    links.add_ipv6(TAP, inside.net6.gateway(), inside.net6.prefix()).await
}
