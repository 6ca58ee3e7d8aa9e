use std::mem;
use std::sync::Arc;

use virtio_queue::QueueT;

use super::super::queue::Position;
use super::super::signals::{QueueSignal, Signals};
use super::super::workers::Workers;
use super::super::{Lane, Queues, VirtQueue};
use super::{PciDevice, State};

/// Where the device's lanes are.
pub(super) enum Life {
    /// With the transport: before activation, and after reset.
    Idle(Vec<Box<dyn Lane>>),
    /// On their workers.
    Serving(Workers),
    /// Reset was requested; the workers have not finished yet.
    Leaving(Workers),
    /// One went down with its worker, or the VM stops.
    Gone,
}

impl Life {
    /// Requests the workers' end, without waiting: this is a vCPU thread.
    pub(super) fn leave(&mut self) {
        *self = match mem::replace(self, Self::Gone) {
            Self::Serving(workers) | Self::Leaving(workers) => {
                workers.ask_to_stop();
                Self::Leaving(workers)
            }
            other @ (Self::Idle(_) | Self::Gone) => other,
        };
    }

    /// Takes the lanes back if the workers have finished; returns whether no worker has one.
    fn settle(&mut self) -> bool {
        match mem::replace(self, Self::Gone) {
            Self::Leaving(workers) if !workers.are_gone() => {
                *self = Self::Leaving(workers);
                false
            }
            Self::Leaving(workers) => {
                *self = workers.join().map_or(Self::Gone, Self::Idle);
                true
            }
            other @ Self::Serving(_) => {
                *self = other;
                false
            }
            other @ (Self::Idle(_) | Self::Gone) => {
                *self = other;
                true
            }
        }
    }

    /// Waits for the workers' end.
    pub(super) fn stop(&mut self) {
        if let Self::Serving(workers) | Self::Leaving(workers) = mem::replace(self, Self::Gone) {
            workers.stop();
        }
    }

    pub(super) fn pause(&self) -> bool {
        match self {
            Self::Serving(workers) => workers.pause(),
            Self::Leaving(workers) => workers.are_over_in_time(),
            Self::Idle(_) | Self::Gone => true,
        }
    }

    /// Where the queues of a device that was paused are.
    pub(super) fn positions(&self) -> Option<Vec<(usize, Position)>> {
        match self {
            Self::Serving(workers) => workers.positions(),
            Self::Leaving(_) | Self::Idle(_) | Self::Gone => Some(Vec::new()),
        }
    }

    pub(super) fn resume(&self) {
        if let Self::Serving(workers) = self {
            workers.resume();
        }
    }
}

impl State {
    /// Finishes a reset once the workers have finished (section 2.4.1: until then status does not read as zero).
    pub(super) fn complete_reset(&mut self, signals: &Signals) {
        if self.common.is_resetting() && self.life.settle() {
            signals.reset();
            self.common.complete_reset();
        }
    }
}

impl PciDevice {
    /// The driver is ready: hands the lanes and their queues to workers. What stands in the way makes the device ask to
    /// be reset.
    pub(super) fn activate(&self, state: &mut State) {
        self.activate_at(state, None);
    }

    /// As [`Self::activate`]; with positions, the queues go on from there once the device is resumed.
    pub(super) fn activate_at(&self, state: &mut State, positions: Option<&[(usize, Position)]>) {
        let Some(queues) = self.build_queues(state, positions.unwrap_or_default()) else {
            self.signals.ask_for_reset();
            return;
        };
        let mut lanes = match mem::replace(&mut state.life, Life::Gone) {
            Life::Idle(lanes) => lanes,
            other @ (Life::Serving(_) | Life::Leaving(_) | Life::Gone) => {
                state.life = other;
                self.signals.ask_for_reset();
                return;
            }
        };
        let features = state.common.features();
        if let Err(error) = lanes.iter_mut().try_for_each(|lane| lane.activate(features)) {
            tracing::error!(device = self.name, %error, "the device could not start");
            self.signals.ask_for_reset();
            state.life = Life::Idle(lanes);
            return;
        }
        let lanes = self.distribute(queues, lanes, features);
        state.life = Life::Serving(Workers::spawn(
            self.name,
            lanes,
            &self.signals,
            (&self.host.threads, positions.is_some()),
        ));
    }

    /// Gives each lane the queues that it serves.
    fn distribute(
        &self,
        mut queues: Vec<Option<VirtQueue>>,
        lanes: Vec<Box<dyn Lane>>,
        features: u64,
    ) -> Vec<(Box<dyn Lane>, Queues)> {
        let with_queues = lanes.into_iter().map(|lane| {
            let own = queues
                .iter_mut()
                .enumerate()
                .map(|(index, queue)| queue.take_if(|_| lane.serves(index, features)));
            let own = Queues::new(own.collect(), self.kicks.clone(), self.signals.clone());
            (lane, own)
        });
        with_queues.collect()
    }

    fn build_queues(&self, state: &State, positions: &[(usize, Position)]) -> Option<Vec<Option<VirtQueue>>> {
        let features = state.common.features();
        let queues =
            state.common.queues().iter().zip(&self.kicks).enumerate().map(|(index, (setup, kick))| {
                let mut queue = match setup.build(features) {
                    None => return Some(None),
                    Some(Ok(queue)) if queue.is_valid(&self.host.memory) => queue,
                    Some(Ok(_)) => {
                        tracing::debug!(device = self.name, index, "a ring lies outside of RAM");
                        return None;
                    }
                    Some(Err(error)) => {
                        tracing::debug!(device = self.name, index, %error, "a ring cannot be used");
                        return None;
                    }
                };
                if let Some((_, position)) = positions.iter().find(|(queue, _)| *queue == index) {
                    queue.set_next_avail(position.available);
                    queue.set_next_used(position.used);
                }
                let signal = QueueSignal::new(self.signals.clone(), index);
                Some(Some(VirtQueue::new(queue, self.host.memory.clone(), Arc::clone(kick), signal)))
            });
        queues.collect()
    }
}
