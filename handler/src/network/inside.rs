//! The guest's side of a network, by the spec of its VMI.

use vireo_api::spec::{self, Binding, Vm};

use super::Inside;
use super::nft::{Forward, Protocol};

/// The guest's side of the network that a spec requests.
pub(crate) fn requested(vm: &Vm) -> Option<Inside> {
    let Binding::Masquerade { network, ports } = vm.interfaces().first()?.binding();
    let forward = |port: &spec::Port| Forward {
        protocol: match port.protocol() {
            spec::Protocol::Tcp => Protocol::Tcp,
            spec::Protocol::Udp => Protocol::Udp,
        },
        port: port.port(),
    };
    let net = ipnet::Ipv4Net::new(network.address(), network.prefix()).ok()?;
    Some(Inside { net, forwards: ports.iter().map(forward).collect() })
}
