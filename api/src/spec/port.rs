//! The ports of a guest that are forwarded to it.

use super::Field;
use super::report::Findings;
use crate::v1;

/// The most ranges of an interface; KubeVirt's.
const MAX_RANGES: usize = 10;

/// What is forwarded to a guest behind masquerade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forwards {
    /// Everything.
    All,
    /// These ports alone; there is one at least.
    Ports(Vec<Port>),
    /// These ranges alone; there is one at least, and those of one protocol do not overlap.
    Ranges(Vec<PortRange>),
}

impl Forwards {
    /// The single ports, which may have names.
    pub fn ports(&self) -> &[Port] {
        match self {
            Self::Ports(ports) => ports,
            Self::All | Self::Ranges(_) => &[],
        }
    }
}

/// A forwarded port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    name: Option<String>,
    protocol: Protocol,
    port: u16,
}

/// What a port is a port of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a protocol's own name")]
pub enum Protocol {
    Tcp,
    Udp,
}

impl Port {
    /// How it is referred to.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// TCP or UDP.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// From 1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

/// A range of forwarded ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    protocol: Protocol,
    first: u16,
    last: u16,
}

impl PortRange {
    /// TCP or UDP.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// From 1.
    pub fn first(&self) -> u16 {
        self.first
    }

    /// Not below the first.
    pub fn last(&self) -> u16 {
        self.last
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.protocol == other.protocol && self.first <= other.last && other.first <= self.last
    }
}

/// The ports of an interface.
pub(super) fn read(interface: &v1::Interface, at: &Field, found: &mut Findings) -> Forwards {
    let ports = ports(&interface.ports, &at.at("ports"), found);
    let at = at.at("portRanges");
    let ranges = ranges(&interface.port_ranges, &at, found);
    if !interface.ports.is_empty() && !interface.port_ranges.is_empty() {
        found.forbidden(&at, "may not be specified together with ports: write a port as a range of one");
    }
    match (ports.is_empty(), ranges.is_empty()) {
        (true, true) => Forwards::All,
        (false, _) => Forwards::Ports(ports),
        (true, false) => Forwards::Ranges(ranges),
    }
}

fn ports(ports: &[v1::Port], at: &Field, found: &mut Findings) -> Vec<Port> {
    let mut read: Vec<Port> = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        let name = Some(port.name.clone()).filter(|name| !name.is_empty());
        if let Some(name) = &name {
            if !is_port_name(name) {
                found.invalid_value(&at.at("name"), name, "must be at most 15 of a-z, 0-9 and '-', one letter at least, no '-' at the ends or twice in a row");
            } else if read.iter().any(|known| known.name.as_ref() == Some(name)) {
                found.duplicate(&at.at("name"), format!("a port before this one is called {name:?}, too"));
            }
        }
        let protocol = match port.protocol.as_str() {
            "" => Protocol::Tcp,
            text => {
                let Some(protocol) = protocol(text, &at, found) else { continue };
                protocol
            }
        };
        let Some(number) = number(port.port, &at.at("port"), "give the port's number", found) else {
            continue;
        };
        // KubeVirt tolerates a port that is listed twice, such as once without and once with its default protocol.
        let is_known = |known: &Port| {
            known.port == number && known.protocol == protocol && (name.is_none() || known.name == name)
        };
        if !read.iter().any(is_known) {
            read.push(Port { name, protocol, port: number });
        }
    }
    read
}

fn ranges(ranges: &[v1::PortRange], at: &Field, found: &mut Findings) -> Vec<PortRange> {
    if ranges.len() > MAX_RANGES {
        found.too_many(at, ranges.len(), MAX_RANGES, "");
    }
    let mut read: Vec<PortRange> = Vec::new();
    for (index, range) in ranges.iter().enumerate() {
        let at = at.index(index);
        let protocol = match range.protocol.as_str() {
            "" => {
                found.required_value(&at.at("protocol"), "write TCP or UDP");
                None
            }
            text => protocol(text, &at, found),
        };
        let first = number(range.start, &at.at("start"), "give the first port of the range", found);
        let last = number(range.end, &at.at("end"), "give the last port of the range", found);
        let (Some(protocol), Some(first), Some(last)) = (protocol, first, last) else { continue };
        if first > last {
            found.invalid_value(&at.at("end"), last, format!("must not be below start, which is {first}"));
            continue;
        }
        let range = PortRange { protocol, first, last };
        match read.iter().find(|known| known.overlaps(&range)) {
            Some(PortRange { first, last, .. }) => {
                found.invalid(&at, format!("overlaps the range of {first} to {last} of the same protocol"));
            }
            None => read.push(range),
        }
    }
    read
}

fn protocol(text: &str, at: &Field, found: &mut Findings) -> Option<Protocol> {
    match text {
        "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        other => {
            found.invalid_value(&at.at("protocol"), other, "must be TCP or UDP");
            None
        }
    }
}

fn number(given: Option<i32>, at: &Field, missing: &str, found: &mut Findings) -> Option<u16> {
    let Some(number) = given else {
        found.required_value(at, missing);
        return None;
    };
    let valid = u16::try_from(number).ok().filter(|number| *number != 0);
    if valid.is_none() {
        found.invalid_value(at, number, "must be between 1 and 65535, inclusive");
    }
    valid
}

/// An IANA service name, in lower case.
fn is_port_name(name: &str) -> bool {
    name.len() <= 15
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().any(|b| b.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}
