//! What the server takes, by `proc(5)`.

use std::fmt;
use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Error;
use super::server::Server;

/// Bytes of its own.
#[derive(Clone, Copy)]
pub(super) struct Memory(u64);

/// Of the server, now.
pub(super) fn memory(server: &Server) -> Memory {
    Memory(server.memory())
}

/// CPU time of all its threads so far; threads that ended are left out.
pub(super) fn cpu_time(server: &Server) -> Result<Duration, Error> {
    let mut sum = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{}/task", server.process.id()))? {
        let text = fs::read_to_string(thread?.path().join("schedstat"))?;
        let first = text.split_whitespace().next().unwrap_or_default();
        sum += Duration::from_nanos(first.parse()?);
    }
    Ok(sum)
}

/// Resident memory of this process, now (`VmRSS` of `proc(5)`).
pub(super) fn own_memory() -> Result<Memory, Error> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib: u64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    Ok(Memory(kib << 10))
}

/// CPU time of this process so far.
pub(super) fn own_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

impl Memory {
    /// What is there more than `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self(self.0.saturating_sub(before.0))
    }

    /// The part of one of `count`.
    pub(super) fn each(self, count: usize) -> Self {
        Self(u64::try_from(count).ok().and_then(|count| self.0.checked_div(count)).unwrap_or(self.0))
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 10 {
            kib @ 0..10_240 => write!(f, "{kib} KiB"),
            kib => write!(f, "{} MiB", kib >> 10),
        }
    }
}
