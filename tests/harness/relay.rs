//! A port of a nested host, on the test host: real programs here connect to its listeners.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::host::Event;
use crate::host::{Host, Link};
use crate::wire::{Frame, PIECE, Start, Status};

/// Connections are carried while it lives.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    closed: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Relay {
    /// Every connection to the relay becomes one to a loopback `port` of the host.
    pub fn to(host: &Host, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let closed = Arc::new(AtomicBool::new(false));
        let argv = vec![host.input(".agent"), "--relay".to_owned(), format!("127.0.0.1:{port}")];
        let (link, over) = (host.link(), Arc::clone(&closed));
        let accepting = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let (link, argv) = (Arc::clone(&link), argv.clone());
                thread::spawn(move || carry(&stream, &link, argv));
            }
        });
        Ok(Self { address, closed, accepting: Some(accepting) })
    }

    /// Where to connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes the accepting thread; where that fails, it ended before.
        if TcpStream::connect(self.address).is_ok()
            && let Some(accepting) = self.accepting.take()
        {
            // A panic there was printed when it happened.
            let _ = accepting.join();
        }
    }
}

/// One connection, until either side ends.
fn carry(stream: &TcpStream, link: &Arc<Link>, argv: Vec<String>) {
    let (id, events) = link.attach();
    let start = Start { argv, env: Vec::new(), directory: None };
    let up = stream.try_clone().and_then(|from| link.send(&Frame::Start(id, start)).map(|()| from));
    if let Ok(from) = up {
        let to = Arc::clone(link);
        thread::spawn(move || send(from, &to, id));
        for event in events {
            let done = match event {
                Event::Stdout(bytes) => (&*stream).write_all(&bytes).is_err(),
                Event::Stderr(text) => {
                    eprintln!("relay: {}", String::from_utf8_lossy(&text).trim_end());
                    false
                }
                Event::Exit(status) => {
                    if status != Status::Code(0) {
                        eprintln!("relay: {status:?}");
                    }
                    true
                }
            };
            if done {
                break;
            }
        }
    }
    link.forget(id);
    // Closed already where the program here was the first to end.
    let _ = stream.shutdown(Shutdown::Both);
}

fn send(mut from: TcpStream, link: &Link, id: u32) {
    let mut bytes = vec![0; PIECE];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let piece = bytes.get(..count).unwrap_or_default().to_vec();
        if link.send(&Frame::Stdin(id, piece)).is_err() {
            return;
        }
    }
    // The host may be gone.
    let _ = link.send(&Frame::Stdin(id, Vec::new()));
}
