//! Polling for conditions without a notification.

use std::thread;
use std::time::{Duration, Instant};

use crate::host::HostError;

const PAUSE: Duration = Duration::from_millis(200);

/// Polls until the condition holds. Only for states that cannot be waited for.
pub fn eventually(
    what: &str,
    deadline: Duration,
    mut ask: impl FnMut() -> Result<bool, HostError>,
) -> Result<(), HostError> {
    let end = Instant::now() + deadline;
    loop {
        if ask()? {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(HostError::Deadline { what: what.to_owned(), deadline });
        }
        thread::sleep(PAUSE);
    }
}
