//! The guest's side of a network, by the spec of its VMI.

use vireo_api::spec::{self, Binding, Forwards, Vm};

use super::Inside;
use super::ports::{Ports, Protocol};
use super::tap::Queues;

/// The guest's side of masquerade, which a spec requests for at most one NIC.
pub(crate) fn requested(vm: &Vm) -> Option<Inside> {
    let (nic, networks, forwards) = vm.interfaces().iter().find_map(|one| match one.binding() {
        Binding::Masquerade { networks, forwards } => Some((one, networks, forwards)),
        Binding::Bridge => None,
    })?;
    let forwards = match forwards {
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
    };
    Some(Inside {
        net: networks.ipv4,
        net6: networks.ipv6,
        forwards,
        mac: nic.mac()?,
        queues: Queues::of(vm.queue_pairs(nic)),
    })
}

fn protocol(of: spec::Protocol) -> Protocol {
    match of {
        spec::Protocol::Tcp => Protocol::Tcp,
        spec::Protocol::Udp => Protocol::Udp,
    }
}
