use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use tokio::net::UdpSocket;
use tracing::{debug, info, warn};
use vireo_proto::files::{dhcp_name, dhcp_socket};

use super::answer::{Offer, answer};
use crate::files::PassedFiles;
use crate::launch::{Interface, NicPeer};

const CLIENT_PORT: u16 = 68;
/// What a guest can put into one Ethernet frame, jumbo frames included.
const LONGEST: usize = 9216;
/// How long to leave a socket alone that only gives errors.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// A DHCP server that listens.
#[derive(Debug)]
pub struct Server {
    socket: UdpSocket,
    offer: Offer,
    tap: String,
}

/// Why DHCP cannot be served on a tap device.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: cannot serve DHCP on {tap}")]
pub struct DhcpError {
    interface: String,
    tap: String,
    #[source]
    source: io::Error,
}

impl Server {
    /// Listens on the interface's device, by the socket that the node agent passed if there is one; `None` for an interface without a lease.
    pub fn bind(interface: &Interface, passed: &PassedFiles) -> Result<Option<Self>, DhcpError> {
        let (Some(lease), NicPeer::Tap { device, dhcp_device }) = (interface.lease.clone(), &interface.peer)
        else {
            return Ok(None);
        };
        let socket = match passed.take(&dhcp_name(device)) {
            Some(socket) => Ok(socket.into()),
            None => dhcp_socket(dhcp_device),
        };
        let socket = socket.and_then(UdpSocket::from_std).map_err(|source| DhcpError {
            interface: interface.name.clone(),
            tap: device.clone(),
            source,
        })?;
        let offer = Offer { mac: interface.mac, lease, mtu: interface.mtu };
        Ok(Some(Self { socket, offer, tap: device.clone() }))
    }

    /// Answers until dropped.
    pub async fn run(self) {
        let mut packet = vec![0; LONGEST];
        loop {
            match self.socket.recv_from(&mut packet).await {
                Ok((length, _)) => self.heard(packet.get(..length).unwrap_or_default()).await,
                Err(error) => {
                    // ENETDOWN and friends: the device may come back.
                    warn!(tap = self.tap, %error, "no DHCP requests");
                    tokio::time::sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    async fn heard(&self, packet: &[u8]) {
        let Some(answer) = answer(packet, &self.offer) else {
            debug!(tap = self.tap, length = packet.len(), "DHCP packet not answered");
            return;
        };
        let to = SocketAddr::V4(SocketAddrV4::new(answer.to, CLIENT_PORT));
        match self.socket.send_to(&answer.packet, to).await {
            Ok(_) => info!(tap = self.tap, address = %self.offer.lease.address, "DHCP answered"),
            Err(error) => warn!(tap = self.tap, %error, "cannot send a DHCP answer"),
        }
    }
}
