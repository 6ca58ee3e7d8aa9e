use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use vmm_sys_util::eventfd::EventFd;

use super::notifier::Notifier;
use crate::pci::{Intx, Msix, MsixState};
use crate::state::SectionError;

/// No vector (section 4.1.5.1.2).
pub(super) const NO_VECTOR: u16 = 0xffff;
const ISR_QUEUE: u8 = 1;
const ISR_CONFIG: u8 = 2;

/// Interrupts from the worker to the driver, without a lock shared with vCPU threads.
pub(super) struct Signals {
    pub(super) msix: Msix,
    /// The line, for a driver without messages.
    pub(super) intx: Intx,
    /// Interrupts that were not delivered as messages (section 4.1.4.5).
    isr: AtomicU8,
    /// Messages are switched on; a copy so that raising needs no lock.
    messages: AtomicBool,
    config_vector: AtomicU16,
    queue_vectors: Vec<AtomicU16>,
    needs_reset: AtomicBool,
    generation: AtomicU8,
    /// The function may access memory.
    bus_master: AtomicBool,
    /// Rung when that changes.
    watchers: Mutex<Vec<Arc<Notifier>>>,
}

/// What [`Signals`] has beside configuration space, as it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SignalsState {
    msix: MsixState,
    isr: u8,
    config_vector: u16,
    queue_vectors: Vec<u16>,
    needs_reset: bool,
    generation: u8,
}

/// What one queue has of its function: its interrupts, and leave to be served.
pub(super) struct QueueSignal {
    signals: Arc<Signals>,
    index: usize,
}

impl QueueSignal {
    pub(super) fn new(signals: Arc<Signals>, index: usize) -> Self {
        Self { signals, index }
    }

    pub(super) fn raise(&self) {
        self.signals.raise_queue(self.index);
    }

    /// What interrupts the driver by a message, if the queue has one now.
    pub(super) fn message_fd(&self) -> io::Result<Option<EventFd>> {
        let signals = &self.signals;
        if !signals.messages.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let vector = signals.queue_vectors.get(self.index).map(|vector| vector.load(Ordering::SeqCst));
        vector.map_or(Ok(None), |vector| signals.msix.eventfd(vector).transpose())
    }

    /// Whether the queue may be served: without bus mastering no chain is taken.
    pub(super) fn may_serve(&self) -> bool {
        self.signals.bus_master.load(Ordering::SeqCst)
    }
}

impl Signals {
    pub(super) fn new(msix: Msix, queues: usize) -> Self {
        Self {
            msix,
            intx: Intx::default(),
            isr: AtomicU8::new(0),
            messages: AtomicBool::new(false),
            config_vector: AtomicU16::new(NO_VECTOR),
            queue_vectors: (0..queues).map(|_| AtomicU16::new(NO_VECTOR)).collect(),
            needs_reset: AtomicBool::new(false),
            generation: AtomicU8::new(0),
            bus_master: AtomicBool::new(false),
            watchers: Mutex::default(),
        }
    }

    /// The device can do nothing more for the driver.
    pub(super) fn ask_for_reset(&self) {
        if !self.needs_reset.swap(true, Ordering::SeqCst) {
            self.config_changed();
        }
    }

    /// The device's configuration is another one now.
    pub(super) fn config_changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.raise(Some(&self.config_vector), ISR_CONFIG);
    }

    pub(super) fn needs_reset(&self) -> bool {
        self.needs_reset.load(Ordering::SeqCst)
    }

    pub(super) fn generation(&self) -> u8 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Whether the function may access memory; answers whether it may now and might not before.
    pub(super) fn set_bus_master(&self, yes: bool) -> bool {
        let before = self.bus_master.swap(yes, Ordering::SeqCst);
        if before != yes {
            self.watchers().iter().for_each(|watcher| watcher.ring());
        }
        !before && yes
    }

    /// Rings when bus mastering is switched, until the reset.
    pub(super) fn on_bus_master(&self, watcher: Arc<Notifier>) {
        let mut watchers = self.watchers();
        if watchers.iter().all(|known| !Arc::ptr_eq(known, &watcher)) {
            watchers.push(watcher);
        }
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Arc<Notifier>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reading clears, and lowers the line.
    pub(super) fn take_isr(&self) -> u8 {
        let isr = self.isr.swap(0, Ordering::SeqCst);
        self.settle_line();
        isr
    }

    fn settle_line(&self) {
        let raised = || self.isr.load(Ordering::SeqCst) != 0;
        self.intx.set(|| raised() && !self.messages.load(Ordering::SeqCst));
    }

    /// Takes the upper byte of MSI-X message control.
    pub(super) fn set_msix_control(&self, upper: u8) {
        self.msix.set_control(upper);
        self.messages.store(self.msix.is_enabled(), Ordering::SeqCst);
        self.settle_line();
    }

    /// Maps the configuration interrupt; a vector that does not exist maps to none.
    pub(super) fn set_config_vector(&self, vector: u16) {
        self.config_vector.store(self.existing(vector), Ordering::SeqCst);
    }

    pub(super) fn config_vector(&self) -> u16 {
        self.config_vector.load(Ordering::SeqCst)
    }

    pub(super) fn set_queue_vector(&self, queue: u16, vector: u16) {
        if let Some(slot) = self.queue_vectors.get(usize::from(queue)) {
            slot.store(self.existing(vector), Ordering::SeqCst);
        }
    }

    pub(super) fn queue_vector(&self, queue: u16) -> u16 {
        self.queue_vectors.get(usize::from(queue)).map_or(NO_VECTOR, |slot| slot.load(Ordering::SeqCst))
    }

    /// As after reset (section 4.1.4.3.1). The worker is gone.
    pub(super) fn reset(&self) {
        self.needs_reset.store(false, Ordering::SeqCst);
        self.isr.store(0, Ordering::SeqCst);
        self.settle_line();
        self.watchers().clear();
        for slot in self.queue_vectors.iter().chain([&self.config_vector]) {
            slot.store(NO_VECTOR, Ordering::SeqCst);
        }
    }

    pub(super) fn save(&self) -> SignalsState {
        let load = |vector: &AtomicU16| vector.load(Ordering::SeqCst);
        SignalsState {
            msix: self.msix.save(),
            isr: self.isr.load(Ordering::SeqCst),
            config_vector: load(&self.config_vector),
            queue_vectors: self.queue_vectors.iter().map(load).collect(),
            needs_reset: self.needs_reset(),
            generation: self.generation(),
        }
    }

    /// Takes a state over, before message control.
    pub(super) fn load(&self, state: SignalsState) -> Result<(), SectionError> {
        let SignalsState { msix, isr, config_vector, queue_vectors, needs_reset, generation } = state;
        if queue_vectors.len() != self.queue_vectors.len() {
            return Err(SectionError::Invalid("it has another number of queues"));
        }
        self.msix.load(msix)?;
        self.set_config_vector(config_vector);
        for (slot, vector) in self.queue_vectors.iter().zip(queue_vectors) {
            slot.store(self.existing(vector), Ordering::SeqCst);
        }
        self.needs_reset.store(needs_reset, Ordering::SeqCst);
        self.generation.store(generation, Ordering::SeqCst);
        self.isr.store(isr & (ISR_QUEUE | ISR_CONFIG), Ordering::SeqCst);
        self.settle_line();
        Ok(())
    }

    /// Interrupts the driver for a queue.
    pub(super) fn raise_queue(&self, queue: usize) {
        self.raise(self.queue_vectors.get(queue), ISR_QUEUE);
    }

    fn existing(&self, vector: u16) -> u16 {
        if vector < self.msix.count() { vector } else { NO_VECTOR }
    }

    fn raise(&self, vector: Option<&AtomicU16>, isr: u8) {
        if self.messages.load(Ordering::SeqCst) {
            if let Some(vector) = vector {
                self.msix.trigger(vector.load(Ordering::SeqCst));
            }
        } else {
            self.isr.fetch_or(isr, Ordering::SeqCst);
            self.settle_line();
        }
    }
}
