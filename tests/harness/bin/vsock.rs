//! Connects guest and host by VSOCK: one end answers a connection in upper case.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::process::ExitCode;

use socket2::{Domain, SockAddr, Socket, Type};

const USAGE: &str = "usage: vsock listen PORT | vsock send CID PORT TEXT";
/// VMADDR_CID_ANY (linux/vm_sockets.h).
const ANY: u32 = u32::MAX;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["listen", port] => number(port).and_then(listen),
        ["send", cid, port, text] => number(cid).and_then(|cid| send(cid, number(port)?, text)),
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
        let (mut peer, _) = listener.accept()?;
        let mut text = String::new();
        peer.read_to_string(&mut text)?;
        peer.write_all(text.to_uppercase().as_bytes())?;
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
