//! The guest's side of a network, by the spec of its VMI.

use vireo_api::spec::{self, Binding, Vm};

use super::Inside;
use super::nft::{Forward, Protocol};
use super::tap::Queues;

/// The guest's side of masquerade, which a spec requests for at most one NIC.
pub(crate) fn requested(vm: &Vm) -> Option<Inside> {
    let (nic, networks, ports) = vm.interfaces().iter().find_map(|one| match one.binding() {
        Binding::Masquerade { networks, ports } => Some((one, networks, ports)),
        Binding::Bridge => None,
    })?;
    let forward = |port: &spec::Port| Forward {
        protocol: match port.protocol() {
            spec::Protocol::Tcp => Protocol::Tcp,
            spec::Protocol::Udp => Protocol::Udp,
        },
        port: port.port(),
    };
    Some(Inside {
        net: networks.ipv4,
        net6: networks.ipv6,
        forwards: ports.iter().map(forward).collect(),
        mac: nic.mac()?,
        queues: Queues::of(vm.queue_pairs(nic)),
    })
}
