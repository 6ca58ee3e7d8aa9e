//! `virtctl port-forward`: forwards local ports to a guest.

mod port;
mod udp;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;

use super::Failure;
use super::splice::splice;
use super::target::{Kind, Target};
use crate::cli::{PortForward, Server};
use crate::client::{Client, ClientError, Connection};
use port::{Port, Protocol};

#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("--stdio forwards one port, not {0}")]
    OnePort(usize),
    #[error("--stdio does not support udp: forward it to a local port")]
    Datagrams,
    #[error("cannot listen on {protocol} {address}")]
    Listen {
        protocol: Protocol,
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot take a connection")]
    Accept(#[source] std::io::Error),
    #[error("cannot receive a datagram")]
    Receive(#[source] std::io::Error),
}

/// A port of a guest.
pub(super) struct Remote {
    client: Client,
    path: String,
}

impl Remote {
    fn of(client: Client, target: &Target, port: &Port) -> Result<Self, ClientError> {
        let subresource = format!("portforward/{}/{}", port.remote, port.protocol);
        let path = match target.kind {
            Kind::Vm => client.vm_subresource(&target.name, &subresource)?,
            Kind::Vmi => client.subresource(&target.name, &subresource),
        };
        Ok(Self { client, path })
    }

    /// A connection of its own.
    async fn open(&self) -> Result<WebSocketStream<Connection>, ClientError> {
        self.client.stream(&self.path).await
    }
}

/// Forwards until interrupted; with `--stdio`, until either side ends.
pub(crate) async fn run(server: &Server, args: &PortForward) -> Result<(), Failure> {
    let target = Target::parse(&args.target, server.namespace.as_deref())?;
    let ports: Vec<Port> = args.ports.iter().map(|text| Port::parse(text)).collect::<Result<_, _>>()?;
    let remote = async |port| {
        let client = Client::new(server).await?.within(target.namespace.as_deref());
        Remote::of(client, &target, port)
    };
    if args.stdio {
        let [port] = ports.as_slice() else { return Err(ForwardError::OnePort(ports.len()).into()) };
        if port.protocol == Protocol::Udp {
            return Err(ForwardError::Datagrams.into());
        }
        let stream = remote(port).await?.open().await?;
        splice(tokio::io::stdin(), tokio::io::stdout(), stream).await;
        return Ok(());
    }
    let mut forwarders = JoinSet::new();
    for port in &ports {
        let (remote, address) = (Arc::new(remote(port).await?), SocketAddr::new(args.address, port.local));
        let failed = |source| ForwardError::Listen { protocol: port.protocol, address, source };
        let address = match port.protocol {
            Protocol::Tcp => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                forwarders.spawn(connections(listener, remote));
                address
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(address).await.map_err(failed)?;
                let address = socket.local_addr().map_err(failed)?;
                forwarders.spawn(udp::datagrams(socket, remote));
                address
            }
        };
        println!("forwarding {} {address} to {}", port.protocol, port.remote);
    }
    while let Some(ended) = forwarders.join_next().await {
        ended??;
    }
    Ok(())
}

/// Every connection gets a stream of its own.
async fn connections(listener: TcpListener, remote: Arc<Remote>) -> Result<(), ForwardError> {
    loop {
        let (local, _) = listener.accept().await.map_err(ForwardError::Accept)?;
        let remote = Arc::clone(&remote);
        tokio::spawn(async move {
            match remote.open().await {
                Ok(stream) => {
                    let (from_here, to_here) = local.into_split();
                    splice(from_here, to_here, stream).await;
                }
                Err(error) => eprintln!("virtctl: {}", crate::chain(&error)),
            }
        });
    }
}
