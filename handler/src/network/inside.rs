//! The guest's side of a network, by the spec of its VMI.

use vireo_api::spec::{self, Binding, Forwards, Vm};

use super::Inside;
use super::ports::{Ports, Protocol};
use super::tap::Queues;

/// The guest's side of masquerade, which a spec requests for at most one NIC.
pub(crate) fn requested(vm: &Vm) -> Option<Inside> {
    let (nic, networks, forwards) = vm.interfaces().iter().find_map(|one| match one.binding() {
        Binding::Masquerade { networks, forwards } => Some((one, networks, forwards)),
        Binding::Bridge | Binding::Passt { .. } => None,
    })?;
    Some(Inside {
        net: networks.ipv4,
        net6: networks.ipv6,
        forwards: ports(forwards),
        mac: nic.mac()?,
        queues: Queues::of(vm.queue_pairs(nic)),
    })
}

/// The NICs that are connected by passt, with what is forwarded to them.
pub(crate) fn by_passt(vm: &Vm) -> impl Iterator<Item = (&str, Vec<Ports>)> {
    vm.interfaces().iter().filter_map(|nic| match nic.binding() {
        Binding::Passt { forwards } => Some((nic.name(), ports(forwards))),
        Binding::Masquerade { .. } | Binding::Bridge => None,
    })
}

/// What is forwarded; all where there is nothing.
fn ports(forwards: &Forwards) -> Vec<Ports> {
    match forwards {
        Forwards::All => Vec::new(),
        Forwards::Ports(ports) => {
            ports.iter().map(|port| Ports::one(protocol(port.protocol()), port.port())).collect()
        }
        Forwards::Ranges(ranges) => ranges
            .iter()
            .map(|range| Ports {
                protocol: protocol(range.protocol()),
                first: range.first(),
                last: range.last(),
            })
            .collect(),
    }
}

fn protocol(of: spec::Protocol) -> Protocol {
    match of {
        spec::Protocol::Tcp => Protocol::Tcp,
        spec::Protocol::Udp => Protocol::Udp,
    }
}
