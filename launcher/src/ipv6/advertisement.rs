use super::{network, octets};
use crate::dhcp::labels;
use crate::launch::Ipv6Lease;

/// ICMPv6 types (RFC 4861, sections 4.1 and 4.2).
const SOLICITATION: u8 = 133;
const ADVERTISEMENT: u8 = 134;
/// The fixed part of a solicitation.
const SOLICITATION_LENGTH: usize = 8;
/// Addresses, and everything else, come by DHCPv6.
const MANAGED_AND_OTHER: u8 = 0xc0;
/// Packets may pass this many routers.
const HOP_LIMIT: u8 = 64;
/// How long an advertisement counts, in seconds; advertisements come more often.
const LIFETIME: u16 = 1800;

/// Options (RFC 4861, section 4.6; RFC 8106, section 5).
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const DNS_SERVERS: u8 = 25;
const SEARCH_DOMAINS: u8 = 31;
/// The prefix is on the link; without the autonomous bit, no guest makes an address of it.
const ON_LINK: u8 = 0x80;
/// The units of option lengths.
const UNIT: usize = 8;
/// With at most so many servers and bytes of domains, an advertisement fits into one packet: fragments of it are dropped
/// (RFC 6980). DHCPv6 has them all.
const MOST_SERVERS: usize = 8;
const MOST_DOMAIN_BYTES: usize = 800;

/// Whether an ICMPv6 message, which may be anything, asks for an advertisement.
pub fn is_solicitation(message: &[u8]) -> bool {
    matches!(message, [SOLICITATION, 0, ..]) && message.len() >= SOLICITATION_LENGTH
}

/// The router advertisement of a network. The kernel fills in the checksum (RFC 3542, section 3.1).
pub fn advertisement(lease: &Ipv6Lease, mtu: Option<u16>) -> Vec<u8> {
    let mut message = vec![ADVERTISEMENT, 0, 0, 0, HOP_LIMIT, MANAGED_AND_OTHER];
    message.extend(LIFETIME.to_be_bytes());
    // Reachable time and retransmission timer: the guest's own.
    message.extend([0; 8]);
    if let Some(mtu) = mtu {
        option(&mut message, MTU, [[0; 2], [0; 2], mtu.to_be_bytes()].as_flattened());
    }
    if let Some(network) = network(lease) {
        // It is valid, and preferred, for ever.
        let mut prefix = vec![network.prefix_len(), ON_LINK, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        prefix.extend([0; 4]);
        prefix.extend(network.network().octets());
        option(&mut message, PREFIX, &prefix);
    }
    let servers = octets(lease.dns_servers.get(..MOST_SERVERS).unwrap_or(&lease.dns_servers));
    timed_option(&mut message, DNS_SERVERS, servers);
    let mut domains = Vec::new();
    for domain in &lease.search_domains {
        let labels = labels(domain);
        if domains.len().saturating_add(labels.len()) > MOST_DOMAIN_BYTES {
            break;
        }
        domains.extend(labels);
    }
    timed_option(&mut message, SEARCH_DOMAINS, domains);
    message
}

/// An option with two reserved bytes and a lifetime before its value, unless the value is empty.
fn timed_option(message: &mut Vec<u8>, kind: u8, value: Vec<u8>) {
    if !value.is_empty() {
        let head = [[0; 2], [0; 2], LIFETIME.to_be_bytes()];
        option(message, kind, &[head.as_flattened(), &value].concat());
    }
}

/// An option, filled up to whole units.
fn option(message: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let units = value.len().saturating_add(2).div_ceil(UNIT);
    let Ok(length) = u8::try_from(units) else { return };
    let end = message.len().saturating_add(units.saturating_mul(UNIT));
    message.extend([kind, length]);
    message.extend(value);
    message.resize(end, 0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lease() -> Ipv6Lease {
        Ipv6Lease {
            address: "fd10:0:2::2".parse().unwrap(),
            prefix_length: 120,
            dns_servers: Vec::new(),
            search_domains: Vec::new(),
        }
    }

    #[test]
    fn an_advertisement_to_the_byte() {
        let lease = Ipv6Lease {
            dns_servers: vec!["2001:db8::53".parse().unwrap()],
            search_domains: vec!["a.example".into(), "b".into()],
            ..lease()
        };
        #[rustfmt::skip]
        let expected = [
            134, 0, 0, 0, 64, 0xc0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0,
            5, 1, 0, 0, 0, 0, 5, 0xaa,
            3, 4, 120, 0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
            0xfd, 0x10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            25, 3, 0, 0, 0, 0, 7, 8, 0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x53,
            31, 3, 0, 0, 0, 0, 7, 8, 1, b'a', 7, b'e', b'x', b'a', b'm', b'p', b'l', b'e', 0, 1, b'b', 0, 0, 0,
        ];
        assert_eq!(advertisement(&lease, Some(1450)), expected);
    }

    #[test]
    fn options_that_say_nothing_are_absent() {
        assert_eq!(advertisement(&lease(), None).len(), 16 + 32);
    }

    #[test]
    fn an_advertisement_fits_into_one_packet() {
        let lease = Ipv6Lease {
            dns_servers: vec!["2001:db8::53".parse().unwrap(); 40],
            search_domains: vec!["a-long-name.example".into(); 200],
            ..lease()
        };
        let message = advertisement(&lease, Some(1280));
        assert!(
            (900..1280 - 40).contains(&message.len()) && message.len().is_multiple_of(8),
            "{}",
            message.len()
        );
    }

    #[test]
    fn solicitations_alone_are_answered() {
        let solicitation = [133, 0, 1, 2, 0, 0, 0, 0];
        assert!(is_solicitation(&solicitation));
        assert!(!is_solicitation(&solicitation[..7]));
        for (at, value) in [(0, 134), (0, 135), (1, 1)] {
            let mut other = solicitation;
            other[at] = value;
            assert!(!is_solicitation(&other), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn any_lease_makes_an_advertisement_of_whole_units(
            prefix_length in 0_u8..=128,
            address in any::<u128>(),
            servers in 0_usize..20,
            domains in proptest::collection::vec("[a-z]{1,63}(\\.[a-z]{1,63}){0,2}", 0..20),
        ) {
            let lease = Ipv6Lease {
                address: address.into(),
                prefix_length,
                dns_servers: vec![address.into(); servers],
                search_domains: domains,
            };
            let message = advertisement(&lease, Some(1500));
            prop_assert_eq!(message.len() % 8, 0);
            let mut rest = &message[16..];
            while !rest.is_empty() {
                let length = usize::from(rest[1]) * 8;
                prop_assert!(length != 0 && length <= rest.len());
                rest = &rest[length..];
            }
        }
    }
}
