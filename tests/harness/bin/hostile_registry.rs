//! A registry on this host that asks for a user, and that does something wrong with each of its images, by their names; and another
//! server, to which it sends clients, and which prints the credentials that they show there.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use serde_json::Value;

const USAGE: &str = "usage: hostile-registry PORT OTHER-PORT LAYOUT";

/// The image of a layout, and where the servers are.
struct Served {
    blobs: PathBuf,
    manifest: Value,
    ports: [String; 2],
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.as_slice() {
        [port, other, layout] => serve([port.clone(), other.clone()], Path::new(layout)),
        _ => Err(io::Error::other(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hostile-registry: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(ports: [String; 2], layout: &Path) -> io::Result<()> {
    let blobs = layout.join("blobs/sha256");
    let index: Value = serde_json::from_slice(&fs::read(layout.join("index.json"))?)?;
    let digest = index["manifests"][0]["digest"].as_str().unwrap_or_default();
    let manifest = serde_json::from_slice(&fs::read(blobs.join(digest.trim_start_matches("sha256:")))?)?;
    let served = Arc::new(Served { blobs, manifest, ports });
    let [registry, other] = [0, 1].map(|index| listen(Arc::clone(&served), index));
    let (registry, other) = (registry?, other?);
    println!("listening");
    for listener in [registry, other] {
        // They never end.
        let _ = listener.join();
    }
    Ok(())
}

/// Answers at one of the ports, one thread for each connection.
fn listen(served: Arc<Served>, index: usize) -> io::Result<thread::JoinHandle<()>> {
    let port = served.ports.get(index).map_or("", String::as_str);
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    Ok(thread::spawn(move || {
        for peer in listener.incoming().flatten() {
            let served = Arc::clone(&served);
            // A client that goes away concerns no other.
            thread::spawn(move || if index == 0 { served.registry(peer) } else { served.other(peer) });
        }
    }))
}

/// The path and the credentials of a request.
fn request(peer: &TcpStream) -> io::Result<(String, Option<String>)> {
    let mut lines = BufReader::new(peer).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let mut credentials = None;
    for line in lines {
        let line = line?;
        match line.split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                credentials = Some(value.to_owned());
            }
            _ if line.is_empty() => break,
            _ => {}
        }
    }
    Ok((first.split(' ').nth(1).unwrap_or_default().to_owned(), credentials))
}

/// An answer whose length may be another than it says.
fn answer(peer: &mut TcpStream, head: &str, length: usize, body: &[u8]) -> io::Result<()> {
    write!(peer, "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    peer.write_all(body)
}

impl Served {
    fn registry(&self, mut peer: TcpStream) -> io::Result<()> {
        let (path, credentials) = request(&peer)?;
        let parts: Vec<&str> = path.trim_start_matches("/v2/").split('/').collect();
        match (credentials, parts.as_slice()) {
            (None, _) => answer(&mut peer, "401 Unauthorized\r\nWWW-Authenticate: Basic realm=a", 0, &[]),
            // Until the client has enough.
            (_, ["slow", "manifests", _]) => io::copy(&mut peer, &mut io::sink()).map(drop),
            (_, [image, "manifests", _]) => {
                let manifest = self.manifest(image);
                answer(&mut peer, "200 OK", manifest.len(), &manifest)
            }
            (_, [fault, "blobs", digest]) => self.blob(&mut peer, fault, digest),
            _ => answer(&mut peer, "404 Not Found", 0, &[]),
        }
    }

    /// Each image has a digest of its own: what one has is not in the store of the node by another.
    fn manifest(&self, image: &str) -> Vec<u8> {
        let mut manifest = self.manifest.clone();
        manifest["annotations"] = serde_json::json!({"image": image});
        manifest.to_string().into_bytes()
    }

    fn blob(&self, peer: &mut TcpStream, fault: &str, digest: &str) -> io::Result<()> {
        let mut blob = self.bytes(digest)?;
        let [registry, other] = &self.ports;
        let elsewhere = match fault {
            "file" => "file:///etc/passwd".to_owned(),
            "loop" => format!("http://localhost:{registry}/v2/loop/blobs/{digest}"),
            "elsewhere" => format!("http://localhost:{other}/{digest}"),
            "inside" => format!("http://127.0.0.1:{other}/inside"),
            _ => {
                match fault {
                    "digest" => blob.iter_mut().for_each(|byte| *byte ^= 1),
                    "length" => blob.push(0),
                    _ => {}
                }
                let sent = if ["cut", "late"].contains(&fault) { blob.len() / 2 } else { blob.len() };
                answer(peer, "200 OK", blob.len(), blob.get(..sent).unwrap_or_default())?;
                // The rest is not sent, and the connection stays until the client has enough.
                return if fault == "late" { io::copy(peer, &mut io::sink()).map(drop) } else { Ok(()) };
            }
        };
        answer(peer, &format!("307 Temporary Redirect\r\nLocation: {elsewhere}"), 0, &[])
    }

    fn bytes(&self, digest: &str) -> io::Result<Vec<u8>> {
        fs::read(self.blobs.join(digest.trim_start_matches("sha256:")))
    }

    /// A server that knows blobs by their digests, and has something that is for this host alone.
    fn other(&self, mut peer: TcpStream) -> io::Result<()> {
        let (path, credentials) = request(&peer)?;
        println!("credentials: {}", credentials.as_deref().unwrap_or("none"));
        match path.trim_start_matches('/') {
            "inside" => answer(&mut peer, "403 Forbidden", 14, b"for this host!"),
            digest => {
                let blob = self.bytes(digest)?;
                answer(&mut peer, "200 OK", blob.len(), &blob)
            }
        }
    }
}
