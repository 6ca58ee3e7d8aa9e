use std::io;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, info, warn};
use vireo_proto::files::{dhcpv6_name, dhcpv6_socket, router_name, router_socket};

use super::{advertisement, answer, is_solicitation};
use crate::files::PassedFiles;
use crate::launch::{Interface, Ipv6Lease};

/// All nodes of a link (RFC 4291, section 2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// How often a router advertises itself without being asked; the only one of its link need not vary it.
const PERIOD: Duration = Duration::from_secs(200);
/// What a guest can put into one Ethernet frame, jumbo frames included.
const LONGEST: usize = 9216;
/// How long to leave a socket alone that only gives errors.
const ERROR_PAUSE: Duration = Duration::from_millis(200);

/// A router that advertises itself and a DHCPv6 server that listens.
#[derive(Debug)]
pub struct Server {
    /// A raw socket: it takes and gives addresses as one of UDP does, with 0 for the port.
    router: UdpSocket,
    dhcp: UdpSocket,
    lease: Ipv6Lease,
    advertisement: Vec<u8>,
    tap: String,
}

/// Why IPv6 cannot be served on a tap device.
#[derive(Debug, thiserror::Error)]
#[error("interface {interface}: cannot serve {what} on {tap}")]
pub struct Ipv6Error {
    interface: String,
    what: &'static str,
    tap: String,
    #[source]
    source: io::Error,
}

impl Server {
    /// Listens on the tap device, by the sockets that the node agent passed if there are any; `None` for an interface
    /// without IPv6.
    pub fn bind(interface: &Interface, passed: &PassedFiles) -> Result<Option<Self>, Ipv6Error> {
        let (Some(lease), Some(tap)) = (interface.ipv6_lease.clone(), interface.peer.tap()) else {
            return Ok(None);
        };
        let failed = |what| {
            let (interface, tap) = (interface.name.clone(), tap.to_owned());
            move |source| Ipv6Error { interface, what, tap, source }
        };
        let router = passed.take(&router_name(tap)).map_or_else(|| router_socket(tap), Ok);
        let router = router.and_then(|socket| UdpSocket::from_std(socket.into()));
        let dhcp = match passed.take(&dhcpv6_name(tap)) {
            Some(socket) => Ok(socket.into()),
            None => dhcpv6_socket(tap),
        };
        let dhcp = dhcp.and_then(UdpSocket::from_std);
        Ok(Some(Self {
            router: router.map_err(failed("router advertisements"))?,
            dhcp: dhcp.map_err(failed("DHCPv6"))?,
            advertisement: advertisement(&lease, interface.mtu),
            lease,
            tap: tap.to_owned(),
        }))
    }

    /// Advertises and answers until dropped.
    pub async fn run(self) {
        tokio::join!(self.route(), self.serve());
    }

    async fn route(&self) {
        let mut message = vec![0; LONGEST];
        let mut due = interval(PERIOD);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = due.tick() => self.advertise(ALL_NODES, 0).await,
                received = self.router.recv_from(&mut message) => match received {
                    Ok((length, SocketAddr::V6(from)))
                        if is_solicitation(message.get(..length).unwrap_or_default()) =>
                    {
                        // A guest without an address yet is asked for with all others.
                        let to = if from.ip().is_unspecified() { ALL_NODES } else { *from.ip() };
                        self.advertise(to, from.scope_id()).await;
                    }
                    Ok(_) => {}
                    Err(error) => self.pause(&error).await,
                },
            }
        }
    }

    async fn advertise(&self, to: Ipv6Addr, scope: u32) {
        let to = SocketAddr::V6(SocketAddrV6::new(to, 0, 0, scope));
        if let Err(error) = self.router.send_to(&self.advertisement, to).await {
            debug!(tap = self.tap, %error, "cannot send a router advertisement");
        }
    }

    async fn serve(&self) {
        let mut packet = vec![0; LONGEST];
        loop {
            match self.dhcp.recv_from(&mut packet).await {
                Ok((length, from)) => self.heard(packet.get(..length).unwrap_or_default(), from).await,
                Err(error) => self.pause(&error).await,
            }
        }
    }

    async fn heard(&self, packet: &[u8], from: SocketAddr) {
        let Some(answer) = answer(packet, &self.lease) else {
            debug!(tap = self.tap, length = packet.len(), "DHCPv6 packet not answered");
            return;
        };
        match self.dhcp.send_to(&answer, from).await {
            Ok(_) => info!(tap = self.tap, address = %self.lease.address, "DHCPv6 answered"),
            Err(error) => warn!(tap = self.tap, %error, "cannot send a DHCPv6 answer"),
        }
    }

    /// ENETDOWN and friends: the device may come back.
    async fn pause(&self, error: &io::Error) {
        warn!(tap = self.tap, %error, "no IPv6 requests");
        tokio::time::sleep(ERROR_PAUSE).await;
    }
}
