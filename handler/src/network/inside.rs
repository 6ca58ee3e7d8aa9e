//! The guest's side of a network, by the spec of its VMI.

use vireo_api::spec::{self, Binding, Vm};

use super::Inside;
use super::nft::{Forward, Protocol};

/// The guest's side of masquerade, which a spec requests for at most one NIC.
pub(crate) fn requested(vm: &Vm) -> Option<Inside> {
    let (networks, ports) = vm.interfaces().iter().find_map(|one| match one.binding() {
        Binding::Masquerade { networks, ports } => Some((networks, ports)),
        Binding::Bridge => None,
    })?;
    let forward = |port: &spec::Port| Forward {
        protocol: match port.protocol() {
            spec::Protocol::Tcp => Protocol::Tcp,
            spec::Protocol::Udp => Protocol::Udp,
        },
        port: port.port(),
    };
    let net = ipnet::Ipv4Net::new(networks.ipv4.address(), networks.ipv4.prefix()).ok()?;
    let net6 = ipnet::Ipv6Net::new(networks.ipv6.address(), networks.ipv6.prefix()).ok()?;
    Some(Inside { net, net6, forwards: ports.iter().map(forward).collect() })
}
