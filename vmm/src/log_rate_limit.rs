//! How often one place in the code may log. Guests cause log lines: a disk that fails is logged for every request to
//! it. A log writer of the monitor checks here first, or a guest could fill the host's disk.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::Metadata;
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;

/// Lines that one place may log in [`WINDOW`].
const BURST: u32 = 16;
const WINDOW: Duration = Duration::from_secs(600);

/// What the places in the code have logged of late.
#[derive(Debug, Default)]
pub struct LogRateLimit {
    places: Mutex<HashMap<Identifier, Place>>,
}

#[derive(Debug)]
struct Place {
    since: Instant,
    logged: u32,
    left_out: u64,
}

impl LogRateLimit {
    /// Whether a line from the place of `metadata` may be logged `now`: then how many like it were left out before.
    /// Debug and trace lines are not limited.
    pub fn admit(&self, metadata: &Metadata<'_>, now: Instant) -> Option<u64> {
        if *metadata.level() > LevelFilter::INFO {
            return Some(0);
        }
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(metadata.callsite());
        place.or_insert(Place { since: now, logged: 0, left_out: 0 }).admit(now)
    }
}

impl Place {
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
    fn a_place_logs_so_many_lines_a_window_and_then_tells_what_it_left_out() {
        let start = Instant::now();
        let mut place = Place { since: start, logged: 0, left_out: 0 };
        assert!((0..BURST).all(|_| place.admit(start) == Some(0)));
        assert!((0..1000).all(|_| place.admit(start + WINDOW / 2).is_none()));
        assert_eq!(place.admit(start + WINDOW), Some(1000));
        assert_eq!(place.admit(start + WINDOW), Some(0));
    }
}
