//! The addresses of a VM: a /30 of `--vm-cidr` for the wire between its namespace and the host.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use thiserror::Error;

/// The prefix length of one VM's wire.
pub const WIRE_PREFIX: u8 = 30;

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

/// Why no address could be given.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// The range is smaller than one wire.
    #[error("--vm-cidr {0} is too small: it needs a prefix length of {WIRE_PREFIX} or less")]
    TooSmall(Ipv4Net),
    /// Every wire is in use.
    #[error(
        "--vm-cidr {0} is used up: every VM needs a /{WIRE_PREFIX} of it; give the handler a larger range"
    )]
    Exhausted(Ipv4Net),
}

/// The first wire of the range that touches none of the addresses in use.
///
/// # Errors
/// When the range has no wire left.
pub fn allocate(range: Ipv4Net, used: &BTreeSet<Ipv4Addr>) -> Result<Wire, AddressError> {
    if range.prefix_len() > WIRE_PREFIX {
        return Err(AddressError::TooSmall(range));
    }
    let wires = range.subnets(WIRE_PREFIX).map_err(|_| AddressError::TooSmall(range))?;
    wires
        .into_iter()
        .find(|net| used.range(net.network()..=net.broadcast()).next().is_none())
        .map(|net| Wire { net })
        .ok_or(AddressError::Exhausted(range))
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
        used.insert(Ipv4Addr::new(10, 201, 0, 3));
        let second = allocate(range, &used).unwrap();
        assert_eq!(
            (second.host(), second.vm()),
            (Ipv4Addr::new(10, 201, 0, 5), Ipv4Addr::new(10, 201, 0, 6))
        );
        used.insert(second.vm());
        assert_eq!(allocate(range, &used), Err(AddressError::Exhausted(range)));
        used.remove(&Ipv4Addr::new(10, 201, 0, 3));
        assert_eq!(allocate(range, &used).unwrap(), first);
    }

    #[test]
    fn a_range_below_one_wire_is_refused() {
        assert_eq!(
            allocate(net("10.0.0.0/31"), &BTreeSet::new()),
            Err(AddressError::TooSmall(net("10.0.0.0/31")))
        );
        assert!(allocate(net("255.255.255.252/30"), &BTreeSet::new()).is_ok());
    }

    proptest! {
        #[test]
        fn wires_never_overlap(prefix in 22_u8..=30, base in any::<u32>()) {
            let range = Ipv4Net::new(base.into(), prefix).unwrap().trunc();
            let mut used = BTreeSet::new();
            let mut wires = 0_u32;
            while let Ok(wire) = allocate(range, &used) {
                prop_assert!(range.contains(&wire.net));
                prop_assert!(used.insert(wire.host()) && used.insert(wire.vm()));
                wires += 1;
            }
            prop_assert_eq!(wires, 1 << (30 - prefix));
        }
    }
}
