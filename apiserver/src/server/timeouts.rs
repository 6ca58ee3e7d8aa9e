//! How long a client may take.

use std::time::Duration;

/// How long a client may take for each part of a request. All of it is in proportion to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientTimeouts(Duration);

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self(Self::DEFAULT)
    }
}

impl ClientTimeouts {
    /// The time for [the head](Self::head) unless another one is configured.
    pub const DEFAULT: Duration = Duration::from_secs(20);

    /// With this time for [the head](Self::head).
    #[must_use]
    pub fn new(head: Duration) -> Self {
        Self(head)
    }

    /// To agree on TLS, and to send the head of a request.
    #[must_use]
    pub fn head(self) -> Duration {
        self.0
    }

    /// To send the body of a request.
    #[must_use]
    pub fn body(self) -> Duration {
        self.0.saturating_mul(3) / 2
    }

    /// To send the rest of a request that was answered before all of it came.
    #[must_use]
    pub fn rest(self) -> Duration {
        self.body()
    }

    /// To take something of what it is sent, in milliseconds.
    #[must_use]
    pub fn unread(self) -> u32 {
        u32::try_from(self.0.saturating_mul(3).as_millis()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_the_documentation_says() {
        let timeouts = ClientTimeouts::default();
        let seconds = [timeouts.head(), timeouts.body(), timeouts.rest()].map(|time| time.as_secs());
        assert_eq!((seconds, timeouts.unread()), ([20, 30, 30], 60_000));
        assert_eq!(ClientTimeouts::new(Duration::MAX).unread(), u32::MAX);
    }
}
