use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of a disk's requests, across all VMs built with it. Written by the disk's one worker and read by any
/// thread; the counters are not consistent with each other at one moment.
#[derive(Debug, Default)]
pub struct DiskCounters {
    pub(crate) read: Counter,
    pub(crate) written: Counter,
    pub(crate) flushed: Counter,
}

/// Requests of one sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// How many.
    pub requests: u64,
    /// What they moved.
    pub bytes: u64,
    /// How long they took together.
    pub nanoseconds: u64,
}

/// Requests of one sort as they are counted.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    requests: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Counter {
    pub(crate) fn count(&self, bytes: u64, took: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn now(&self) -> Operations {
        Operations {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            nanoseconds: self.nanoseconds.load(Ordering::Relaxed),
        }
    }
}

impl DiskCounters {
    /// What was read.
    pub fn reads(&self) -> Operations {
        self.read.now()
    }

    /// What was written.
    pub fn writes(&self) -> Operations {
        self.written.now()
    }

    /// Flushes, those included that make writes stable at once.
    pub fn flushes(&self) -> Operations {
        self.flushed.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() {
        let counters = DiskCounters::default();
        counters.read.count(512, Duration::from_nanos(3));
        counters.read.count(1024, Duration::from_nanos(4));
        assert_eq!(counters.reads(), Operations { requests: 2, bytes: 1536, nanoseconds: 7 });
        assert_eq!(counters.writes(), Operations::default());
    }
}
