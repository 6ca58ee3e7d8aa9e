//! Connections of the kubelet, as the HTTP/2 server of this program takes them.
//!
//! The kubelet's gRPC client writes the path of the socket into the pseudo-header `:authority`. The `h2` crate resets such a
//! stream, because a path is no authority (RFC 9113, section 8.3.1). Here the header becomes `localhost`; everything else that
//! the kubelet sends stays as it is.

use std::io;

use fluke_hpack::{Decoder, Encoder};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream};
use tokio::net::UnixStream;
use tracing::debug;

/// The length of what a client sends before all frames (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// The length of the head of a frame (section 4.1).
const HEAD: usize = 9;
/// The longest payload of a frame (section 4.2), and of a request's headers, which are no longer than some hundred bytes.
const MAX_PAYLOAD: usize = 16 << 10;
/// Types of frames (section 6).
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Flags of frames (sections 6.2 and 6.10).
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The length of the fields that the flag adds.
const PRIORITY_LENGTH: usize = 5;

/// The connection for the server.
pub(super) fn of_kubelet(stream: UnixStream) -> DuplexStream {
    let (here, server) = tokio::io::duplex(MAX_PAYLOAD);
    tokio::spawn(async move {
        let (mut from_kubelet, mut to_kubelet) = stream.into_split();
        let (mut from_server, mut to_server) = tokio::io::split(here);
        let requests = async {
            forward(&mut from_kubelet, &mut to_server).await?;
            to_server.shutdown().await?;
            std::future::pending::<io::Result<()>>().await
        };
        let responses = async {
            tokio::io::copy(&mut from_server, &mut to_kubelet).await?;
            to_kubelet.shutdown().await
        };
        let ended = tokio::select! {
            failed = requests => failed,
            ended = responses => ended,
        };
        if let Err(error) = ended {
            debug!(%error, "a connection of the kubelet ended");
        }
    });
    server
}

/// Passes frames on, until the kubelet ends the connection.
async fn forward(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut preface = [0; PREFACE];
    from.read_exact(&mut preface).await?;
    to.write_all(&preface).await?;
    let (mut decoder, mut encoder) = (Decoder::new(), Encoder::new());
    while let Some(mut frame) = Frame::read(from).await? {
        if frame.kind == HEADERS {
            frame = with_continuations(frame, from).await?;
            let headers = decoder.decode(&frame.payload).map_err(|error| invalid(format!("{error:?}")))?;
            let localhost = |(name, value): &(Vec<u8>, Vec<u8>)| match name.as_slice() {
                b":authority" => (name.clone(), b"localhost".to_vec()),
                _ => (name.clone(), value.clone()),
            };
            let headers: Vec<_> = headers.iter().map(localhost).collect();
            frame.payload = encoder.encode(headers.iter().map(|(name, value)| (&name[..], &value[..])));
        }
        frame.write(to).await?;
    }
    Ok(())
}

/// A frame of headers with what follows in other frames, without padding and priority.
async fn with_continuations(first: Frame, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut whole =
        first.without_extras().ok_or_else(|| invalid("a frame that is shorter than its fields"))?;
    while whole.flags & END_HEADERS == 0 {
        let next = Frame::read(from).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if (next.kind, next.stream) != (CONTINUATION, whole.stream) {
            return Err(invalid("headers that do not end"));
        }
        whole.payload.extend(next.payload);
        if whole.payload.len() > MAX_PAYLOAD {
            return Err(invalid("headers that are too long"));
        }
        whole.flags |= next.flags & END_HEADERS;
    }
    Ok(whole)
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
struct Frame {
    kind: u8,
    flags: u8,
    stream: [u8; 4],
    payload: Vec<u8>,
}

impl Frame {
    /// The next one; none at the end of the connection.
    async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD];
        if from.read(&mut head[..1]).await? == 0 {
            return Ok(None);
        }
        from.read_exact(&mut head[1..]).await?;
        let [high, middle, low, kind, flags, stream @ ..] = head;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if length > MAX_PAYLOAD {
            return Err(invalid("a frame that is too long"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        Ok(Some(Self { kind, flags, stream, payload }))
    }

    async fn write(&self, to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let length = u32::try_from(self.payload.len()).ok().filter(|length| *length <= 0xff_ffff);
        let [_, high, middle, low] = length.ok_or_else(|| invalid("a frame that is too long"))?.to_be_bytes();
        let mut bytes = vec![high, middle, low, self.kind, self.flags];
        bytes.extend(self.stream);
        bytes.extend(&self.payload);
        to.write_all(&bytes).await
    }

    /// Headers without padding and priority; none where they are too short to have them.
    fn without_extras(mut self) -> Option<Self> {
        let padding = if self.flags & PADDED == 0 { 0 } else { usize::from(*self.payload.first()?) };
        let length_field = usize::from(self.flags & PADDED != 0);
        let priority = if self.flags & PRIORITY == 0 { 0 } else { PRIORITY_LENGTH };
        let end = self.payload.len().checked_sub(padding)?;
        self.payload = self.payload.get(length_field + priority..end)?.to_vec();
        self.flags &= END_STREAM | END_HEADERS;
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;
    use tonic::transport::Server;

    use super::super::SHARED_DEVICES;
    use super::super::plugin::Plugin;
    use super::*;
    use crate::live_settings::LiveSettings;
    use vireo_proto::device_plugin::device_plugin_server::DevicePluginServer;

    const DATA: u8 = 0;
    const SETTINGS: u8 = 4;
    const STREAM: [u8; 4] = [0, 0, 0, 1];

    fn frame(kind: u8, flags: u8, payload: Vec<u8>) -> Frame {
        Frame { kind, flags, stream: STREAM, payload }
    }

    /// Kubernetes 1.20's kubelet, byte by byte.
    async fn request(stream: UnixStream, headers: Vec<Frame>) -> Frame {
        let (mut from, mut to) = stream.into_split();
        to.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        Frame { kind: SETTINGS, flags: 0, stream: [0; 4], payload: Vec::new() }.write(&mut to).await.unwrap();
        // An empty message of gRPC: not compressed, with a length of 0.
        for frame in headers.into_iter().chain([frame(DATA, END_STREAM, vec![0; 5])]) {
            frame.write(&mut to).await.unwrap();
        }
        loop {
            let answer = Frame::read(&mut from).await.unwrap().expect("an answer");
            if answer.stream == STREAM {
                return answer;
            }
        }
    }

    fn headers() -> Vec<u8> {
        let path = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "/var/lib/kubelet/device-plugins/kubevirt-kvm.sock"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ];
        Encoder::new().encode(headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())))
    }

    #[tokio::test]
    async fn a_request_whose_authority_is_a_path_is_answered() {
        let block = headers();
        let (first, rest) = block.split_at(20);
        let mut padded = vec![3];
        padded.extend([0; PRIORITY_LENGTH]);
        padded.extend(first);
        padded.extend([0; 3]);
        for frames in [
            vec![frame(HEADERS, END_HEADERS, block.clone())],
            vec![frame(HEADERS, PADDED | PRIORITY, padded), frame(CONTINUATION, END_HEADERS, rest.to_vec())],
        ] {
            let (kubelet, here) = UnixStream::pair().unwrap();
            let connections = tokio_stream::once(of_kubelet(here)).map(Ok::<_, io::Error>);
            let plugin =
                DevicePluginServer::new(Plugin(SHARED_DEVICES[0].offer(&LiveSettings::fixed()).1.into()));
            let server = Server::builder().add_service(plugin).serve_with_incoming(connections);
            let server = tokio::spawn(server);
            let answer = request(kubelet, frames).await;
            let headers = Decoder::new().decode(&answer.payload).unwrap();
            assert_eq!(answer.kind, HEADERS, "not the reset of the stream");
            assert!(headers.contains(&(b":status".to_vec(), b"200".to_vec())));
            server.abort();
        }
    }

    #[tokio::test]
    async fn headers_that_do_not_fit_end_the_connection() {
        let too_short = frame(HEADERS, END_HEADERS | PADDED, vec![9, 0]);
        let other_frame = frame(HEADERS, 0, headers());
        for frames in [vec![too_short], vec![other_frame, frame(DATA, 0, vec![])]] {
            let mut bytes = vec![0; PREFACE];
            for frame in frames {
                frame.write(&mut bytes).await.unwrap();
            }
            let error = forward(&mut bytes.as_slice(), &mut Vec::new()).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
    }
}
