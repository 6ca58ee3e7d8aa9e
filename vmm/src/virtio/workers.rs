//! The workers of one device: what holds for a device holds for all its lanes.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::signals::Signals;
use super::worker::{Rest, Worker};
use super::{Lane, Queues};
use crate::config::ThreadHook;

/// How long workers are waited for that are to be quiet.
const PATIENCE: Duration = Duration::from_secs(10);

/// A device's lanes, each on a worker if the driver enabled one of its queues. Dropping them stops and joins the threads.
pub(super) struct Workers {
    running: Vec<Worker>,
    idle: Vec<Box<dyn Lane>>,
}

impl Workers {
    /// Starts every activated lane that has queues; they serve at once, or begin paused. A device with a lane that does not
    /// start asks for a reset; the others go on until then, as after an unusable ring.
    pub(super) fn spawn(
        name: &str,
        lanes: Vec<(Box<dyn Lane>, Queues)>,
        signals: &Arc<Signals>,
        (threads, paused): (&ThreadHook, bool),
    ) -> Self {
        let (mut running, mut idle) = (Vec::new(), Vec::new());
        for (lane, queues) in lanes {
            if queues.is_empty() {
                idle.push(lane);
                continue;
            }
            match Worker::spawn(name, (lane, queues), signals.clone(), (threads.clone(), paused)) {
                Ok(worker) => running.push(worker),
                Err((lane, error)) => {
                    tracing::error!(device = name, %error, "a lane could not start");
                    signals.ask_for_reset();
                    idle.push(lane);
                }
            }
        }
        Self { running, idle }
    }

    /// Requests their end; does not wait.
    pub(super) fn ask_to_stop(&self) {
        self.running.iter().for_each(Worker::ask_to_stop);
    }

    /// Whether all ended, so that [`Self::join`] does not wait.
    pub(super) fn are_gone(&self) -> bool {
        self.running.iter().all(Worker::is_gone)
    }

    /// Waits for the end. `None` if a thread panicked and took its lane with it.
    pub(super) fn join(mut self) -> Option<Vec<Box<dyn Lane>>> {
        self.ask_to_stop();
        let mut lanes = mem::take(&mut self.idle);
        lanes.iter_mut().for_each(|lane| lane.deactivate());
        let returned: Vec<_> = mem::take(&mut self.running).into_iter().map(Worker::join).collect();
        lanes.extend(returned.into_iter().collect::<Option<Vec<_>>>()?);
        Some(lanes)
    }

    /// Waits until nothing is served any more, and nothing is in flight. Whether that is so after [`PATIENCE`].
    pub(super) fn pause(&self) -> bool {
        self.running.iter().for_each(Worker::ask_to_pause);
        let deadline = Instant::now() + PATIENCE;
        self.running.iter().all(|worker| worker.is_paused_in_time(deadline))
    }

    /// Waits until workers that were asked to stop serve nothing. As [`Self::pause`].
    pub(super) fn are_over_in_time(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        self.running.iter().all(|worker| worker.is_over_in_time(deadline))
    }

    /// While they are paused: the states of the lanes that have queues, in their order.
    pub(super) fn rest(&self) -> Result<Vec<Rest>, &'static str> {
        self.running.iter().map(Worker::rest).collect()
    }

    /// Continues after [`Self::pause`].
    pub(super) fn resume(&self) {
        self.running.iter().for_each(Worker::resume);
    }

    /// Waits for the end, [`PATIENCE`] at most.
    pub(super) fn stop(mut self) {
        self.ask_to_stop();
        let deadline = Instant::now() + PATIENCE;
        mem::take(&mut self.running).into_iter().for_each(|worker| worker.stop(deadline));
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.ask_to_stop();
    }
}
