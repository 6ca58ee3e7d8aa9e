//! Ports in packet rules: those that are forwarded to a guest, the same outside and in it, and those of the host that guests
//! reach.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Ports of one protocol, from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// From 1.
    pub first: u16,
    /// Not below the first.
    pub last: u16,
}

impl Ports {
    /// A single port.
    pub const fn one(protocol: Protocol, port: u16) -> Self {
        Self { protocol, first: port, last: port }
    }
}

/// As the condition of a rule of nft: `tcp dport 8000-8010`.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { protocol, first, last } = self;
        write!(f, "{} dport {first}", protocol.as_str())?;
        if last > first {
            write!(f, "-{last}")?;
        }
        Ok(())
    }
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

/// The error of parsing a text that is no port.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write PROTOCOL/PORT with tcp or udp, such as tcp/8080")]
pub struct ParsePortError;

impl FromStr for Ports {
    type Err = ParsePortError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (protocol, port) = text.split_once('/').ok_or(ParsePortError)?;
        let protocol = match protocol {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            _ => return Err(ParsePortError),
        };
        let port = port.parse().ok().filter(|port| *port != 0).ok_or(ParsePortError)?;
        Ok(Self::one(protocol, port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read() {
        assert_eq!("udp/53".parse(), Ok(Ports::one(Protocol::Udp, 53)));
        for bad in ["", "53", "tcp/", "tcp/0", "tcp/65536", "sctp/1", "tcp/-1", "TCP/1"] {
            assert_eq!(bad.parse::<Ports>(), Err(ParsePortError), "{bad}");
        }
    }
}
