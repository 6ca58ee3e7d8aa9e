//! How often one call site may log. Guests cause log lines: a disk that fails is logged for every request to
//! it. A log writer of the monitor checks here first, or a guest could fill the host's disk.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;

/// Lines that one call site may log in [`WINDOW`].
const BURST: u32 = 16;
const WINDOW: Duration = Duration::from_secs(600);

/// The recent log lines of each call site.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    call_sites: Mutex<HashMap<Identifier, CallSite>>,
}

#[derive(Debug)]
struct CallSite {
    since: Instant,
    logged: u32,
    left_out: u64,
}

impl LogRateLimit {
    /// Whether a line from the call site of `metadata` may be logged `now`: then how many were suppressed before.
    /// Debug and trace lines are not limited.
    pub fn admit(&self, metadata: &Metadata<'_>, now: Instant) -> Option<u64> {
        if *metadata.level() > LevelFilter::INFO {
            return Some(0);
        }
        let mut call_sites = self.call_sites.lock().unwrap_or_else(PoisonError::into_inner);
        let call_site = call_sites.entry(metadata.callsite());
        call_site.or_insert(CallSite { since: now, logged: 0, left_out: 0 }).admit(now)
    }
}

impl CallSite {
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            (self.since, self.logged) = (now, 0);
        }
        if self.logged == BURST {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_site_logs_a_burst_per_window_and_counts_suppressed_lines() {
        let start = Instant::now();
        let mut call_site = CallSite { since: start, logged: 0, left_out: 0 };
        assert!((0..BURST).all(|_| call_site.admit(start) == Some(0)));
        assert!((0..1000).all(|_| call_site.admit(start + WINDOW / 2).is_none()));
        assert_eq!(call_site.admit(start + WINDOW), Some(1000));
        assert_eq!(call_site.admit(start + WINDOW), Some(0));
    }
}
