//! What the load generator `net-load` is asked and answers, each a line of JSON, and what it says to its peer.

use serde::{Deserialize, Serialize};

/// The port at which the peer takes connections.
pub const PORT: u16 = 5001;
/// Bytes of a TCP write or read.
pub const BLOCK: usize = 64 << 10;
/// Bytes of a datagram.
pub const DATAGRAM: usize = 64;

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Bytes from the peer.
    Receive,
    /// Bytes to the peer.
    Send,
    /// Datagrams to the peer.
    Datagrams,
    /// A byte to the peer and back, one after the other.
    RoundTrips,
}

impl Mode {
    /// The first byte of a connection tells the peer.
    pub fn byte(self) -> u8 {
        match self {
            Self::Receive => b'R',
            Self::Send => b'S',
            Self::Datagrams => b'D',
            Self::RoundTrips => b'E',
        }
    }

    /// The mode of a connection's first byte.
    pub fn of_byte(byte: u8) -> Option<Self> {
        [Self::Receive, Self::Send, Self::Datagrams, Self::RoundTrips]
            .into_iter()
            .find(|mode| mode.byte() == byte)
    }
}

/// One job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// What the connections carry.
    pub mode: Mode,
    /// How many there are at once.
    pub connections: u32,
    /// The time that counts, after the ramp.
    pub seconds: f64,
    /// Seconds before anything counts.
    pub ramp: f64,
}

/// What a job measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Bytes, datagrams or round trips that count.
    pub count: u64,
    /// What they took.
    pub seconds: f64,
    /// The same, with those of the ramp.
    pub all_count: u64,
    /// What the whole job took.
    pub all_seconds: f64,
}

/// A line that `net-load` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// It waits for a job.
    Ready,
    /// A job ended.
    Done(Outcome),
    /// A job could not be carried out.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Job {
    /// What is wrong with it.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), String> {
        if !(1..=64).contains(&self.connections) {
            return Err(format!("connections {}: want 1 to 64", self.connections));
        }
        let is_time = |seconds: f64| (0.0..=3600.0).contains(&seconds);
        if !is_time(self.ramp) || !is_time(self.seconds) {
            return Err(format!("ramp {}, seconds {}: want 0 to 3600", self.ramp, self.seconds));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_json_of_one_shape() {
        let job = Job { mode: Mode::RoundTrips, connections: 2, seconds: 2.0, ramp: 0.25 };
        let text = r#"{"mode":"round-trips","connections":2,"seconds":2.0,"ramp":0.25}"#;
        assert_eq!(serde_json::to_string(&job).unwrap(), text);
        assert_eq!(serde_json::from_str::<Job>(text).unwrap(), job);
        assert_eq!(serde_json::to_string(&Response::Ready).unwrap(), r#""ready""#);
        assert_eq!(job.validate(), Ok(()));
        assert!(Job { connections: 0, ..job }.validate().unwrap_err().starts_with("connections 0"));
        assert!(Job { ramp: f64::NAN, ..job }.validate().unwrap_err().starts_with("ramp"));
    }

    #[test]
    fn a_connection_names_its_mode() {
        for mode in [Mode::Receive, Mode::Send, Mode::Datagrams, Mode::RoundTrips] {
            assert_eq!(Mode::of_byte(mode.byte()), Some(mode));
        }
        assert_eq!(Mode::of_byte(0), None);
    }
}
