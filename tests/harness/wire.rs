//! What the two ends of the control channel say: frames of a length (u32, little endian, of what follows), a kind
//! (u8), the number of the command it is about (u32, little endian) and a payload.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Output is cut into pieces of at most this size; a longer frame is a broken channel.
pub(crate) const PIECE: usize = 32 << 10;
const LONGEST: usize = 1 << 20;

/// A command to start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) directory: Option<String>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It exited with this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It could not be started, for this reason.
    NotStarted(String),
}

/// One frame.
#[derive(Debug)]
pub(crate) enum Frame {
    /// To the agent: run this.
    Start(u32, Start),
    /// To the agent: bytes for the command's standard input; none: its end.
    Stdin(u32, Vec<u8>),
    /// To the agent: send this signal to the command's process group.
    Signal(u32, i32),
    /// From the agent, once: it listens.
    Ready,
    /// From the agent.
    Stdout(u32, Vec<u8>),
    /// From the agent.
    Stderr(u32, Vec<u8>),
    /// From the agent, once for each command, after all of its output.
    Exit(u32, Status),
}

impl Frame {
    /// Writes the frame in one piece.
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let (kind, id, payload) = match self {
            Self::Start(id, start) => (1, *id, serde_json::to_vec(start)?),
            Self::Stdin(id, bytes) => (2, *id, bytes.clone()),
            Self::Signal(id, signal) => (3, *id, signal.to_le_bytes().to_vec()),
            Self::Ready => (4, 0, Vec::new()),
            Self::Stdout(id, bytes) => (5, *id, bytes.clone()),
            Self::Stderr(id, bytes) => (6, *id, bytes.clone()),
            Self::Exit(id, status) => (7, *id, serde_json::to_vec(status)?),
        };
        let length = u32::try_from(payload.len() + 5).map_err(|_| broken("frame too long"))?;
        let mut frame = length.to_le_bytes().to_vec();
        frame.push(kind);
        frame.extend(id.to_le_bytes());
        frame.extend(payload);
        to.write_all(&frame)?;
        to.flush()
    }

    /// Reads one frame; an end of file is an error of that kind.
    pub(crate) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let [a, b, c, d, kind, id @ ..] = head;
        let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).map_err(io::Error::other)?;
        let id = u32::from_le_bytes(id);
        if !(5..=LONGEST).contains(&length) {
            return Err(broken("frame length out of range"));
        }
        let mut payload = vec![0; length - 5];
        from.read_exact(&mut payload)?;
        Ok(match kind {
            1 => Self::Start(id, serde_json::from_slice(&payload)?),
            2 => Self::Stdin(id, payload),
            3 => {
                let bytes = payload.try_into().map_err(|_| broken("signal of odd size"))?;
                Self::Signal(id, i32::from_le_bytes(bytes))
            }
            4 => Self::Ready,
            5 => Self::Stdout(id, payload),
            6 => Self::Stderr(id, payload),
            7 => Self::Exit(id, serde_json::from_slice(&payload)?),
            _ => return Err(broken("unknown kind of frame")),
        })
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_back_to_back() {
        let start = Start { argv: vec!["a".into()], env: vec![("K".into(), "V".into())], directory: None };
        let frames = [
            Frame::Start(7, start),
            Frame::Stdin(7, b"in".to_vec()),
            Frame::Signal(7, 9),
            Frame::Ready,
            Frame::Stdout(7, vec![0; PIECE]),
            Frame::Stderr(7, Vec::new()),
            Frame::Exit(7, Status::Signal(9)),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        for frame in &frames {
            assert_eq!(format!("{:?}", Frame::read(&mut rest).unwrap()), format!("{frame:?}"));
        }
        assert_eq!(Frame::read(&mut rest).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(Frame::read(&mut [255; 64].as_slice()).is_err());
    }
}
