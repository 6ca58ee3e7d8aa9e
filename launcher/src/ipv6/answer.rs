use std::net::Ipv6Addr;

use super::request::{Association, CLIENT_ID, IA_ADDRESS, IA_NA, Kind, RAPID_COMMIT, Request, SERVER_ID};
use super::{network, octets};
use crate::dhcp::labels;
use crate::launch::Ipv6Lease;

/// Message types of servers (RFC 8415, section 7.3).
const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;

/// Options (RFC 8415, section 21; RFC 3646).
const PREFERENCE: u16 = 7;
const STATUS: u16 = 13;
const DNS_SERVERS: u16 = 23;
const SEARCH_DOMAINS: u16 = 24;

/// Status codes (RFC 8415, section 21.13).
const SUCCESS: u16 = 0;
const NO_ADDRESSES: u16 = 2;
const NOT_ON_LINK: u16 = 4;

/// The server's identifier: DUID-LL of Ethernet, with the MAC that KubeVirt's gateways have.
const ID: [u8; 10] = [0, 3, 0, 1, 2, 0, 0, 0, 0, 0];
/// There is no better server: clients do not wait for the offers of others (RFC 8415, section 18.2.1).
const HIGHEST_PREFERENCE: u8 = 255;
/// 999 days, as those of DHCPv4.
const LIFETIME: u32 = 999 * 86_400;

/// Answers one packet of the guest, or does not. The packet may be anything.
pub fn answer(packet: &[u8], lease: &Ipv6Lease) -> Option<Vec<u8>> {
    let request = Request::parse(packet)?;
    is_for_us(&request).then_some(())?;
    let kind = match request.kind {
        Kind::Solicit if !request.rapid_commit => ADVERTISE,
        _ => REPLY,
    };
    let [a, b, c] = request.transaction;
    let mut message = vec![kind, a, b, c];
    if let Some(client) = &request.client {
        option(&mut message, CLIENT_ID, client);
    }
    option(&mut message, SERVER_ID, &ID);
    match request.kind {
        Kind::Solicit => {
            if request.rapid_commit {
                option(&mut message, RAPID_COMMIT, &[]);
            } else {
                option(&mut message, PREFERENCE, &[HIGHEST_PREFERENCE]);
            }
            bindings(&mut message, &request.associations, lease);
        }
        Kind::Request | Kind::Renew | Kind::Rebind => bindings(&mut message, &request.associations, lease),
        Kind::Confirm => {
            let mut addresses = request.associations.iter().flat_map(|one| &one.addresses).peekable();
            // Without an address there is nothing to confirm (RFC 8415, section 18.3.3).
            addresses.peek()?;
            let link = network(lease)?;
            let is_on_link = addresses.all(|address| link.contains(address));
            status(&mut message, if is_on_link { SUCCESS } else { NOT_ON_LINK });
        }
        // There is one address, and one guest: nothing changes.
        Kind::Release | Kind::Decline => {
            status(&mut message, SUCCESS);
            return Some(message);
        }
        Kind::InformationRequest => {}
    }
    configuration(&mut message, lease);
    Some(message)
}

/// Whether a message has the identifiers that it must have, and no others (RFC 8415, section 16).
fn is_for_us(request: &Request) -> bool {
    let is_ours = |server: &Vec<u8>| *server == ID;
    match request.kind {
        Kind::Solicit | Kind::Confirm | Kind::Rebind => request.client.is_some() && request.server.is_none(),
        Kind::Request | Kind::Renew | Kind::Release | Kind::Decline => {
            request.client.is_some() && request.server.as_ref().is_some_and(is_ours)
        }
        Kind::InformationRequest => {
            request.associations.is_empty() && request.server.as_ref().is_none_or(is_ours)
        }
    }
}

/// The address for the first association, and none for others. Other addresses that a client has end.
fn bindings(message: &mut Vec<u8>, associations: &[Association], lease: &Ipv6Lease) {
    for (index, association) in associations.iter().enumerate() {
        let is_first = index == 0;
        let (renew, rebind) = if is_first { (LIFETIME / 2, LIFETIME / 8 * 7) } else { (0, 0) };
        let mut value = association.id.to_vec();
        value.extend(renew.to_be_bytes());
        value.extend(rebind.to_be_bytes());
        if is_first {
            address(&mut value, lease.address, LIFETIME);
        }
        for ended in association.addresses.iter().filter(|one| !is_first || **one != lease.address) {
            address(&mut value, *ended, 0);
        }
        if !is_first {
            status(&mut value, NO_ADDRESSES);
        }
        option(message, IA_NA, &value);
    }
}

fn address(association: &mut Vec<u8>, address: Ipv6Addr, lifetime: u32) {
    let lifetime = lifetime.to_be_bytes();
    option(association, IA_ADDRESS, &[&address.octets()[..], &lifetime, &lifetime].concat());
}

fn status(message: &mut Vec<u8>, code: u16) {
    option(message, STATUS, &code.to_be_bytes());
}

/// Everything but addresses.
fn configuration(message: &mut Vec<u8>, lease: &Ipv6Lease) {
    if !lease.dns_servers.is_empty() {
        option(message, DNS_SERVERS, &octets(&lease.dns_servers));
    }
    if !lease.search_domains.is_empty() {
        let names: Vec<u8> = lease.search_domains.iter().flat_map(|name| labels(name)).collect();
        option(message, SEARCH_DOMAINS, &names);
    }
}

/// An option; none of a value that is too long for one.
fn option(message: &mut Vec<u8>, code: u16, value: &[u8]) {
    let Ok(length) = u16::try_from(value.len()) else { return };
    message.extend(code.to_be_bytes());
    message.extend(length.to_be_bytes());
    message.extend(value);
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
