//! The addresses of a VM: a /30 of `--vm-cidr` for the wire between its namespace and the host, and a /126 of
//! `--vm-cidr-ipv6`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

/// The prefix length of one VM's wire.
pub const WIRE_PREFIX: u8 = 30;
/// The same in IPv6.
pub const WIRE_IPV6_PREFIX: u8 = 126;

/// The two ends of one VM's wire to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wire {
    /// The /30.
    pub net: Ipv4Net,
}

impl Wire {
    /// The host's end, the gateway of the namespace.
    pub fn host(&self) -> Ipv4Addr {
        nth(self.net, 1)
    }

    /// The namespace's end: the VMI's address.
    pub fn vm(&self) -> Ipv4Addr {
        nth(self.net, 2)
    }
}

fn nth(net: Ipv4Net, n: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(net.network()).wrapping_add(n))
}

/// The two ends of one VM's wire in IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WireIpv6 {
    /// The /126.
    pub net: Ipv6Net,
}

impl WireIpv6 {
    /// The host's end, the gateway of the namespace.
    pub fn host(&self) -> Ipv6Addr {
        super::ipv6::nth(self.net, 1)
    }

    /// The namespace's end: the VMI's address.
    pub fn vm(&self) -> Ipv6Addr {
        super::ipv6::nth(self.net, 2)
    }
}

/// Why no address could be given.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// The range is smaller than one wire.
    #[error("{option} {range} is too small: it needs a prefix length of {prefix} or less")]
    TooSmall {
        /// The option with the range.
        option: &'static str,
        /// The range.
        range: IpNet,
        /// That of one wire.
        prefix: u8,
    },
    /// Every wire is in use.
    #[error("{option} {range} is used up: every VM needs a /{prefix} of it; give the handler a larger range")]
    Exhausted {
        /// The option with the range.
        option: &'static str,
        /// The range.
        range: IpNet,
        /// That of one wire.
        prefix: u8,
    },
}

/// The first wire of the range that touches none of the addresses in use.
///
/// # Errors
/// When the range has no wire left.
pub fn allocate(range: Ipv4Net, used: &BTreeSet<IpAddr>) -> Result<Wire, AddressError> {
    let (option, prefix) = ("--vm-cidr", WIRE_PREFIX);
    let too_small = |_| AddressError::TooSmall { option, range: range.into(), prefix };
    let mut wires = range.subnets(prefix).map_err(too_small)?;
    let net = wires.find(|net| is_free(net.network().into(), net.broadcast().into(), used));
    net.map(|net| Wire { net }).ok_or(AddressError::Exhausted { option, range: range.into(), prefix })
}

/// The same in IPv6.
///
/// # Errors
/// When the range has no wire left.
pub fn allocate_ipv6(range: Ipv6Net, used: &BTreeSet<IpAddr>) -> Result<WireIpv6, AddressError> {
    let (option, prefix) = ("--vm-cidr-ipv6", WIRE_IPV6_PREFIX);
    let too_small = |_| AddressError::TooSmall { option, range: range.into(), prefix };
    let mut wires = range.subnets(prefix).map_err(too_small)?;
    let net = wires.find(|net| is_free(net.network().into(), net.broadcast().into(), used));
    net.map(|net| WireIpv6 { net }).ok_or(AddressError::Exhausted { option, range: range.into(), prefix })
}

fn is_free(first: IpAddr, last: IpAddr, used: &BTreeSet<IpAddr>) -> bool {
    used.range(first..=last).next().is_none()
}

/// Reads a range of IPv6 addresses for wires.
///
/// # Errors
/// Says what is accepted.
pub fn parse_ipv6_range(text: &str) -> Result<Ipv6Net, String> {
    let range: Option<Ipv6Net> = text.parse().ok();
    let range = range.map(|range| range.trunc()).filter(|range| {
        let first = range.network();
        let is_reserved = first.octets().starts_with(&[0]);
        range.prefix_len() <= WIRE_IPV6_PREFIX && !is_reserved && super::ipv6::is_global(first)
    });
    range.ok_or_else(|| {
        format!("must be a range of global unicast IPv6 addresses with a prefix length of {WIRE_IPV6_PREFIX} or less, such as fd00:10:201::/64")
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_free_wire_is_given() {
        let range = net("10.201.0.0/29");
        let mut used = BTreeSet::new();
        let first = allocate(range, &used).unwrap();
        assert_eq!((first.host(), first.vm()), (Ipv4Addr::new(10, 201, 0, 1), Ipv4Addr::new(10, 201, 0, 2)));
        // Only its broadcast address is in use: the wire is not free.
        used.insert(Ipv4Addr::new(10, 201, 0, 3).into());
        let second = allocate(range, &used).unwrap();
        assert_eq!(
            (second.host(), second.vm()),
            (Ipv4Addr::new(10, 201, 0, 5), Ipv4Addr::new(10, 201, 0, 6))
        );
        used.insert(second.vm().into());
        let error = allocate(range, &used).unwrap_err().to_string();
        assert!(error.starts_with("--vm-cidr 10.201.0.0/29 is used up"), "{error}");
        used.remove(&IpAddr::from([10, 201, 0, 3]));
        assert_eq!(allocate(range, &used).unwrap(), first);
    }

    #[test]
    fn a_range_below_one_wire_is_refused() {
        let error = allocate(net("10.0.0.0/31"), &BTreeSet::new()).unwrap_err().to_string();
        assert_eq!(error, "--vm-cidr 10.0.0.0/31 is too small: it needs a prefix length of 30 or less");
        assert!(allocate(net("255.255.255.252/30"), &BTreeSet::new()).is_ok());
    }

    #[test]
    fn wires_of_ipv6_are_given_in_turn() {
        let range = parse_ipv6_range("fd00:10:201::77/125").unwrap();
        let mut used = BTreeSet::new();
        for (host, vm) in [("fd00:10:201::71", "fd00:10:201::72"), ("fd00:10:201::75", "fd00:10:201::76")] {
            let wire = allocate_ipv6(range, &used).unwrap();
            assert_eq!((wire.host().to_string(), wire.vm().to_string()), (host.to_owned(), vm.to_owned()));
            used.insert(wire.vm().into());
        }
        let error = allocate_ipv6(range, &used).unwrap_err().to_string();
        assert!(error.starts_with("--vm-cidr-ipv6 fd00:10:201::70/125 is used up"), "{error}");
        // A large range is not walked through.
        assert!(allocate_ipv6(parse_ipv6_range("fd00::/8").unwrap(), &used).is_ok());
    }

    #[test]
    fn a_range_of_ipv6_is_checked() {
        for text in ["", "fd00::", "fd00::/127", "10.0.0.0/16", "fe80::/64", "ff00::/8", "::/0", "::1/64"] {
            assert!(parse_ipv6_range(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn wires_never_overlap(prefix in 22_u8..=30, base in any::<u32>()) {
            let range = Ipv4Net::new(base.into(), prefix).unwrap().trunc();
            let mut used = BTreeSet::new();
            let mut wires = 0_u32;
            while let Ok(wire) = allocate(range, &used) {
                prop_assert!(range.contains(&wire.net));
                prop_assert!(used.insert(wire.host().into()) && used.insert(wire.vm().into()));
                wires += 1;
            }
            prop_assert_eq!(wires, 1 << (30 - prefix));
        }
    }
}
