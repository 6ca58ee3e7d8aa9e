//! Packet rules: their text, and applying them with the `nft` binary.
//!
//! Every rule set replaces itself as a whole in one transaction, so applying it twice is applying it once.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use ipnet::Ipv4Net;
use thiserror::Error;

/// A forwarded port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forward {
    /// "tcp" or "udp".
    pub protocol: Protocol,
    /// The port, the same outside and in the guest.
    pub port: u16,
}

/// A transport protocol, with its name in nft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Protocol {
    fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

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

/// The host's rules: what guests send beyond the host leaves with the host's address.
///
/// The ranges are a set that handlers add to, so two handlers of one host do not undo each other.
pub fn host_rules(range: Ipv4Net) -> String {
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

/// The rules inside a VM's namespace: NAT between `eth0` and the guest, and nothing else from the guest.
///
/// `forwards` are the ports that reach the guest; everything does when it is empty.
pub fn guest_rules(guest: Ipv4Addr, gateway: Ipv4Addr, forwards: &[Forward]) -> String {
    let mut dnat = String::new();
    if forwards.is_empty() {
        let _ = writeln!(dnat, "    iifname \"eth0\" dnat to {guest}");
    }
    for Forward { protocol, port } in forwards {
        let _ = writeln!(dnat, "    iifname \"eth0\" {} dport {port} dnat to {guest}", protocol.as_str());
    }
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
    use super::*;

    #[test]
    fn without_ports_everything_reaches_the_guest_and_with_ports_only_they_do() {
        let guest = Ipv4Addr::new(10, 0, 2, 2);
        let gateway = Ipv4Addr::new(10, 0, 2, 1);
        let dnats = |forwards: &[Forward]| -> Vec<String> {
            let rules = guest_rules(guest, gateway, forwards);
            rules.lines().filter(|line| line.contains("dnat to")).map(|line| line.trim().to_owned()).collect()
        };
        assert_eq!(dnats(&[]), ["iifname \"eth0\" dnat to 10.0.2.2"]);
        let ports =
            [Forward { protocol: Protocol::Tcp, port: 22 }, Forward { protocol: Protocol::Udp, port: 53 }];
        assert_eq!(
            dnats(&ports),
            [
                "iifname \"eth0\" tcp dport 22 dnat to 10.0.2.2",
                "iifname \"eth0\" udp dport 53 dnat to 10.0.2.2"
            ]
        );
    }
}
