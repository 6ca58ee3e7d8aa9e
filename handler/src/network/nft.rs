//! Packet rules: their text, and applying them with the `nft` binary.
//!
//! Every rule set replaces itself as a whole in one transaction, so applying it twice is applying it once.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use thiserror::Error;

use super::ports::Ports;

/// Why rules cannot be applied.
#[derive(Debug, Error)]
pub enum NftError {
    /// The binary could not be started or written to.
    #[error("cannot run nft; install the nftables package")]
    Run(#[source] io::Error),
    /// The kernel or nft rejected them.
    #[error("nft rejected the rules: {0}")]
    Rejected(String),
}

/// What `eth0` passes on to the guest: these ports, or everything.
fn dnat(guest: IpAddr, forwards: &[Ports]) -> String {
    let mut dnat = String::new();
    if forwards.is_empty() {
        let _ = writeln!(dnat, "    iifname \"eth0\" dnat to {guest}");
    }
    for ports in forwards {
        let _ = writeln!(dnat, "    iifname \"eth0\" {ports} dnat to {guest}");
    }
    dnat
}

/// The rules inside a VM's namespace: NAT between `eth0` and the guest, and nothing else from the guest.
///
/// `forwards` are the ports that reach the guest; everything does when it is empty.
pub fn guest_rules(guest: Ipv4Addr, gateway: Ipv4Addr, forwards: &[Ports]) -> String {
    let dnat = dnat(guest.into(), forwards);
    format!(
        "table ip vireo {{}}
delete table ip vireo
table ip vireo {{
  chain prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
{dnat}  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {guest} oifname \"eth0\" masquerade
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname \"tap0\" oifname \"eth0\" ip saddr {guest} accept
    iifname \"eth0\" oifname \"tap0\" ip daddr {guest} accept
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname \"tap0\" udp dport 67 accept
    iifname \"tap0\" ip daddr {gateway} icmp type echo-request accept
    iifname \"tap0\" ct state established,related accept
    iifname \"tap0\" drop
  }}
}}
"
    )
}

/// The rules of a namespace in which a process with a user and a group sends what a guest wants sent, to any destination: nothing to
/// the namespace itself, such as a loopback address, but answers.
pub fn passt_rules(user: u32, group: u32) -> String {
    format!(
        "table inet vireo_passt {{}}
delete table inet vireo_passt
table inet vireo_passt {{
  chain output {{
    type filter hook output priority filter; policy accept;
    oifname \"lo\" meta skuid {user} meta skgid {group} ct state new drop
  }}
}}
"
    )
}

/// The same for IPv6. Neighbours find each other, and the guest its router and its address; what belongs to a link alone
/// is never translated. `router` is the gateway's link-local address.
pub fn guest_ipv6_rules(guest: Ipv6Addr, gateway: Ipv6Addr, router: Ipv6Addr, forwards: &[Ports]) -> String {
    let dnat = dnat(guest.into(), forwards);
    format!(
        "table ip6 vireo {{}}
delete table ip6 vireo
table ip6 vireo {{
  chain prerouting {{
    type nat hook prerouting priority dstnat; policy accept;
    ip6 daddr {{ fe80::/10, ff00::/8 }} accept
{dnat}  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip6 saddr {guest} oifname \"eth0\" masquerade
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname \"tap0\" oifname \"eth0\" ip6 saddr {guest} accept
    iifname \"eth0\" oifname \"tap0\" ip6 daddr {guest} accept
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname \"tap0\" icmpv6 type {{ nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert }} ip6 hoplimit 255 accept
    iifname \"tap0\" ip6 daddr {{ {gateway}, {router} }} icmpv6 type echo-request accept
    iifname \"tap0\" ip6 daddr ff02::1:2 udp dport 547 accept
    iifname \"tap0\" ct state established,related accept
    iifname \"tap0\" drop
  }}
}}
"
    )
}

/// Applies rules in the calling thread's network namespace.
///
/// # Errors
/// When nft is missing or refuses.
pub fn apply(rules: &str) -> Result<(), NftError> {
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(NftError::Run)?;
    if let Some(mut stdin) = nft.stdin.take() {
        stdin.write_all(rules.as_bytes()).map_err(NftError::Run)?;
    }
    let output = nft.wait_with_output().map_err(NftError::Run)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(NftError::Rejected(text.split_whitespace().collect::<Vec<_>>().join(" ")))
}

#[cfg(test)]
mod tests {
    use super::super::ports::Protocol;
    use super::*;

    #[test]
    fn without_ports_everything_reaches_the_guest_and_with_ports_only_they_do() {
        let guest = Ipv4Addr::new(10, 0, 2, 2);
        let gateway = Ipv4Addr::new(10, 0, 2, 1);
        let dnats = |forwards: &[Ports]| -> Vec<String> {
            let rules = guest_rules(guest, gateway, forwards);
            rules.lines().filter(|line| line.contains("dnat to")).map(|line| line.trim().to_owned()).collect()
        };
        assert_eq!(dnats(&[]), ["iifname \"eth0\" dnat to 10.0.2.2"]);
        let ports = [
            Ports::one(Protocol::Tcp, 22),
            Ports::one(Protocol::Udp, 53),
            Ports { protocol: Protocol::Udp, first: 10000, last: 10100 },
        ];
        assert_eq!(
            dnats(&ports),
            [
                "iifname \"eth0\" tcp dport 22 dnat to 10.0.2.2",
                "iifname \"eth0\" udp dport 53 dnat to 10.0.2.2",
                "iifname \"eth0\" udp dport 10000-10100 dnat to 10.0.2.2"
            ]
        );
    }

    #[test]
    fn ipv6_has_the_same_rules_and_lets_neighbours_find_each_other() {
        let address = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let ports = [Ports::one(Protocol::Udp, 53), Ports { protocol: Protocol::Tcp, first: 1, last: 65535 }];
        let rules = |forwards| {
            guest_ipv6_rules(address("fd10:0:2::2"), address("fd10:0:2::1"), address("fe80::1"), forwards)
        };
        let all = rules(&[]);
        for line in [
            "    ip6 daddr { fe80::/10, ff00::/8 } accept\n    iifname \"eth0\" dnat to fd10:0:2::2\n",
            "    ip6 saddr fd10:0:2::2 oifname \"eth0\" masquerade\n",
            "    iifname \"tap0\" oifname \"eth0\" ip6 saddr fd10:0:2::2 accept\n",
            "    iifname \"tap0\" ip6 daddr { fd10:0:2::1, fe80::1 } icmpv6 type echo-request accept\n",
            "    iifname \"tap0\" drop\n",
        ] {
            assert!(all.contains(line), "{line} is missing in {all}");
        }
        let listed = rules(&ports);
        for condition in ["udp dport 53", "tcp dport 1-65535"] {
            let line = format!("    iifname \"eth0\" {condition} dnat to fd10:0:2::2\n");
            assert!(listed.contains(&line), "{line} is missing in {listed}");
        }
        assert!(!listed.contains("\"eth0\" dnat"), "{listed}");
    }
}
