//! The name servers of a guest: those of the host that a guest can reach.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};

/// The part of resolv.conf(5) that DHCP can pass on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolver {
    /// Servers that are not on a loopback or link-local address.
    pub servers: Vec<IpAddr>,
    /// Domains to search.
    pub search: Vec<String>,
    /// Servers that a guest cannot use.
    pub unreachable: Vec<IpAddr>,
}

/// Parses resolv.conf(5). Invalid lines are ignored, as the resolver does.
pub fn parse(text: &str) -> Resolver {
    let mut resolver = Resolver::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => match words.next().and_then(|word| word.parse().ok()) {
                Some(address) if is_reachable(address) => resolver.servers.push(address),
                Some(other) => resolver.unreachable.push(other),
                None => {}
            },
            // The last line wins.
            Some("search" | "domain") => resolver.search = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    resolver
}

fn is_reachable(address: IpAddr) -> bool {
    let is_link_local = matches!(address, IpAddr::V6(address) if Ipv6Addr::is_unicast_link_local(&address));
    !address.is_loopback() && !address.is_unspecified() && !is_link_local
}

/// The host's resolver for a guest. A stub on a loopback address stands for what systemd-resolved asks itself.
pub fn of_host() -> Resolver {
    let read = |path| fs::read_to_string(path).map(|text| parse(&text)).unwrap_or_default();
    let resolver = read("/etc/resolv.conf");
    if !resolver.servers.is_empty() || resolver.unreachable.is_empty() {
        return resolver;
    }
    let upstream = read("/run/systemd/resolve/resolv.conf");
    if upstream.servers.is_empty() { resolver } else { upstream }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_servers_a_guest_can_reach_are_passed_on() {
        let text = "# comment\nnameserver 127.0.0.53\nnameserver 192.0.2.1\n nameserver fe80::1\nnameserver 2001:db8::53\nnameserver nonsense\noptions edns0\ndomain old.example\nsearch a.example b.example\n";
        assert_eq!(
            parse(text),
            Resolver {
                servers: vec![IpAddr::from([192, 0, 2, 1]), "2001:db8::53".parse().unwrap()],
                search: vec!["a.example".to_owned(), "b.example".to_owned()],
                unreachable: vec![IpAddr::from([127, 0, 0, 53]), "fe80::1".parse().unwrap()],
            }
        );
        assert_eq!(parse(""), Resolver::default());
    }
}
