//! The common configuration structure (section 4.1.4.3) and what a driver may do when (section 3.1.1).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

use super::super::signals::Signals;
use crate::state::SectionError;

// Device status bits (section 2.1).
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;
const NEEDS_RESET: u8 = 64;
const FAILED: u8 = 128;
const VERSION_1: u64 = 1 << VIRTIO_F_VERSION_1;
const EVENT_IDX: u64 = 1 << VIRTIO_RING_F_EVENT_IDX;
const TRANSPORT_FEATURES: u64 = VERSION_1 | EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC;

/// The effect of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// Status was written as zero.
    Reset,
    /// The driver is ready.
    Start,
}

/// The registers.
pub(super) struct Common {
    offered: u64,
    accepted: u64,
    offered_select: u32,
    accepted_select: u32,
    status: u8,
    /// Reset was requested and is not complete: status does not read as zero yet (section 2.4.1).
    resetting: bool,
    queue_select: u16,
    queues: Vec<Setup>,
    signals: Arc<Signals>,
}

/// A queue as the driver lays it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Setup {
    max_size: u16,
    size: u16,
    enabled: bool,
    descriptors: u64,
    available: u64,
    used: u64,
}

/// The registers, as they are saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CommonState {
    offered: u64,
    accepted: u64,
    offered_select: u32,
    accepted_select: u32,
    status: u8,
    resetting: bool,
    queue_select: u16,
    queues: Vec<Setup>,
}

impl Setup {
    fn new(max_size: u16) -> Self {
        Self { max_size, size: max_size, enabled: false, descriptors: 0, available: 0, used: 0 }
    }

    /// The queue, if the driver enabled it.
    pub(super) fn build(&self, features: u64) -> Option<Result<Queue, virtio_queue::Error>> {
        self.enabled.then(|| {
            let mut queue = Queue::new(self.max_size)?;
            queue.try_set_size(self.size)?;
            queue.try_set_desc_table_address(GuestAddress(self.descriptors))?;
            queue.try_set_avail_ring_address(GuestAddress(self.available))?;
            queue.try_set_used_ring_address(GuestAddress(self.used))?;
            queue.set_event_idx(features & EVENT_IDX != 0);
            queue.set_ready(true);
            Ok(queue)
        })
    }
}

impl Common {
    pub(super) fn new(features: u64, queues: &[u16], signals: Arc<Signals>) -> Self {
        Self {
            offered: features | TRANSPORT_FEATURES,
            accepted: 0,
            offered_select: 0,
            accepted_select: 0,
            status: 0,
            resetting: false,
            queue_select: 0,
            queues: queues.iter().copied().map(Setup::new).collect(),
            signals,
        }
    }

    pub(super) fn features(&self) -> u64 {
        self.accepted
    }

    pub(super) fn queues(&self) -> &[Setup] {
        &self.queues
    }

    pub(super) fn is_driver_ok(&self) -> bool {
        self.status & DRIVER_OK != 0 && !self.resetting
    }

    /// Whether the device accepted what the driver did.
    pub(super) fn has_negotiated(&self) -> bool {
        self.status & FEATURES_OK != 0
    }

    pub(super) fn is_resetting(&self) -> bool {
        self.resetting
    }

    /// As after power-on.
    pub(super) fn complete_reset(&mut self) {
        let sizes: Vec<u16> = self.queues.iter().map(|queue| queue.max_size).collect();
        *self = Self::new(self.offered, &sizes, self.signals.clone());
    }

    pub(super) fn save(&self) -> CommonState {
        CommonState {
            offered: self.offered,
            accepted: self.accepted,
            offered_select: self.offered_select,
            accepted_select: self.accepted_select,
            status: self.status,
            resetting: self.resetting,
            queue_select: self.queue_select,
            queues: self.queues.clone(),
        }
    }

    /// Takes a state over.
    pub(super) fn load(&mut self, state: CommonState) -> Result<(), SectionError> {
        if state.offered != self.offered {
            return Err(SectionError::Invalid("it offers other features"));
        }
        let sizes = |queues: &[Setup]| queues.iter().map(|queue| queue.max_size).collect::<Vec<_>>();
        if sizes(&state.queues) != sizes(&self.queues) {
            return Err(SectionError::Invalid("it has other queues"));
        }
        let known = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK | FAILED;
        let skipped = state.status & DRIVER_OK != 0 && state.status & FEATURES_OK == 0;
        let sized = |queue: &Setup| queue.size.is_power_of_two() && queue.size <= queue.max_size;
        if state.status & !known != 0 || skipped || !state.queues.iter().all(sized) {
            return Err(SectionError::Invalid("its registers are impossible"));
        }
        self.accepted = state.accepted;
        if state.status & FEATURES_OK != 0 && !self.accepts() {
            return Err(SectionError::Invalid("its driver accepted features that are not offered"));
        }
        self.offered_select = state.offered_select;
        self.accepted_select = state.accepted_select;
        self.status = state.status;
        self.resetting = state.resetting;
        self.queue_select = state.queue_select;
        self.queues = state.queues;
        Ok(())
    }

    /// Accesses of other offsets or widths than the registers' own read as ones.
    pub(super) fn read(&self, offset: u64, data: &mut [u8]) {
        let queue = self.queues.get(usize::from(self.queue_select));
        let half = |value: u64, select: u32| match select {
            0 => value & 0xffff_ffff,
            1 => value >> 32,
            _ => 0,
        };
        let field = |pick: fn(&Setup) -> u64| queue.map_or(0, pick);
        let value: u64 = match (offset, data.len()) {
            (0x00, 4) => self.offered_select.into(),
            (0x04, 4) => half(self.offered, self.offered_select),
            (0x08, 4) => self.accepted_select.into(),
            (0x0c, 4) => half(self.accepted, self.accepted_select),
            (0x10, 2) => self.signals.config_vector().into(),
            (0x12, 2) => u64::try_from(self.queues.len()).unwrap_or(0),
            (0x14, 1) => self.status().into(),
            (0x15, 1) => self.signals.generation().into(),
            (0x16, 2) => self.queue_select.into(),
            (0x18, 2) => field(|queue| queue.size.into()),
            (0x1a, 2) => self.signals.queue_vector(self.queue_select).into(),
            (0x1c, 2) => field(|queue| queue.enabled.into()),
            (0x1e, 2) => self.queue_select.into(),
            (0x20, 4 | 8) => field(|queue| queue.descriptors),
            (0x24, 4) => field(|queue| queue.descriptors >> 32),
            (0x28, 4 | 8) => field(|queue| queue.available),
            (0x2c, 4) => field(|queue| queue.available >> 32),
            (0x30, 4 | 8) => field(|queue| queue.used),
            (0x34, 4) => field(|queue| queue.used >> 32),
            _ => u64::MAX,
        };
        for (byte, value) in data.iter_mut().zip(value.to_le_bytes()) {
            *byte = value;
        }
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Effect {
        match *data {
            [value] if offset == 0x14 => return self.set_status(value),
            [a, b] => self.write16(offset, u16::from_le_bytes([a, b])),
            [a, b, c, d] => self.write32(offset, u32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => {
                self.write32(offset, u32::from_le_bytes([a, b, c, d]));
                self.write32(offset.saturating_add(4), u32::from_le_bytes([e, f, g, h]));
            }
            _ => {}
        }
        Effect::None
    }

    fn write16(&mut self, offset: u64, value: u16) {
        match offset {
            0x10 => self.signals.set_config_vector(value),
            0x16 => self.queue_select = value,
            0x1a => self.signals.set_queue_vector(self.queue_select, value),
            0x18 => {
                if let Some(queue) = self.queue()
                    && value.is_power_of_two()
                    && value <= queue.max_size
                {
                    queue.size = value;
                }
            }
            0x1c => {
                if let Some(queue) = self.queue()
                    && value == 1
                {
                    queue.enabled = true;
                }
            }
            _ => {}
        }
    }

    fn write32(&mut self, offset: u64, value: u32) {
        let low = |old: u64| old & !0xffff_ffff | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        match offset {
            0x00 => self.offered_select = value,
            0x08 => self.accepted_select = value,
            0x0c if self.status & FEATURES_OK == 0 => match self.accepted_select {
                0 => self.accepted = low(self.accepted),
                1 => self.accepted = high(self.accepted),
                _ => {}
            },
            _ => {
                let Some(queue) = self.queue() else { return };
                match offset {
                    0x20 => queue.descriptors = low(queue.descriptors),
                    0x24 => queue.descriptors = high(queue.descriptors),
                    0x28 => queue.available = low(queue.available),
                    0x2c => queue.available = high(queue.available),
                    0x30 => queue.used = low(queue.used),
                    0x34 => queue.used = high(queue.used),
                    _ => {}
                }
            }
        }
    }

    /// The selected queue, as long as the driver may lay it out.
    fn queue(&mut self) -> Option<&mut Setup> {
        let open = self.status & DRIVER_OK == 0;
        self.queues.get_mut(usize::from(self.queue_select)).filter(|queue| open && !queue.enabled)
    }

    fn status(&self) -> u8 {
        self.status | if self.signals.needs_reset() { NEEDS_RESET } else { 0 }
    }

    /// Bits are only ever added, one step after the other; zero resets.
    fn set_status(&mut self, value: u8) -> Effect {
        if self.resetting {
            return Effect::None;
        }
        if value == 0 {
            self.resetting = true;
            return Effect::Reset;
        }
        let value = value & (ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK | FAILED);
        if value & self.status != self.status {
            tracing::debug!(old = self.status, new = value, "the driver takes status bits back");
            return Effect::None;
        }
        let added = value & !self.status;
        self.status |= added & (ACKNOWLEDGE | DRIVER | FAILED);
        if added & FEATURES_OK != 0 && self.accepts() {
            self.status |= FEATURES_OK;
        }
        if added & DRIVER_OK != 0 && self.status & FEATURES_OK != 0 {
            self.status |= DRIVER_OK;
            return Effect::Start;
        }
        Effect::None
    }

    /// Only what was offered, and never a legacy driver (section 6.1).
    fn accepts(&self) -> bool {
        self.accepted & !self.offered == 0 && self.accepted & VERSION_1 != 0
    }
}
