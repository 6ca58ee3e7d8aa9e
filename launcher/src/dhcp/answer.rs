use std::net::Ipv4Addr;

use dhcproto::Encodable;
use dhcproto::v4::{DhcpOption, Flags, Message, MessageType, Opcode, OptionCode, UnknownOption};
use ipnet::Ipv4Net;
use vireo_vmconfig::MacAddr;

use super::request::Request;
use crate::launch::Lease;

/// 999 days: the address is the guest's as long as the guest is there. T1 and T2 follow RFC 2131, section 4.4.5.
const LEASE_SECONDS: u32 = 999 * 86_400;
/// The least a BOOTP message has; some clients drop shorter ones (RFC 1542, section 2.1).
const LEAST: usize = 300;

/// The offer, and its client.
#[derive(Clone, Debug)]
pub struct Offer {
    /// The only guest that is answered.
    pub mac: MacAddr,
    /// Its lease.
    pub lease: Lease,
    /// The MTU to announce.
    pub mtu: Option<u16>,
}

/// An answer and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The packet.
    pub packet: Vec<u8>,
    /// A unicast address only where the guest already uses that address.
    pub to: Ipv4Addr,
}

/// Answers one packet of the guest, or does not. The packet may be anything.
pub fn answer(packet: &[u8], offer: &Offer) -> Option<Answer> {
    let request = Request::parse(packet).filter(|request| request.mac == offer.mac.octets())?;
    let reply = reply(&request, offer)?;
    let mut packet = reply.message.to_vec().ok()?;
    packet.resize(packet.len().max(LEAST), 0);
    Some(Answer { packet, to: reply.to })
}

struct Reply {
    message: Message,
    to: Ipv4Addr,
}

/// RFC 2131, section 4.3.
fn reply(request: &Request, offer: &Offer) -> Option<Reply> {
    let lease = &offer.lease;
    let back = if request.ciaddr.is_unspecified() { Ipv4Addr::BROADCAST } else { request.ciaddr };
    match MessageType::from(request.kind) {
        MessageType::Discover => {
            let message = granting(request, offer, MessageType::Offer);
            Some(Reply { message, to: Ipv4Addr::BROADCAST })
        }
        MessageType::Request if request.server.is_some_and(|server| server != lease.server) => None,
        MessageType::Request if request.wanted.unwrap_or(request.ciaddr) == lease.address => {
            Some(Reply { message: granting(request, offer, MessageType::Ack), to: back })
        }
        MessageType::Request => {
            let mut message = skeleton(request, offer, MessageType::Nak);
            let text = format!("this network has {} for you", lease.address);
            message.opts_mut().insert(DhcpOption::Message(text));
            Some(Reply { message, to: Ipv4Addr::BROADCAST })
        }
        MessageType::Inform => {
            let mut message = skeleton(request, offer, MessageType::Ack);
            configuration(&mut message, offer);
            Some(Reply { message, to: back })
        }
        // There is only one lease: DECLINE and RELEASE change nothing.
        _ => None,
    }
}

fn skeleton(request: &Request, offer: &Offer, kind: MessageType) -> Message {
    let mut message = Message::default();
    message
        .set_opcode(Opcode::BootReply)
        .set_xid(request.xid)
        .set_flags(Flags::from(request.flags))
        .set_ciaddr(request.ciaddr)
        .set_chaddr(&request.mac);
    let options = message.opts_mut();
    options.insert(DhcpOption::MessageType(kind));
    options.insert(DhcpOption::ServerIdentifier(offer.lease.server));
    // RFC 6842: a client that names itself is answered by that name.
    if let Some(client) = &request.client_identifier {
        options.insert(DhcpOption::ClientIdentifier(client.clone()));
    }
    message
}

fn granting(request: &Request, offer: &Offer, kind: MessageType) -> Message {
    let mut message = skeleton(request, offer, kind);
    message.set_yiaddr(offer.lease.address);
    let options = message.opts_mut();
    options.insert(DhcpOption::AddressLeaseTime(LEASE_SECONDS));
    options.insert(DhcpOption::Renewal(LEASE_SECONDS / 2));
    options.insert(DhcpOption::Rebinding(LEASE_SECONDS / 8 * 7));
    configuration(&mut message, offer);
    message
}

/// Everything but the address.
fn configuration(message: &mut Message, offer: &Offer) {
    let lease = &offer.lease;
    if let Ok(server) = lease.tftp_server.parse::<Ipv4Addr>() {
        message.set_siaddr(server);
    }
    let mask = u32::MAX.checked_shl(32 - u32::from(lease.prefix_length)).unwrap_or(0);
    let broadcast = Ipv4Addr::from(u32::from(lease.address) | !mask);
    let options = message.opts_mut();
    options.insert(DhcpOption::SubnetMask(mask.into()));
    options.insert(DhcpOption::BroadcastAddr(broadcast));
    if let Some(gateway) = lease.gateway {
        options.insert(DhcpOption::Router(vec![gateway]));
    }
    if !lease.routes.is_empty() {
        options.insert(DhcpOption::ClasslessStaticRoute(classless_routes(lease)));
    }
    if !lease.dns_servers.is_empty() {
        options.insert(DhcpOption::DomainNameServer(lease.dns_servers.clone()));
    }
    if !lease.ntp_servers.is_empty() {
        options.insert(DhcpOption::NtpServers(lease.ntp_servers.clone()));
    }
    if !lease.search_domains.is_empty() {
        let names = lease.search_domains.iter().flat_map(|name| labels(name)).collect();
        options.insert(DhcpOption::Unknown(UnknownOption::new(OptionCode::DomainSearch, names)));
    }
    if let Some(mtu) = offer.mtu {
        options.insert(DhcpOption::InterfaceMtu(mtu));
    }
    type Text = fn(String) -> DhcpOption;
    let texts: [(&str, Text); 4] = [
        (&lease.hostname, DhcpOption::Hostname),
        (&lease.domain, DhcpOption::DomainName),
        (&lease.boot_file, |name| DhcpOption::BootfileName(name.into_bytes())),
        (&lease.tftp_server, |name| DhcpOption::TFTPServerName(name.into_bytes())),
    ];
    for (text, option) in texts.into_iter().filter(|(text, _)| !text.is_empty()) {
        options.insert(option(text.to_owned()));
    }
    for (number, value) in &lease.private_options {
        let value = value.clone().into_bytes();
        options.insert(DhcpOption::Unknown(UnknownOption::new(OptionCode::Unknown(*number), value)));
    }
}

/// All routes, also that by the gateway: clients that know option 121 ignore the option with the gateway (RFC 3442).
fn classless_routes(lease: &Lease) -> Vec<(Ipv4Net, Ipv4Addr)> {
    let default = lease.gateway.map(|gateway| (Ipv4Net::default(), gateway));
    lease.routes.iter().map(|route| (route.destination, route.gateway)).chain(default).collect()
}

/// A name as options have it (RFC 3397, RFC 3646), uncompressed. Launch messages with names that do not fit are rejected.
pub(crate) fn labels(name: &str) -> Vec<u8> {
    let labels = name.trim_end_matches('.').split('.');
    let label = |label: &str| {
        u8::try_from(label.len()).map(|length| [&[length], label.as_bytes()].concat()).unwrap_or_default()
    };
    labels.flat_map(label).chain([0]).collect()
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
