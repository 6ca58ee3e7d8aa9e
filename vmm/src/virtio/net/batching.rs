//! When a transmit thread gives way to the vCPUs.
//!
//! Where threads share a CPU, the one that is woken usually takes it at once: the vCPU that has put a frame into the queue
//! stops, the frame is sent, and the vCPU goes on, for each frame anew. A thread that waits until the vCPU idles, or has
//! used up its time, finds many frames, for one kick. But a guest that sends one frame and waits for the answer gets it
//! later. So it is tried now and then, and kept up while frames come together.

/// Drains that found about one frame each, until the next trial.
const ALONE: u32 = 256;
/// Drains of a trial.
const TRIAL: u32 = 16;
/// Drains after which it is decided whether to keep it up.
const TERM: u32 = 64;
/// Frames of a drain from which on it pays.
const PAYS: u64 = 2;

/// Counts the frames of one transmit queue.
#[derive(Debug, Default)]
pub(super) struct Batching {
    /// The thread gives way.
    on: bool,
    /// Since the last decision.
    drains: u32,
    frames: u64,
    /// Drains until the next decision.
    term: Option<u32>,
}

impl Batching {
    /// The queue was emptied of this many frames, or as many as are sent in one go. `Some` when the thread has to give way
    /// from now on, or no longer.
    pub(super) fn drained(&mut self, frames: usize) -> Option<bool> {
        self.drains += 1;
        self.frames = self.frames.saturating_add(frames.try_into().unwrap_or(u64::MAX));
        if self.drains < self.term.unwrap_or(ALONE) {
            return None;
        }
        let pays = self.frames >= PAYS.saturating_mul(self.drains.into());
        (self.drains, self.frames) = (0, 0);
        match (self.on, pays) {
            (false, _) => {
                (self.on, self.term) = (true, Some(TRIAL));
                Some(true)
            }
            (true, true) => {
                self.term = Some(TERM);
                None
            }
            (true, false) => {
                (self.on, self.term) = (false, None);
                Some(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `drains` are done giving way, where `frames` answers how many frames are there then.
    fn share(batching: &mut Batching, drains: usize, frames: impl Fn(bool) -> usize) -> usize {
        let mut on = batching.on;
        (0..drains)
            .filter(|_| {
                let counted = on;
                on = batching.drained(frames(on)).unwrap_or(on);
                counted
            })
            .count()
    }

    #[test]
    fn frames_that_come_together_are_waited_for() {
        let mut batching = Batching::default();
        assert_eq!(share(&mut batching, 10_256, |on| if on { 20 } else { 1 }), 10_000);
    }

    #[test]
    fn a_guest_that_waits_for_answers_is_rarely_kept_waiting() {
        let mut batching = Batching::default();
        assert_eq!(share(&mut batching, 272_000, |_| 1), 16_000);
    }

    #[test]
    fn what_no_longer_pays_ends_soon() {
        let mut batching = Batching::default();
        share(&mut batching, 1_000, |_| 64);
        assert!(batching.on);
        assert!(share(&mut batching, 10_000, |_| 1) < 10_000 / 10);
    }
}
