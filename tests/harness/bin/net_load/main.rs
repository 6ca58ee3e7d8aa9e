//! Runs in a guest and loads its network: the part of `bench net` that a benchmark would otherwise leave to iperf and netperf.

use std::io::{self, BufRead, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use vireo_tests::net_load::{BLOCK, DATAGRAM, Job, Mode, Outcome, PORT, Response};

const USAGE: &str = "\
usage: net-load ADDRESS

Carries out the jobs of standard input with the peer of `bench net` at ADDRESS, and answers each with a line of JSON. A job
is a line:
  {\"mode\": \"receive\", \"connections\": 2, \"seconds\": 2, \"ramp\": 0.2}
  mode         receive or send: bytes by TCP; datagrams: datagrams to the peer; round-trips: a byte there and back by TCP
  connections  how many at once
  seconds      the time that counts, after the ramp
  ramp         seconds before anything counts
An empty line, or the end of the input, ends the program.";

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let peer = match words.as_slice() {
        [address] => address.parse::<IpAddr>(),
        _ => "".parse(),
    };
    let Ok(peer) = peer else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match serve(SocketAddr::new(peer, PORT)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("net-load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(peer: SocketAddr) -> io::Result<()> {
    respond(&Response::Ready)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        if line.trim().is_empty() {
            break;
        }
        let outcome = serde_json::from_str(&line)
            .map_err(|error| format!("{line:?} is no job: {error}"))
            .and_then(|job: Job| job.validate().map(|()| job))
            .and_then(|job| run(peer, &job).map_err(|error| format!("{job:?}: {error}")));
        respond(&match outcome {
            Ok(outcome) => Response::Done(outcome),
            Err(reason) => Response::Failed { reason },
        })?;
    }
    Ok(())
}

fn respond(response: &Response) -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{}", serde_json::to_string(response)?)?;
    output.flush()
}

/// Carries out a job with a thread for each connection.
fn run(peer: SocketAddr, job: &Job) -> io::Result<Outcome> {
    let connections = (0..job.connections).map(|_| Connection::open(peer, job.mode));
    let connections = connections.collect::<io::Result<Vec<_>>>()?;
    let begin = Instant::now();
    let tally =
        Tally { from: begin + Duration::from_secs_f64(job.ramp), seconds: job.seconds, count: 0, all: 0 };
    let threads: Vec<_> = connections
        .into_iter()
        .map(|mut connection| {
            std::thread::spawn(move || -> io::Result<Tally> {
                let mut tally = tally;
                while tally.note(connection.step()?, Instant::now()) {}
                Ok(tally)
            })
        })
        .collect();
    let mut total = Outcome { count: 0, seconds: job.seconds, all_count: 0, all_seconds: 0.0 };
    for thread in threads {
        let Tally { count, all, .. } = thread.join().map_err(|_| io::Error::other("a thread panicked"))??;
        total.count += count;
        total.all_count += all;
    }
    total.all_seconds = begin.elapsed().as_secs_f64();
    Ok(total)
}

/// What has been measured so far.
#[derive(Clone, Copy)]
struct Tally {
    from: Instant,
    seconds: f64,
    count: u64,
    all: u64,
}

impl Tally {
    /// Counts what a step moved; whether there is to be another.
    fn note(&mut self, moved: u64, now: Instant) -> bool {
        self.all += moved;
        let since = now.saturating_duration_since(self.from).as_secs_f64();
        if since > self.seconds {
            return false;
        }
        if now >= self.from {
            self.count += moved;
        }
        true
    }
}

/// A connection to the peer.
struct Connection {
    mode: Mode,
    stream: TcpStream,
    datagrams: Option<UdpSocket>,
    buffer: Vec<u8>,
}

impl Connection {
    fn open(peer: SocketAddr, mode: Mode) -> io::Result<Self> {
        let mut stream = TcpStream::connect(peer)?;
        stream.set_nodelay(true)?;
        stream.write_all(&[mode.byte()])?;
        let mut datagrams = None;
        if mode == Mode::Datagrams {
            let mut port = [0; 2];
            stream.read_exact(&mut port)?;
            let socket = UdpSocket::bind((unspecified(peer.ip()), 0))?;
            socket.connect((peer.ip(), u16::from_be_bytes(port)))?;
            datagrams = Some(socket);
        }
        Ok(Self { mode, stream, datagrams, buffer: vec![0; BLOCK] })
    }

    /// Moves something; how many bytes, datagrams or round trips.
    fn step(&mut self) -> io::Result<u64> {
        let Self { mode, stream, datagrams, buffer } = self;
        let moved = match (mode, datagrams) {
            (Mode::Receive, _) => match stream.read(buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                bytes => bytes,
            },
            (Mode::Send, _) => stream.write(buffer)?,
            (Mode::RoundTrips, _) => {
                stream.write_all(&[0])?;
                stream.read_exact(buffer.get_mut(..1).unwrap_or_default())?;
                1
            }
            (Mode::Datagrams, Some(socket)) => {
                socket.send(buffer.get(..DATAGRAM).unwrap_or_default())?;
                1
            }
            (Mode::Datagrams, None) => return Err(io::ErrorKind::NotConnected.into()),
        };
        Ok(u64::try_from(moved).unwrap_or(u64::MAX))
    }
}

fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::from([0; 4]),
        IpAddr::V6(_) => IpAddr::from([0; 16]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_moves_between_ramp_and_end_counts() {
        let from = Instant::now();
        let at = |millis| from + Duration::from_millis(millis);
        let mut tally = Tally { from: at(100), seconds: 0.2, count: 0, all: 0 };
        assert!(tally.note(1, at(99)));
        assert!(tally.note(2, at(100)));
        assert!(tally.note(4, at(299)));
        assert!(!tally.note(8, at(301)));
        assert_eq!((tally.count, tally.all), (6, 15));
    }
}
