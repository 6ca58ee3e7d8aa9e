//! How often a device is attached again that its guest releases by itself: guests may do so as often as they like.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::status::SyncError;

/// A device is attached so often within that time.
const MOST: u32 = 3;
const WITHIN: Duration = Duration::from_secs(20);

/// The attachments of one device since the first one of those that count.
#[derive(Debug)]
struct Attachments {
    first: Instant,
    count: u32,
}

/// When the devices of a guest were attached, by the reason of their errors and their names.
#[derive(Debug, Default)]
pub(super) struct Reattach(BTreeMap<(&'static str, String), Attachments>);

impl Reattach {
    /// A device is about to be attached.
    ///
    /// # Errors
    /// When it was attached too often in a short time.
    pub(super) fn check(&self, reason: &'static str, name: &str, now: Instant) -> Result<(), SyncError> {
        let last = self.0.get(&(reason, name.to_owned()));
        if last.is_none_or(|last| last.count < MOST || now >= last.first + WITHIN) {
            return Ok(());
        }
        let seconds = WITHIN.as_secs();
        let message = format!(
            "the guest releases {name} by itself again and again: it gets it {MOST} times in {seconds} s at most"
        );
        Err(SyncError { reason, message })
    }

    /// A device was attached.
    pub(super) fn attached(&mut self, reason: &'static str, name: &str, now: Instant) {
        let known = self.0.entry((reason, name.to_owned()));
        let known = known.or_insert(Attachments { first: now, count: 0 });
        if now >= known.first + WITHIN {
            *known = Attachments { first: now, count: 0 };
        }
        known.count = known.count.saturating_add(1);
    }

    /// A device is to be detached: when it is wanted again, it may come at once.
    pub(super) fn forget(&mut self, reason: &'static str, name: &str) {
        self.0.remove(&(reason, name.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_releases_by_itself_comes_back_so_often() {
        let start = Instant::now();
        let often = || {
            let mut devices = Reattach::default();
            for second in 0..3 {
                assert_eq!(devices.check("Failed", "data", start + Duration::from_secs(second)), Ok(()));
                devices.attached("Failed", "data", start + Duration::from_secs(second));
            }
            devices
        };
        let comes = |devices: &Reattach, name, after| devices.check("Failed", name, start + after);
        let refused = comes(&often(), "data", WITHIN / 2).unwrap_err();
        assert_eq!(
            refused.message,
            "the guest releases data by itself again and again: it gets it 3 times in 20 s at most"
        );
        assert_eq!(comes(&often(), "other", WITHIN / 2), Ok(()));
        let mut devices = often();
        assert_eq!(comes(&devices, "data", WITHIN), Ok(()));
        devices.attached("Failed", "data", start + WITHIN);
        assert_eq!(comes(&devices, "data", WITHIN), Ok(()), "the first one of another time");
        let mut devices = often();
        devices.forget("Failed", "data");
        assert_eq!(comes(&devices, "data", WITHIN / 2), Ok(()), "it was detached by request");
    }
}
