//! A port of a guest as a websocket: connected from this node and relayed.
//!
//! Over UDP every binary frame is one datagram.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path as Segments, State};
use axum::response::Response;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use vireo_api::v1::VirtualMachineInstance;

use super::console::running;
use super::error::ApiError;
use super::find;
use super::lifecycle::is_paused;
use super::relay::{PLAIN, relay, relay_stream};
use crate::launcher::link::chain;
use crate::metrics::Endpoint;
use crate::node::Node;
use crate::reconcile::status::primary;

/// How long a guest may take to answer the first packet.
const DIAL: Duration = Duration::from_secs(30);

/// Forwards to `port` by TCP.
pub(super) async fn tcp(
    node: State<Arc<Node>>,
    Segments((namespace, name, port)): Segments<(String, String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    either(node, Segments((namespace, name, port, "tcp".to_owned())), upgrade).await
}

/// Forwards to `port` by the protocol that is named.
pub(super) async fn either(
    State(node): State<Arc<Node>>,
    Segments((namespace, name, port, protocol)): Segments<(String, String, String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let port = port.parse().ok().filter(|port| *port != 0);
    let port: u16 = port.ok_or_else(|| ApiError::bad_request("the port must be a number from 1 to 65535"))?;
    let vmi = find(&node, namespace, name)?;
    let address = SocketAddr::new(reachable(&vmi)?, port);
    let upgrade = upgrade.map_err(|rejection| {
        ApiError::bad_request(format!("a forwarded port is a websocket: {rejection}"))
    })?;
    let upgrade = upgrade.protocols([PLAIN]);
    let open = || node.metrics.connections.open(&vmi, Endpoint::PortForward);
    match protocol.as_str() {
        "tcp" => {
            let guest = dialled(timeout(DIAL, TcpStream::connect(address)).await, address)?;
            // Small packets are often interactive.
            guest.set_nodelay(true).map_err(|error| ApiError::internal(chain(&error)))?;
            let connection = open();
            Ok(upgrade.on_upgrade(async move |client| {
                let _connection = connection;
                relay_stream(client, guest.into_split()).await;
            }))
        }
        "udp" => {
            let guest = Arc::new(dialled(timeout(DIAL, datagrams(address)).await, address)?);
            let connection = open();
            Ok(upgrade.on_upgrade(async move |client| {
                let _connection = connection;
                relay(client, Arc::clone(&guest), guest).await;
            }))
        }
        _ => Err(ApiError::bad_request(format!("protocol {protocol:?} is neither tcp nor udp"))),
    }
}

/// The guest's address, with KubeVirt's errors.
fn reachable(vmi: &VirtualMachineInstance) -> Result<IpAddr, ApiError> {
    running(vmi)?;
    if is_paused(vmi) {
        return Err(ApiError::not_now(&vmi.metadata.name, "VMI is paused"));
    }
    let first = primary(&vmi.status.interfaces).map(|interface| interface.ip_address.as_str());
    let first = first.filter(|address| !address.is_empty());
    let first = first.ok_or_else(|| ApiError::bad_request("no network interfaces are present"))?;
    first.parse().map_err(|_| ApiError::internal(format!("the VMI's address {first:?} is none")))
}

async fn datagrams(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(address).await?;
    Ok(socket)
}

fn dialled<T>(
    dialled: Result<std::io::Result<T>, tokio::time::error::Elapsed>,
    address: SocketAddr,
) -> Result<T, ApiError> {
    let why = match dialled {
        Ok(Ok(guest)) => return Ok(guest),
        Ok(Err(error)) => chain(&error),
        Err(_) => format!("no answer in {} s", DIAL.as_secs()),
    };
    Err(ApiError::internal(format!("cannot connect to the guest at {address}: {why}")))
}

#[cfg(test)]
mod tests {
    use vireo_api::v1::{Condition, InterfaceStatus};

    use super::*;

    #[test]
    fn the_answers_are_kubevirts() {
        let vmi = |phase: &str, address: Option<&str>, paused: bool| {
            let mut vmi = VirtualMachineInstance::default();
            vmi.status.phase = phase.to_owned();
            vmi.status.interfaces = address
                .map(|address| InterfaceStatus {
                    ip_address: address.into(),
                    pod_interface_name: "eth0".into(),
                    ..Default::default()
                })
                .into_iter()
                .collect();
            if paused {
                let kind = Condition { r#type: "Paused".into(), status: "True".into(), ..Default::default() };
                vmi.status.conditions.push(kind);
            }
            reachable(&vmi).map_err(|fault| fault.code.as_u16())
        };
        assert_eq!(vmi("Running", Some("10.201.0.2"), false), Ok([10, 201, 0, 2].into()));
        assert_eq!(vmi("Running", Some("10.201.0.2"), true), Err(409));
        assert_eq!(vmi("Running", None, false), Err(400));
        assert_eq!(vmi("Running", Some(""), false), Err(400));
        assert_eq!(vmi("Scheduled", Some("10.201.0.2"), false), Err(400));
        assert_eq!(vmi("Failed", Some("10.201.0.2"), false), Err(409));

        let mut secondary = VirtualMachineInstance::default();
        secondary.status.phase = "Running".to_owned();
        secondary.status.interfaces = vec![InterfaceStatus {
            ip_address: "169.254.169.254".into(),
            pod_interface_name: "pod16477688c0e".into(),
            ..Default::default()
        }];
        let refused = reachable(&secondary).map_err(|fault| fault.code.as_u16());
        assert_eq!(refused, Err(400), "the guest may have named that address");
    }
}
