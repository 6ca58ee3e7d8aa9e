//! The jobs that a guest is given.

use std::fmt;

use serde::{Deserialize, Serialize};
use vireo_tests::net_load::{Job, Mode};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// TCP from the host to the guest.
    Receive,
    /// TCP from the guest to the host.
    Send,
    /// Small datagrams from the guest to the host.
    Datagrams,
    /// A byte there and back.
    RoundTrips,
}

impl Workload {
    pub(crate) const ALL: [Self; 4] = [Self::Receive, Self::Send, Self::Datagrams, Self::RoundTrips];

    /// The job that is measured for that time, after a quarter of it for nothing, with a connection for each queue pair.
    pub(crate) fn job(self, seconds: f64, connections: u32) -> Job {
        let mode = match self {
            Self::Receive => Mode::Receive,
            Self::Send => Mode::Send,
            Self::Datagrams => Mode::Datagrams,
            Self::RoundTrips => Mode::RoundTrips,
        };
        Job { mode, connections, seconds, ramp: seconds / 4.0 }
    }

    /// What one of the operations is that its rate counts, of what `net-load` counts.
    pub(crate) fn unit(self) -> f64 {
        match self {
            // Megabits, of bytes.
            Self::Receive | Self::Send => 125_000.0,
            Self::Datagrams | Self::RoundTrips => 1.0,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Receive => "TCP to guest, Mbit",
            Self::Send => "TCP to host, Mbit",
            Self::Datagrams => "UDP to host",
            Self::RoundTrips => "round trips",
        })
    }
}
