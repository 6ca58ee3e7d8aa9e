//! Ports that a guest listens at by VSOCK: each connection is a websocket, which is relayed from this node.
//!
//! KubeVirt's node agent speaks TLS by default, with a client certificate that the guest verifies by the CA that it gets
//! from the host at port 1. This node serves no CA to guests, so that none could verify a certificate: `tls` must be `false`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path as Segments, Query, State};
use axum::response::Response;
use serde::Deserialize;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixStream;
use tokio::time::timeout;
use vireo_api::v1::VirtualMachineInstance;

use super::console::running;
use super::error::ApiError;
use super::find;
use super::relay::{PLAIN, relay_stream};
use crate::launcher::link::chain;
use crate::node::Node;

/// The lowest context ID of guests (linux/vm_sockets.h): those below are the host's.
const FIRST_CID: u32 = 3;
/// `VMADDR_PORT_ANY` (linux/vm_sockets.h), which is no port.
const ANY_PORT: u32 = u32::MAX;
/// How long a guest may take to answer. The kernel gives up after 2 s by itself.
const DIAL: Duration = Duration::from_secs(10);

/// The query parameters of a connection, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct VsockOptions {
    port: String,
    /// True where it is empty, as KubeVirt's.
    tls: String,
}

/// Connects a client to a port of the guest. There may be several connections.
pub(super) async fn attach(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    Query(options): Query<VsockOptions>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let vmi = find(&node, namespace, name)?;
    let cid = context_id(&vmi, &node.vmis())?;
    let port = requested_port(&options)?;
    let upgrade = upgrade.map_err(|rejection| {
        ApiError::bad_request(format!("a VSOCK connection is a websocket: {rejection}"))
    })?;
    let guest = dial(cid, port).await.map_err(|error| {
        ApiError::internal(format!("cannot connect to VSOCK port {port} of the guest: {}", chain(&error)))
    })?;
    Ok(upgrade.protocols([PLAIN]).on_upgrade(async move |client| {
        relay_stream(client, guest.into_split()).await;
    }))
}

/// The port, where the connection can be made as requested.
fn requested_port(VsockOptions { port, tls }: &VsockOptions) -> Result<u32, ApiError> {
    let number = port.parse().ok().filter(|number| ![0, ANY_PORT].contains(number));
    let number = number.ok_or_else(|| {
        ApiError::bad_request(format!(
            "port: Invalid value: {port:?}: must be a number from 1 to {}",
            ANY_PORT - 1
        ))
    })?;
    match parse_bool(tls) {
        Some(false) => Ok(number),
        Some(true) => Err(ApiError::bad_request(
            "tls: Unsupported value: \"true\": supported values: \"false\": guests cannot get the CA that they would \
             verify this node by; true is the default",
        )),
        None => {
            Err(ApiError::bad_request(format!("tls: Invalid value: {tls:?}: must be \"true\" or \"false\"")))
        }
    }
}

/// A boolean as Go's `strconv.ParseBool` reads it; true where nothing is written.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The context ID of a running guest, with KubeVirt's errors. It comes from the launcher, which is not trusted: an ID of the
/// host, and one that another VMI of the node has, would lead to what is not the guest's.
fn context_id(
    vmi: &VirtualMachineInstance,
    on_node: &[Arc<VirtualMachineInstance>],
) -> Result<u32, ApiError> {
    if vmi.spec.domain.devices.autoattach_vsock != Some(true) {
        return Err(ApiError::bad_request("VSOCK is not attached."));
    }
    running(vmi)?;
    let cid = vmi.status.vsock_cid.filter(|cid| *cid >= FIRST_CID);
    let cid = cid.ok_or_else(|| {
        ApiError::internal("the launcher does not report the context ID of the guest's VSOCK device")
    })?;
    let has_it = |other: &&Arc<VirtualMachineInstance>| {
        other.metadata.uid != vmi.metadata.uid && other.status.vsock_cid == Some(cid)
    };
    match on_node.iter().find(has_it) {
        Some(other) => Err(ApiError::internal(format!(
            "context ID {cid} is also that of the VMI {}/{}",
            other.metadata.namespace, other.metadata.name
        ))),
        None => Ok(cid),
    }
}

async fn dial(cid: u32, port: u32) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::VSOCK, Type::STREAM, None)?;
    timeout(DIAL, connect(socket, &SockAddr::vsock(cid, port)))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Connects a socket of any family, as the type for UNIX sockets: streams of all families are read, written and shut down alike.
async fn connect(socket: Socket, address: &SockAddr) -> io::Result<UnixStream> {
    socket.set_nonblocking(true)?;
    match socket.connect(address) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => return Err(error),
        _ => {}
    }
    // Only after `connect`: a socket that is not connected counts as one that can be written.
    let stream = UnixStream::from_std(StdUnixStream::from(OwnedFd::from(socket)))?;
    stream.writable().await?;
    match stream.take_error()? {
        Some(error) => Err(error),
        None => Ok(stream),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn port(port: &str, tls: &str) -> Result<u32, (u16, String)> {
        let options = VsockOptions { port: port.to_owned(), tls: tls.to_owned() };
        requested_port(&options).map_err(|fault| (fault.code.as_u16(), fault.message))
    }

    #[test]
    fn a_port_is_named_and_tls_is_switched_off() {
        for off in ["false", "0", "f", "F", "FALSE", "False"] {
            assert_eq!(port("7000", off), Ok(7000), "{off}");
        }
        assert_eq!((port("1", "false"), port("4294967294", "false")), (Ok(1), Ok(4_294_967_294)));
        for none in ["", "0", "-1", "4294967295", "4294967296", "ssh", "7000.0"] {
            let message = format!("port: Invalid value: {none:?}: must be a number from 1 to 4294967294");
            assert_eq!(port(none, "false"), Err((400, message)));
        }
        for on in ["", "true", "1", "t", "T", "TRUE", "True"] {
            let (code, message) = port("7000", on).unwrap_err();
            assert_eq!(code, 400, "{on}");
            assert!(message.starts_with("tls: Unsupported value: \"true\": supported values: \"false\": "));
        }
        let message = "tls: Invalid value: \"no\": must be \"true\" or \"false\"";
        assert_eq!(port("7000", "no"), Err((400, message.to_owned())));
    }

    fn vmi(phase: &str, attached: Option<bool>, cid: Option<u32>) -> VirtualMachineInstance {
        let mut vmi = VirtualMachineInstance::default();
        vmi.metadata.uid = "1".to_owned();
        vmi.status.phase = phase.to_owned();
        vmi.status.vsock_cid = cid;
        vmi.spec.domain.devices.autoattach_vsock = attached;
        vmi
    }

    #[test]
    fn the_answers_are_kubevirts() {
        let id = |phase, attached, cid| {
            context_id(&vmi(phase, attached, cid), &[]).map_err(|fault| (fault.code.as_u16(), fault.message))
        };
        assert_eq!(id("Running", Some(true), Some(77)), Ok(77));
        for attached in [None, Some(false)] {
            let refused = Err((400, "VSOCK is not attached.".to_owned()));
            assert_eq!(id("Running", attached, Some(77)), refused);
            assert_eq!(id("Scheduled", attached, None), refused);
        }
        for phase in ["", "Pending", "Scheduling", "Scheduled", "Succeeded"] {
            let refused = Err((400, "VMI is not running".to_owned()));
            assert_eq!(id(phase, Some(true), Some(77)), refused, "{phase}");
        }
        assert_eq!(id("Failed", Some(true), Some(77)).unwrap_err().0, 409);
    }

    #[test]
    fn a_launcher_cannot_lead_clients_to_the_host_or_to_another_guest() {
        let own = vmi("Running", Some(true), Some(77));
        for reserved in [None, Some(0), Some(1), Some(2)] {
            assert_eq!(
                context_id(&vmi("Running", Some(true), reserved), &[]).unwrap_err().code.as_u16(),
                500
            );
        }
        let mut other = own.clone();
        other.metadata.uid = "2".to_owned();
        (other.metadata.namespace, other.metadata.name) = ("prod".to_owned(), "two".to_owned());
        let on_node = [Arc::new(own.clone()), Arc::new(other)];
        let fault = context_id(&own, &on_node).unwrap_err();
        assert_eq!(fault.message, "context ID 77 is also that of the VMI prod/two");
        assert_eq!(context_id(&own, &on_node[..1]), Ok(77), "it has its own");
    }

    /// By TCP, which every host has.
    #[tokio::test]
    async fn a_socket_carries_bytes_both_ways_once_it_is_connected() {
        let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = service.local_addr().unwrap();
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let (mut from_guest, mut to_guest) = connect(socket(), &address.into()).await.unwrap().into_split();
        let (mut guest, _) = service.accept().await.unwrap();
        to_guest.write_all(b"hi").await.unwrap();
        let mut bytes = [0; 2];
        guest.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"hi");
        guest.write_all(b"HI").await.unwrap();
        from_guest.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"HI");
        drop(to_guest);
        assert_eq!(guest.read(&mut bytes).await.unwrap(), 0, "its end is passed on");
        drop((guest, service));
        let refused = connect(socket(), &address.into()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
