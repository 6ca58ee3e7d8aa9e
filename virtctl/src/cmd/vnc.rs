//! `virtctl vnc`: the display of an instance, for a local viewer.

mod screenshot;
mod viewer;

use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use tokio::net::TcpListener;

use super::Failure;
use super::splice::splice;
use crate::cli::{Server, Vnc, VncCommand};
use crate::client::{Client, ClientError};

#[derive(Debug, thiserror::Error)]
enum VncError {
    #[error("the name of a virtual machine instance is required")]
    NoName,
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot take a viewer's connection")]
    Accept(#[source] std::io::Error),
    #[error(
        "no viewer is installed (looked for {0}): install one, or use --proxy-only and connect one by hand"
    )]
    NoViewer(String),
    #[error("cannot start {program}")]
    Start {
        program: String,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} ended with {status}")]
    Viewer { program: String, status: std::process::ExitStatus },
    #[error("lost track of the viewer")]
    Lost(#[source] std::io::Error),
}

/// Opens a port for viewers and, unless only the port is wanted, starts one; ends with it.
pub(crate) async fn run(server: &Server, args: &Vnc) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    if let Some(VncCommand::Screenshot(args)) = &args.command {
        return screenshot::run(&client, args).await;
    }
    let name = args.vmi.as_deref().ok_or(VncError::NoName)?;
    // A node agent of KubeVirt then keeps the viewer that is connected. Vireo's serves several at a time.
    let subresource = if args.preserve_session { "vnc?preserveSession=true" } else { "vnc" };
    let path = client.subresource(name, subresource);
    // Requested once before the port is opened, so that an error is reported here and not to a viewer.
    drop(client.stream(&path).await?);
    let (listener, address) = listen(args.address, args.port).await?;
    if args.proxy_only {
        println!("{}", json!({ "port": address.port() }));
        return proxy(&client, &path, &listener).await;
    }
    let mut viewer = viewer::start(address, args.vnc_type, args.vnc_path.as_deref())?;
    tokio::select! {
        ended = viewer.ended() => ended.map_err(Failure::from),
        failed = proxy(&client, &path, &listener) => failed,
    }
}

async fn listen(address: IpAddr, port: u16) -> Result<(TcpListener, SocketAddr), VncError> {
    let address = SocketAddr::new(address, port);
    let failed = |source| VncError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Every viewer gets a stream of its own, so there may be several.
async fn proxy(client: &Client, path: &str, listener: &TcpListener) -> Result<(), Failure> {
    loop {
        let (viewer, _) = listener.accept().await.map_err(VncError::Accept)?;
        match client.stream(path).await {
            Ok(stream) => {
                let (from_viewer, to_viewer) = viewer.into_split();
                tokio::spawn(splice(from_viewer, to_viewer, stream));
            }
            Err(error @ ClientError::Refused { .. }) => eprintln!("virtctl: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
}
