//! Connects guest and host by VSOCK: one end answers a line, or all that it gets, in upper case. The other connects directly, or by
//! the subresource of a VMI, a websocket.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use socket2::{Domain, SockAddr, Socket, Type};

const USAGE: &str = "usage: vsock listen PORT | vsock send CID PORT TEXT | vsock stream SOCKET PATH TEXT, of at most 124 bytes";
/// Of a websocket's first byte: a frame that is the whole message, of binary data (RFC 6455, section 5.2).
const BINARY: u8 = 0x82;
/// Of its second byte: clients mask what they send. The rest is the length, if that is below 126.
const MASKED: u8 = 0x80;
/// The mask: any is allowed, and this one changes nothing.
const MASK: [u8; 4] = [0; 4];
/// VMADDR_CID_ANY (linux/vm_sockets.h).
const ANY: u32 = u32::MAX;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["listen", port] => number(port).and_then(listen),
        ["send", cid, port, text] => number(cid).and_then(|cid| send(cid, number(port)?, text)),
        ["stream", socket, path, text] => stream(socket, path, text),
        _ => Err(io::Error::other(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vsock: {error}");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> io::Result<u32> {
    text.parse().map_err(io::Error::other)
}

fn socket() -> io::Result<Socket> {
    Socket::new(Domain::VSOCK, Type::STREAM, None)
}

/// Answers one connection after the other.
fn listen(port: u32) -> io::Result<()> {
    let listener = socket()?;
    listener.bind(&SockAddr::vsock(ANY, port))?;
    listener.listen(1)?;
    println!("listening");
    loop {
        let (peer, _) = listener.accept()?;
        let mut text = String::new();
        BufReader::new(&peer).read_line(&mut text)?;
        (&peer).write_all(text.to_uppercase().as_bytes())?;
    }
}

fn send(cid: u32, port: u32, text: &str) -> io::Result<()> {
    let mut socket = socket()?;
    socket.connect(&SockAddr::vsock(cid, port))?;
    socket.write_all(text.as_bytes())?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    println!("{answer}");
    Ok(())
}

/// Sends a line by a websocket of the node agent, and prints the frame that is the answer.
fn stream(socket: &str, path: &str, text: &str) -> io::Result<()> {
    let length = u8::try_from(text.len() + 1).ok().filter(|length| *length < 126);
    let length = length.ok_or_else(|| io::Error::other(USAGE))?;
    let mut agent = UnixStream::connect(socket)?;
    write!(
        agent,
        "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: plain.kubevirt.io\r\n\r\n"
    )?;
    let mut answer = BufReader::new(agent.try_clone()?);
    let mut status = String::new();
    answer.read_line(&mut status)?;
    let mut line = String::new();
    while answer.read_line(&mut line)? > 2 {
        line.clear();
    }
    if !status.starts_with("HTTP/1.1 101 ") {
        let mut body = String::new();
        agent.shutdown(Shutdown::Write)?;
        answer.read_to_string(&mut body)?;
        return Err(io::Error::other(format!("{} {body}", status.trim())));
    }
    agent.write_all(&[&[BINARY, MASKED | length][..], &MASK, text.as_bytes(), b"\n"].concat())?;
    let mut head = [0; 2];
    answer.read_exact(&mut head)?;
    let [kind, length] = head;
    if kind != BINARY {
        return Err(io::Error::other(format!("the answer is a frame of the kind {kind:#x}")));
    }
    let mut bytes = vec![0; length.into()];
    answer.read_exact(&mut bytes)?;
    print!("{}", String::from_utf8_lossy(&bytes));
    Ok(())
}
