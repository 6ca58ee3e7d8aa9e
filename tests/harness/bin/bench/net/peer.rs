//! The host's end of the connections.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use vireo_tests::net_load::{BLOCK, Mode};

/// How soon the receiver of datagrams sees that its connection has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Serves connections until the process ends, on threads of its own. Where it listens.
pub(crate) fn serve(at: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(at)?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            std::thread::spawn(move || match serve_one(stream) {
                Ok(()) => {}
                // The guest ends a job by closing.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
                Err(error) => eprintln!("bench: a connection: {error}"),
            });
        }
    });
    Ok(address)
}

fn serve_one(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut mode = [0];
    stream.read_exact(&mut mode)?;
    let [mode] = mode;
    let mut buffer = vec![0; BLOCK];
    match Mode::of_byte(mode).ok_or(ErrorKind::InvalidData)? {
        Mode::Receive => loop {
            stream.write_all(&buffer)?;
        },
        Mode::Send => while stream.read(&mut buffer)? > 0 {},
        Mode::RoundTrips => {
            let byte = buffer.get_mut(..1).unwrap_or_default();
            while stream.read(byte)? > 0 {
                stream.write_all(byte)?;
            }
        }
        Mode::Datagrams => {
            let socket = UdpSocket::bind((stream.local_addr()?.ip(), 0))?;
            socket.set_read_timeout(Some(LOOK))?;
            stream.write_all(&socket.local_addr()?.port().to_be_bytes())?;
            stream.set_nonblocking(true)?;
            loop {
                match socket.recv(&mut buffer) {
                    Ok(_) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        if stream.read(&mut [0]).is_ok_and(|bytes| bytes == 0) {
                            return Ok(());
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_is_served() {
        let address = serve("127.0.0.1:0".parse().unwrap()).unwrap();
        let connect = |mode: Mode| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[mode.byte()]).unwrap();
            stream
        };
        let mut bytes = [0; 1000];
        connect(Mode::Receive).read_exact(&mut bytes).unwrap();
        connect(Mode::Send).write_all(&bytes).unwrap();
        let mut echo = connect(Mode::RoundTrips);
        echo.write_all(&[7]).unwrap();
        echo.read_exact(&mut bytes[..1]).unwrap();
        assert_eq!(bytes[0], 7);
        let mut datagrams = connect(Mode::Datagrams);
        datagrams.read_exact(&mut bytes[..2]).unwrap();
        assert_ne!(bytes[..2], [0, 0], "a port");
    }
}
