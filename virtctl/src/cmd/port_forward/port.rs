//! `[PROTOCOL/]LOCAL[:REMOTE]`.

use std::fmt;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PortError {
    #[error("{text:?}: protocol {protocol:?} is neither tcp nor udp")]
    Protocol { text: String, protocol: String },
    #[error("{text:?}: invalid port {number:?}")]
    Number { text: String, number: String },
    #[error("{text:?}: the guest's port is missing, as in 0:22")]
    NoPort { text: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) protocol: Protocol,
    /// Here; 0 is any.
    pub(super) local: u16,
    /// In the guest.
    pub(super) remote: u16,
}

impl Port {
    pub(super) fn parse(text: &str) -> Result<Self, PortError> {
        let (protocol, ports) = match text.split_once('/') {
            None => (Protocol::Tcp, text),
            Some((word, ports)) => match word.to_lowercase().as_str() {
                "tcp" => (Protocol::Tcp, ports),
                "udp" => (Protocol::Udp, ports),
                _ => {
                    let protocol = word.to_owned();
                    return Err(PortError::Protocol { text: text.to_owned(), protocol });
                }
            },
        };
        let number = |number: &str| {
            let wrong = |_| PortError::Number { text: text.to_owned(), number: number.to_owned() };
            number.parse::<u16>().map_err(wrong)
        };
        let (local, remote) = ports.split_once(':').unwrap_or((ports, ports));
        let (local, remote) = (number(local)?, number(remote)?);
        if remote == 0 {
            return Err(PortError::NoPort { text: text.to_owned() });
        }
        Ok(Self { protocol, local, remote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_read_as_upstreams() {
        use Protocol::{Tcp, Udp};
        let is = |protocol, local, remote| Ok(Port { protocol, local, remote });
        assert_eq!(Port::parse("8080"), is(Tcp, 8080, 8080));
        assert_eq!(Port::parse("8080:80"), is(Tcp, 8080, 80));
        assert_eq!(Port::parse("udp/53"), is(Udp, 53, 53));
        assert_eq!(Port::parse("TCP/0:22"), is(Tcp, 0, 22));
        for odd in ["", "x", "0", "1:0", "70000", "1:2:3", "sctp/1", "-1", ":22", "22:"] {
            assert!(Port::parse(odd).is_err(), "{odd}");
        }
    }
}
