use std::mem;
use std::sync::Arc;

use virtio_queue::QueueT;

use super::super::queue::Position;
use super::super::signals::{QueueSignal, Signals};
use super::super::worker::Rest;
use super::super::workers::Workers;
use super::super::{DeviceConfig, Lane, Queues, VirtQueue};
use super::{PciDevice, State};
use crate::state::SectionError;

/// Where queues and lanes of a loaded device go on.
#[derive(Clone, Copy, Default)]
pub(super) struct Loaded<'a> {
    pub(super) positions: &'a [(usize, Position)],
    /// Of the lanes that have queues, in their order.
    pub(super) lanes: &'a [Vec<u8>],
}

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

    /// The lanes of a device that was paused, as they are saved: those that have queues, or all if none has.
    pub(super) fn rest(&self) -> Result<Vec<Rest>, SectionError> {
        match self {
            Self::Serving(workers) => workers.rest().map_err(SectionError::Unsavable),
            Self::Idle(lanes) => {
                let states = lanes.iter().map(|lane| lane.save());
                states.map(|state| Ok(Rest { positions: Vec::new(), state: state? })).collect()
            }
            Self::Leaving(_) | Self::Gone => Ok(Vec::new()),
        }
    }

    /// Loads the states of lanes that are with the transport.
    pub(super) fn load_idle(&mut self, states: &[Vec<u8>]) -> Result<(), SectionError> {
        let Self::Idle(lanes) = self else { return Ok(()) };
        lanes.iter_mut().zip(states).try_for_each(|(lane, state)| lane.load(state))
    }

    pub(super) fn resume(&self) {
        if let Self::Serving(workers) = self {
            workers.resume();
        }
    }
}

impl State {
    /// Finishes a reset once the workers have finished (section 2.4.1: until then status does not read as zero).
    pub(super) fn complete_reset(&mut self, signals: &Signals, config: &dyn DeviceConfig) {
        if self.common.is_resetting() && self.life.settle() {
            signals.reset();
            config.reset();
            self.common.complete_reset();
            self.change_pending = false;
        }
    }
}

impl PciDevice {
    /// The driver is ready: hands the lanes and their queues to workers. What stands in the way makes the device ask to
    /// be reset.
    pub(super) fn activate(&self, state: &mut State) {
        if let Err(error) = self.activate_at(state, None) {
            tracing::error!(
                device = self.name,
                error = &error as &dyn std::error::Error,
                "the device has no state"
            );
        }
    }

    /// As [`Self::activate`]; with positions and states of lanes, these go on from there once the device is resumed.
    pub(super) fn activate_at(
        &self,
        state: &mut State,
        loaded: Option<Loaded<'_>>,
    ) -> Result<(), SectionError> {
        let Loaded { positions, lanes: states } = loaded.unwrap_or_default();
        let Some(queues) = self.build_queues(state, positions) else {
            self.signals.ask_for_reset();
            return Ok(());
        };
        let mut lanes = match mem::replace(&mut state.life, Life::Gone) {
            Life::Idle(lanes) => lanes,
            other @ (Life::Serving(_) | Life::Leaving(_) | Life::Gone) => {
                state.life = other;
                self.signals.ask_for_reset();
                return Ok(());
            }
        };
        let features = state.common.features();
        if let Err(error) = lanes.iter_mut().try_for_each(|lane| lane.activate(features)) {
            tracing::error!(device = self.name, %error, "the device could not start");
            self.signals.ask_for_reset();
            state.life = Life::Idle(lanes);
            return Ok(());
        }
        let mut lanes = self.distribute(queues, lanes, features);
        let active = lanes.iter_mut().filter(|(_, queues)| !queues.is_empty());
        active.zip(states).try_for_each(|((lane, _), state)| lane.load(state))?;
        state.life = Life::Serving(Workers::spawn(
            self.name,
            lanes,
            &self.signals,
            (&self.host.threads, loaded.is_some()),
        ));
        Ok(())
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
