//! The rules of the host: what guests reach of it and of each other, and how they reach what is beyond it.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::{Ipv4Net, Ipv6Net};

use super::owner::LINK_PREFIX;
use super::ports::Ports;

/// What guests reach of the host, and whether they reach each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestAccess {
    /// `--allow-guest-to-host`: ports of the host.
    pub host_ports: Vec<Ports>,
    /// `--allow-guest-to-guest`.
    pub each_other: bool,
}

/// What guests send beyond the host leaves with the host's address.
///
/// The ranges are a set that handlers add to, so two handlers of one host do not undo each other.
pub fn nat_rules(range: Ipv4Net) -> String {
    format!(
        "add table inet vireo
add set inet vireo guests {{ type ipv4_addr; flags interval; auto-merge; }}
add element inet vireo guests {{ {range} }}
add chain inet vireo postrouting {{ type nat hook postrouting priority srcnat; policy accept; }}
flush chain inet vireo postrouting
add rule inet vireo postrouting ip saddr @guests ip daddr != @guests masquerade
"
    )
}

/// The same for IPv6, in a chain of its own: handlers without IPv6 leave it alone.
pub fn ipv6_nat_rules(range: Ipv6Net) -> String {
    format!(
        "add table inet vireo
add set inet vireo guests_ipv6 {{ type ipv6_addr; flags interval; auto-merge; }}
add element inet vireo guests_ipv6 {{ {range} }}
add chain inet vireo postrouting_ipv6 {{ type nat hook postrouting priority srcnat; policy accept; }}
flush chain inet vireo postrouting_ipv6
add rule inet vireo postrouting_ipv6 ip6 saddr @guests_ipv6 ip6 daddr != @guests_ipv6 masquerade
"
    )
}

/// The filter of what comes from guests. They reach by pings and neighbour discovery the host itself, the name servers that
/// DHCP gives them where these are on the host, and the ports that its administrator opens.
///
/// Of two handlers of one host, the one that applied these rules last decides.
pub fn filter_rules(access: &GuestAccess, resolvers: &[IpAddr]) -> String {
    let mut rules = String::from(
        "add table inet vireo
add chain inet vireo from_guests
flush chain inet vireo from_guests
add chain inet vireo input { type filter hook input priority filter; policy accept; }
flush chain inet vireo input
add chain inet vireo forward { type filter hook forward priority filter; policy accept; }
flush chain inet vireo forward
add rule inet vireo from_guests ct state established,related accept
add rule inet vireo from_guests icmp type echo-request accept
add rule inet vireo from_guests icmpv6 type echo-request accept
add rule inet vireo from_guests icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept
"
    );
    for server in resolvers {
        let family = if server.is_ipv4() { "ip" } else { "ip6" };
        for protocol in ["udp", "tcp"] {
            let _ = writeln!(
                rules,
                "add rule inet vireo from_guests {family} daddr {server} {protocol} dport 53 accept"
            );
        }
    }
    for ports in &access.host_ports {
        let _ = writeln!(rules, "add rule inet vireo from_guests {ports} accept");
    }
    let _ = writeln!(rules, "add rule inet vireo from_guests drop");
    let _ = writeln!(rules, "add rule inet vireo input iifname \"{LINK_PREFIX}*\" jump from_guests");
    if !access.each_other {
        let between = format!("iifname \"{LINK_PREFIX}*\" oifname \"{LINK_PREFIX}*\"");
        let _ = writeln!(rules, "add rule inet vireo forward {between} ct state established,related accept");
        let _ = writeln!(rules, "add rule inet vireo forward {between} drop");
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_reach_what_was_opened() {
        let resolvers = ["192.0.2.1".parse().unwrap(), "2001:db8::53".parse().unwrap()];
        let access = GuestAccess { host_ports: vec!["tcp/8080".parse().unwrap()], each_other: false };
        let golden = "add table inet vireo
add chain inet vireo from_guests
flush chain inet vireo from_guests
add chain inet vireo input { type filter hook input priority filter; policy accept; }
flush chain inet vireo input
add chain inet vireo forward { type filter hook forward priority filter; policy accept; }
flush chain inet vireo forward
add rule inet vireo from_guests ct state established,related accept
add rule inet vireo from_guests icmp type echo-request accept
add rule inet vireo from_guests icmpv6 type echo-request accept
add rule inet vireo from_guests icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept
add rule inet vireo from_guests ip daddr 192.0.2.1 udp dport 53 accept
add rule inet vireo from_guests ip daddr 192.0.2.1 tcp dport 53 accept
add rule inet vireo from_guests ip6 daddr 2001:db8::53 udp dport 53 accept
add rule inet vireo from_guests ip6 daddr 2001:db8::53 tcp dport 53 accept
add rule inet vireo from_guests tcp dport 8080 accept
add rule inet vireo from_guests drop
add rule inet vireo input iifname \"vv*\" jump from_guests
add rule inet vireo forward iifname \"vv*\" oifname \"vv*\" ct state established,related accept
add rule inet vireo forward iifname \"vv*\" oifname \"vv*\" drop
";
        assert_eq!(filter_rules(&access, &resolvers), golden);
        let open = filter_rules(&GuestAccess { each_other: true, ..access }, &[]);
        assert!(!open.contains("oifname") && open.contains("from_guests drop"), "{open}");
    }
}
