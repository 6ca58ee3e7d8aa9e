//! `virtctl usbredir`: a USB device of this host for an instance. The device is served by `usbredirect` of the usbredir project,
//! which connects to a local port.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{ExitStatus, Stdio};

use futures_util::StreamExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::splice::{Ended, splice};
use super::{Failure, find_program};
use crate::cli::{Server, Usbredir};
use crate::client::{Client, ClientError, Connection};

/// The program that serves a USB device.
const PROGRAM: &str = "usbredirect";
/// The most that the guest's side may send before there is a client. It greets with less than 100 bytes.
const EARLY: usize = 4 << 10;

#[derive(Debug, thiserror::Error)]
enum UsbredirError {
    #[error(
        "a USB device and the name of a virtual machine instance are required; with --no-launch, only the name"
    )]
    Missing,
    #[error(
        "--no-launch takes the name of a virtual machine instance alone: the client that you start has the device"
    )]
    DeviceOfClient,
    #[error(
        "{0:?} is not a USB device: must be VENDOR:PRODUCT, such as 0951:1666, or BUS-DEVICE, such as 02-03"
    )]
    Device(String),
    #[error(
        "cannot find {PROGRAM} in $PATH: install it, or use --no-launch and start a usbredir client yourself"
    )]
    NoProgram,
    #[error("can't access VMI {0}")]
    Access(String, #[source] ClientError),
    #[error("cannot listen on a local port")]
    Listen(#[source] io::Error),
    #[error("cannot accept the connection of a usbredir client")]
    Accept(#[source] io::Error),
    #[error("cannot start {PROGRAM}")]
    Start(#[source] io::Error),
    #[error("cannot wait for {PROGRAM}")]
    Wait(#[source] io::Error),
    #[error("{PROGRAM} ended with {0}")]
    Program(ExitStatus),
    #[error("the connection to the VMI was closed")]
    Closed,
}

/// What is redirected: no device where its client is started by the user.
#[derive(Debug, PartialEq, Eq)]
struct Target<'a> {
    device: Option<&'a str>,
    vmi: &'a str,
}

impl<'a> Target<'a> {
    fn parse(args: &'a Usbredir) -> Result<Self, UsbredirError> {
        match (args.target.as_slice(), args.no_launch) {
            ([vmi], true) => Ok(Self { device: None, vmi }),
            (_, true) => Err(UsbredirError::DeviceOfClient),
            ([device, vmi], false) if is_device(device) => Ok(Self { device: Some(device), vmi }),
            ([device, _], false) => Err(UsbredirError::Device(device.clone())),
            (_, false) => Err(UsbredirError::Missing),
        }
    }
}

/// Whether it is VENDOR:PRODUCT or BUS-DEVICE.
fn is_device(text: &str) -> bool {
    let is_number = |text: &str, most: usize, radix: u32| {
        (1..=most).contains(&text.len()) && text.chars().all(|digit| digit.is_digit(radix))
    };
    match (text.split_once(':'), text.split_once('-')) {
        (Some((vendor, product)), _) => is_number(vendor, 4, 16) && is_number(product, 4, 16),
        (None, Some((bus, device))) => is_number(bus, 3, 10) && is_number(device, 3, 10),
        (None, None) => false,
    }
}

/// Redirects a device until its client ends, which is one of the user's with `--no-launch`.
pub(crate) async fn run(server: &Server, args: &Usbredir) -> Result<(), Failure> {
    let Target { device, vmi } = Target::parse(args)?;
    let program = find_program(PROGRAM);
    if device.is_some() && program.is_none() {
        return Err(UsbredirError::NoProgram.into());
    }
    let client = Client::new(server).await?;
    // The stream has a slot of the guest from now on.
    let stream = client.stream(&client.subresource(vmi, "usbredir")).await;
    let stream = stream.map_err(|error| UsbredirError::Access(vmi.to_owned(), error))?;
    let (listener, address) = listen().await.map_err(UsbredirError::Listen)?;
    let (Some(device), Some(program)) = (device, program) else {
        println!("User can connect usbredir client at: {address}");
        return Ok(serve(&listener, stream).await?);
    };
    let mut command = Command::new(program);
    command.args(["--device", device, "--to", &address.to_string()]).stdin(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn().map_err(UsbredirError::Start)?;
    tokio::select! {
        done = ended(&mut child) => return Ok(done?),
        served = serve(&listener, stream) => served?,
    }
    Ok(ended(&mut child).await?)
}

async fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

/// Waits until the program ends; failing is an error.
async fn ended(child: &mut Child) -> Result<(), UsbredirError> {
    let status = child.wait().await.map_err(UsbredirError::Wait)?;
    if status.success() { Ok(()) } else { Err(UsbredirError::Program(status)) }
}

/// Joins one client of the local port and the guest's slot until the client ends.
async fn serve(listener: &TcpListener, mut stream: WebSocketStream<Connection>) -> Result<(), UsbredirError> {
    let (mut client, early) = accept(listener, &mut stream).await?;
    if client.write_all(&early).await.is_err() {
        return Ok(());
    }
    let (from_client, to_client) = client.split();
    match splice(from_client, to_client, stream).await {
        Ended::Here => Ok(()),
        Ended::Guest => Err(UsbredirError::Closed),
    }
}

/// Waits for a client, with what the guest's side has sent until then. Reading answers the server's pings.
async fn accept(
    listener: &TcpListener,
    stream: &mut WebSocketStream<Connection>,
) -> Result<(TcpStream, Vec<u8>), UsbredirError> {
    let mut early = Vec::new();
    loop {
        let message = tokio::select! {
            accepted = listener.accept() => {
                let (client, _) = accepted.map_err(UsbredirError::Accept)?;
                return Ok((client, early));
            }
            message = stream.next() => message,
        };
        match message {
            Some(Ok(Message::Binary(bytes))) if early.len() + bytes.len() <= EARLY => {
                early.extend_from_slice(&bytes);
            }
            Some(Ok(Message::Binary(_) | Message::Close(_)) | Err(_)) | None => {
                return Err(UsbredirError::Closed);
            }
            Some(Ok(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(target: &[&str], no_launch: bool) -> Usbredir {
        Usbredir { target: target.iter().map(|&text| text.to_owned()).collect(), no_launch }
    }

    #[test]
    fn a_device_comes_before_the_vmi_unless_the_user_starts_its_client() {
        let parsed = |target: &[&str], no_launch| {
            let args = args(target, no_launch);
            let Target { device, vmi } = Target::parse(&args).map_err(|error| error.to_string())?;
            Ok::<_, String>((device.map(str::to_owned), vmi.to_owned()))
        };
        let redirected = |device: &str| Ok((Some(device.to_owned()), "web".to_owned()));
        assert_eq!(parsed(&["0951:1666", "web"], false), redirected("0951:1666"));
        assert_eq!(parsed(&["02-03", "web"], false), redirected("02-03"));
        assert_eq!(parsed(&["web"], true), Ok((None, "web".to_owned())));
        assert_eq!(parsed(&["web"], false), Err(UsbredirError::Missing.to_string()));
        assert_eq!(parsed(&["02-03", "web"], true), Err(UsbredirError::DeviceOfClient.to_string()));
        assert!(parsed(&["web", "02-03"], false).unwrap_err().starts_with("\"web\" is not a USB device: "));
    }

    #[test]
    fn devices_are_named_by_two_numbers() {
        for device in ["0951:1666", "a:F00d", "1-2", "002-127"] {
            assert!(is_device(device), "{device}");
        }
        for other in
            ["", "web", "web-1", ":", "1:", "12345:1", "0951:16g6", "-", "1-", "1-2-3", "1234-5", "--device"]
        {
            assert!(!is_device(other), "{other}");
        }
    }
}
