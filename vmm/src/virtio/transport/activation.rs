use std::mem;
use std::sync::Arc;

use virtio_queue::QueueT;

use super::super::signals::{QueueSignal, Signals};
use super::super::worker::Worker;
use super::super::{Device, Queues, VirtQueue};
use super::{PciDevice, State};

/// Where the device is.
pub(super) enum Life {
    /// With the transport: before activation, and after reset.
    Idle(Box<dyn Device>),
    /// On its worker.
    Serving(Worker),
    /// Reset was requested; the worker has not finished yet.
    Leaving(Worker),
    /// It went down with its worker, or its VM stops.
    Gone,
}

impl Life {
    /// Requests the worker's end, without waiting: this is a vCPU thread.
    pub(super) fn leave(&mut self) {
        *self = match mem::replace(self, Self::Gone) {
            Self::Serving(worker) | Self::Leaving(worker) => {
                worker.ask_to_stop();
                Self::Leaving(worker)
            }
            other @ (Self::Idle(_) | Self::Gone) => other,
        };
    }

    /// Takes the device back if the worker has finished; returns whether no worker has it.
    fn settle(&mut self) -> bool {
        match mem::replace(self, Self::Gone) {
            Self::Leaving(worker) if !worker.is_gone() => {
                *self = Self::Leaving(worker);
                false
            }
            Self::Leaving(worker) => {
                *self = worker.join().map_or(Self::Gone, Self::Idle);
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

    /// Waits for the worker's end.
    pub(super) fn stop(&mut self) {
        if let Self::Serving(worker) | Self::Leaving(worker) = mem::replace(self, Self::Gone) {
            worker.stop();
        }
    }

    pub(super) fn pause(&self) -> bool {
        match self {
            Self::Serving(worker) => worker.pause(),
            Self::Leaving(worker) => worker.is_over_in_time(),
            Self::Idle(_) | Self::Gone => true,
        }
    }

    pub(super) fn resume(&self) {
        if let Self::Serving(worker) = self {
            worker.resume();
        }
    }
}

impl State {
    /// Finishes a reset once the worker has finished (section 2.4.1: until then status does not read as zero).
    pub(super) fn complete_reset(&mut self, signals: &Signals) {
        if self.common.is_resetting() && self.life.settle() {
            signals.reset();
            self.common.complete_reset();
        }
    }
}

impl PciDevice {
    /// The driver is ready: hands the device and its queues to a worker. What stands in the way makes the device ask
    /// to be reset.
    pub(super) fn activate(&self, state: &mut State) {
        let Some(queues) = self.build_queues(state) else {
            self.signals.ask_for_reset();
            return;
        };
        let mut device = match mem::replace(&mut state.life, Life::Gone) {
            Life::Idle(device) => device,
            other @ (Life::Serving(_) | Life::Leaving(_) | Life::Gone) => {
                state.life = other;
                self.signals.ask_for_reset();
                return;
            }
        };
        let started = match device.activate(state.common.features()) {
            Ok(()) => Worker::spawn(self.name, device, queues, self.signals.clone()),
            Err(error) => Err((device, error)),
        };
        state.life = match started {
            Ok(worker) => Life::Serving(worker),
            Err((device, error)) => {
                tracing::error!(device = self.name, %error, "the device could not start");
                self.signals.ask_for_reset();
                Life::Idle(device)
            }
        };
    }

    fn build_queues(&self, state: &State) -> Option<Queues> {
        let features = state.common.features();
        let queues =
            state.common.queues().iter().zip(&self.kicks).enumerate().map(|(index, (setup, kick))| {
                let queue = match setup.build(features) {
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
                let signal = QueueSignal::new(self.signals.clone(), index);
                Some(Some(VirtQueue::new(queue, self.host.memory.clone(), Arc::clone(kick), signal)))
            });
        let queues = queues.collect::<Option<Vec<_>>>()?;
        Some(Queues::new(queues, self.signals.clone()))
    }
}
