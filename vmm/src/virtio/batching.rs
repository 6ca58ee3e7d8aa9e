//! When the thread of a lane gives way to the vCPUs.
//!
//! Where threads share a CPU, the one that is woken usually takes it at once: the vCPU that has put a request into the queue
//! stops, the request is served, and the vCPU goes on, for each request anew. It is the same with each operation that the host
//! has carried out. A thread that waits until the vCPU idles, or has used up its time, finds many requests, for one kick and
//! one interrupt. But a guest that makes one request and computes meanwhile gets the answer later. So it is tried now and
//! then, and kept up while requests come together.

use super::Queues;
use super::queue::Progress;
use crate::sys::schedule;

/// Wakes that found about one request each, until the next trial.
const ALONE: u32 = 256;
/// Wakes of a trial.
const TRIAL: u32 = 16;
/// Wakes after which it is decided whether to keep it up.
const TERM: u32 = 64;
/// Requests of a wake from which on it pays.
const PAYS: u64 = 2;

/// Has the calling thread give way to vCPUs, or take their CPU, as is better for what its lane serves.
#[derive(Debug)]
pub(super) struct GivesWay {
    batching: Batching,
    before: Progress,
}

impl GivesWay {
    /// From here on.
    pub(super) fn new(queues: &Queues) -> Self {
        Self { batching: Batching::default(), before: queues.progress() }
    }

    /// The thread was woken and has served what it found. False when its policy is not to be changed any more: the host
    /// refuses it, or an administrator has set another one.
    pub(super) fn woken(&mut self, queues: &Queues) -> bool {
        let now = queues.progress();
        let found = now.since(std::mem::replace(&mut self.before, now));
        // A command, or an event whose requests an earlier wake found.
        if found == 0 {
            return true;
        }
        match self.batching.woken(found) {
            Some(true) => schedule::is_usual() && schedule::set_batch(true).is_ok(),
            Some(false) => schedule::set_batch(false).is_ok(),
            None => true,
        }
    }
}

/// Counts the requests that a thread finds when it is woken.
#[derive(Debug)]
struct Batching {
    /// The thread gives way.
    on: bool,
    /// Since the last decision.
    wakes: u32,
    requests: u64,
    /// Wakes until the next decision.
    term: u32,
}

impl Default for Batching {
    /// Begins with a trial soon.
    fn default() -> Self {
        Self { on: false, wakes: 0, requests: 0, term: TRIAL }
    }
}

impl Batching {
    /// The thread was woken and found this many. `Some` when it has to give way from now on, or no longer.
    fn woken(&mut self, found: u16) -> Option<bool> {
        self.wakes += 1;
        self.requests = self.requests.saturating_add(found.into());
        if self.wakes < self.term {
            return None;
        }
        let pays = self.requests >= PAYS.saturating_mul(self.wakes.into());
        (self.wakes, self.requests) = (0, 0);
        match (self.on, pays) {
            (false, _) => {
                (self.on, self.term) = (true, TRIAL);
                Some(true)
            }
            (true, true) => {
                self.term = TERM;
                None
            }
            (true, false) => {
                (self.on, self.term) = (false, ALONE);
                Some(false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `wakes` are done giving way, where `requests` answers how many requests are there then.
    fn share(batching: &mut Batching, wakes: usize, requests: impl Fn(bool) -> u16) -> usize {
        let mut on = batching.on;
        (0..wakes)
            .filter(|_| {
                let counted = on;
                on = batching.woken(requests(on)).unwrap_or(on);
                counted
            })
            .count()
    }

    #[test]
    fn requests_that_come_together_are_waited_for() {
        let mut batching = Batching::default();
        assert_eq!(share(&mut batching, 10_016, |on| if on { 20 } else { 1 }), 10_000);
    }

    #[test]
    fn a_guest_that_waits_for_answers_is_rarely_kept_waiting() {
        let mut batching = Batching::default();
        assert_eq!(share(&mut batching, 32 + 272_000, |_| 1), 16 + 16_000);
    }

    #[test]
    fn what_no_longer_pays_ends_soon() {
        let mut batching = Batching::default();
        share(&mut batching, 1_000, |_| 64);
        assert!(batching.on);
        assert!(share(&mut batching, 10_000, |_| 1) < 10_000 / 10);
    }
}
