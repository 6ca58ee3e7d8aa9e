//! The virt-handler of this host as a server for [`kube::Client`]: HTTP over its unix socket.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use tokio::net::UnixStream;

/// The host that requests name; a unix socket has none.
const HOST: HeaderValue = HeaderValue::from_static("vireo.local");

/// Nothing listens on the socket.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {socket}")]
pub(super) struct Absent {
    pub(super) socket: PathBuf,
    pub(super) source: io::Error,
}

/// A client of the virt-handler at a socket.
pub(super) fn client(socket: PathBuf) -> kube::Client {
    let service = tower::service_fn(move |request| {
        let socket = socket.clone();
        async move { ask(&socket, request).await }
    });
    kube::Client::new(service, "default")
}

/// Every request has a connection of its own: there are few, and some become streams.
async fn ask(
    socket: &Path,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, Box<dyn Error + Send + Sync>> {
    let stream =
        UnixStream::connect(socket).await.map_err(|source| Absent { socket: socket.to_owned(), source })?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    request.headers_mut().insert(header::HOST, HOST);
    Ok(sender.send_request(request).await?)
}
