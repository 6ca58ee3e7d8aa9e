//! What a guest may send: frames with its own addresses. The rules are at the ingress of its tap, before anything of its
//! namespace, or the bridge of its Pod, sees a frame.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use vireo_vmconfig::MacAddr;

/// The addresses that a guest may send from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// Of its NIC.
    pub mac: MacAddr,
    /// What else.
    pub addresses: Addresses,
}

/// The IP addresses of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// These are known, and others are refused.
    Known {
        /// IPv4.
        ipv4: Ipv4Addr,
        /// IPv6.
        ipv6: Ipv6Source,
    },
    /// The network of a bridge gives them, and they are not known here.
    OfNetwork,
}

/// The IPv6 addresses of a guest whose IPv4 address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6Source {
    /// It has no IPv6.
    None,
    /// It is known, beside link-local ones.
    Known(Ipv6Addr),
    /// The network of a bridge gives them by its router advertisements, which is not the guest.
    OfNetwork,
}

/// What removes the rules for a tap, if there are any.
pub fn no_rules(tap: &str) -> String {
    format!("table netdev vireo-{tap} {{}}\ndelete table netdev vireo-{tap}\n")
}

/// The rules for one tap, which must exist. `router` is the link-local address of the guest's IPv6 gateway.
pub fn rules(tap: &str, Sender { mac, addresses }: Sender, router: Ipv6Addr) -> String {
    let mut rules = no_rules(tap);
    let _ = write!(
        rules,
        "table netdev vireo-{tap} {{
  chain ingress {{
    type filter hook ingress device \"{tap}\" priority filter; policy drop;
    ether saddr != {mac} drop
    ether type arp arp saddr ether != {mac} drop
"
    );
    match addresses {
        Addresses::OfNetwork => {
            let _ = writeln!(rules, "    accept");
        }
        Addresses::Known { ipv4, ipv6 } => {
            // 0.0.0.0: a probe for an address, and a guest that has none yet.
            let _ = writeln!(rules, "    ether type arp arp saddr ip {{ 0.0.0.0, {ipv4} }} accept");
            let _ = writeln!(rules, "    ip saddr {ipv4} accept");
            let _ = writeln!(rules, "    ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept");
            match ipv6 {
                Ipv6Source::None => {}
                Ipv6Source::Known(guest) => rules.push_str(&ipv6_rules(guest, router)),
                Ipv6Source::OfNetwork => {
                    rules.push_str("    icmpv6 type { nd-router-advert, nd-redirect } drop\n");
                    rules.push_str("    ether type ip6 accept\n");
                }
            }
        }
    }
    rules.push_str("  }\n}\n");
    rules
}

/// A guest chooses its link-local addresses itself, and is no router.
fn ipv6_rules(guest: Ipv6Addr, router: Ipv6Addr) -> String {
    // The target of an advertisement is at bit 64 of the ICMPv6 message.
    let target = |address: Ipv6Addr| format!("0x{:032x}", u128::from(address));
    format!(
        "    icmpv6 type {{ nd-router-advert, nd-redirect }} drop
    icmpv6 type nd-neighbor-advert @th,64,128 {router_target} drop
    icmpv6 type nd-neighbor-advert @th,64,10 != 0x3fa @th,64,128 != {guest_target} drop
    ip6 saddr {router} drop
    ip6 saddr {{ {guest}, fe80::/10 }} accept
    ip6 saddr :: icmpv6 type {{ nd-neighbor-solicit, nd-router-solicit, mld2-listener-report }} accept
",
        router_target = target(router),
        guest_target = target(guest),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

    fn sender(addresses: Addresses) -> Sender {
        Sender { mac: MacAddr::local([0, 0, 0, 0, 7]), addresses }
    }

    #[test]
    fn a_guest_sends_from_its_own_addresses_alone() {
        let ipv4 = Ipv4Addr::new(10, 0, 2, 2);
        let golden = "table netdev vireo-tap0 {}
delete table netdev vireo-tap0
table netdev vireo-tap0 {
  chain ingress {
    type filter hook ingress device \"tap0\" priority filter; policy drop;
    ether saddr != 02:00:00:00:00:07 drop
    ether type arp arp saddr ether != 02:00:00:00:00:07 drop
    ether type arp arp saddr ip { 0.0.0.0, 10.0.2.2 } accept
    ip saddr 10.0.2.2 accept
    ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept
    icmpv6 type { nd-router-advert, nd-redirect } drop
    icmpv6 type nd-neighbor-advert @th,64,128 0xfe800000000000000000000000000001 drop
    icmpv6 type nd-neighbor-advert @th,64,10 != 0x3fa @th,64,128 != 0xfd100000000200000000000000000002 drop
    ip6 saddr fe80::1 drop
    ip6 saddr { fd10:0:2::2, fe80::/10 } accept
    ip6 saddr :: icmpv6 type { nd-neighbor-solicit, nd-router-solicit, mld2-listener-report } accept
  }
}
";
        let known = |ipv6| rules("tap0", sender(Addresses::Known { ipv4, ipv6 }), ROUTER);
        assert_eq!(known(Ipv6Source::Known("fd10:0:2::2".parse().unwrap())), golden);
        let without = known(Ipv6Source::None);
        assert!(!without.contains("ip6") && !without.contains("icmpv6"), "{without}");
        let of_network = known(Ipv6Source::OfNetwork);
        let end = "    ip saddr 0.0.0.0 udp sport 68 udp dport 67 accept\n    icmpv6 type { nd-router-advert, nd-redirect } drop\n    ether type ip6 accept\n  }\n}\n";
        assert!(of_network.ends_with(end), "{of_network}");
    }

    #[test]
    fn on_a_network_with_addresses_of_its_own_the_mac_is_checked() {
        let rules = rules("tap1", sender(Addresses::OfNetwork), ROUTER);
        assert!(rules.ends_with(
            "    ether saddr != 02:00:00:00:00:07 drop\n    ether type arp arp saddr ether != 02:00:00:00:00:07 drop\n    accept\n  }\n}\n"
        ), "{rules}");
    }
}
