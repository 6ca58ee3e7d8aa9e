//! Polling for conditions without a notification.

use std::thread;
use std::time::{Duration, Instant};

use crate::host::HostError;

/// Between two polls: a tenth of the time that has passed, within these bounds. Each poll may start programs, which take the
/// processor from what is waited for.
const LEAST: Duration = Duration::from_millis(100);
const MOST: Duration = Duration::from_secs(1);

/// Polls until the condition holds. Only for states that cannot be waited for.
pub fn eventually(
    what: &str,
    deadline: Duration,
    mut ask: impl FnMut() -> Result<bool, HostError>,
) -> Result<(), HostError> {
    let begun = Instant::now();
    loop {
        if ask()? {
            return Ok(());
        }
        let passed = begun.elapsed();
        if passed >= deadline {
            return Err(HostError::Deadline { what: what.to_owned(), deadline });
        }
        thread::sleep((passed / 10).clamp(LEAST, MOST));
    }
}
