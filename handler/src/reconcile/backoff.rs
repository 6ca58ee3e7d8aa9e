//! The delay before a failed action is retried, and the error that is reported meanwhile.

use std::time::Duration;

use super::status::SyncError;
use crate::storage::ERR_IMAGE_PULL;

/// The reason after repeated failures of an image; KubeVirt's.
pub(super) const IMAGE_PULL_BACK_OFF: &str = "ImagePullBackOff";

/// The first and the longest pause; each pause is twice as long as the one before.
#[derive(Debug, Clone, Copy)]
struct Pauses {
    first: Duration,
    last: Duration,
}

const STEPS: Pauses = Pauses { first: Duration::from_secs(1), last: Duration::from_secs(60) };
/// The longest pause is the kubelet's.
const IMAGES: Pauses = Pauses { first: Duration::from_secs(5), last: Duration::from_secs(300) };

/// How often something failed since it last succeeded.
#[derive(Debug, Clone, Default)]
pub(super) struct Backoff {
    failures: u32,
    is_of_image: bool,
}

impl Backoff {
    /// Records a failure. Returns the error to report and the delay before the retry.
    pub(super) fn fail(&mut self, sync_error: SyncError) -> (SyncError, Duration) {
        let is_of_image = sync_error.reason == ERR_IMAGE_PULL;
        if is_of_image != self.is_of_image {
            *self = Self { failures: 0, is_of_image };
        }
        let Pauses { first, last } = if is_of_image { IMAGES } else { STEPS };
        let pause = first.saturating_mul(2_u32.saturating_pow(self.failures)).min(last);
        let sync_error = match is_of_image && self.failures > 0 {
            true => SyncError {
                reason: IMAGE_PULL_BACK_OFF,
                message: format!("Back-off pulling image: {}", sync_error.message),
            },
            false => sync_error,
        };
        self.failures = self.failures.saturating_add(1);
        (sync_error, pause)
    }

    /// Resets the backoff after a success or a change of the desired state.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(backoff: &mut Backoff, reason: &'static str) -> (&'static str, String, u64) {
        let (sync_error, pause) = backoff.fail(SyncError { reason, message: "why".to_owned() });
        (sync_error.reason, sync_error.message, pause.as_secs())
    }

    #[test]
    fn an_image_fails_as_kubevirts_do() {
        let mut backoff = Backoff::default();
        assert_eq!(fail(&mut backoff, ERR_IMAGE_PULL), ("ErrImagePull", "why".to_owned(), 5));
        for pause in [10, 20, 40, 80, 160, 300, 300] {
            let message = "Back-off pulling image: why".to_owned();
            assert_eq!(fail(&mut backoff, ERR_IMAGE_PULL), ("ImagePullBackOff", message, pause));
        }
        backoff.reset();
        assert_eq!(fail(&mut backoff, ERR_IMAGE_PULL).0, "ErrImagePull");
    }

    #[test]
    fn other_steps_are_retried_sooner_and_keep_their_message() {
        let mut backoff = Backoff::default();
        for _ in 0..3 {
            fail(&mut backoff, ERR_IMAGE_PULL);
        }
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(fail(&mut backoff, "FailedNetwork"), ("FailedNetwork", "why".to_owned(), pause));
        }
        assert_eq!(fail(&mut backoff, ERR_IMAGE_PULL), ("ErrImagePull", "why".to_owned(), 5));
    }
}
