//! What a guest learns of its IPv6 network: router advertisements, and a DHCPv6 server for the one guest on a tap
//! device.
//!
//! The advertisements say that the network is on the link, that its addresses come by DHCPv6, and that their sender is the
//! router. The server gives one address.

mod advertisement;
mod answer;
mod request;
mod server;

pub use advertisement::{advertisement, is_solicitation};
pub use answer::answer;
pub use server::{Ipv6Error, Server};

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use crate::launch::Ipv6Lease;

/// The network on the link of a lease.
fn network(lease: &Ipv6Lease) -> Option<Ipv6Net> {
    Ipv6Net::new(lease.address, lease.prefix_length).ok().map(|net| net.trunc())
}

/// Addresses as options have them.
fn octets(addresses: &[Ipv6Addr]) -> Vec<u8> {
    addresses.iter().flat_map(Ipv6Addr::octets).collect()
}
