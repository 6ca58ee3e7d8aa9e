use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::state::SectionError;

/// Behind the BAR: preload values of both stages, and reload. The interrupt status between them reads as zero.
const TIMER1: u64 = 0x0;
const TIMER2: u64 = 0x4;
pub(super) const RELOAD: u64 = 0xc;

/// A write behind the BAR counts after these two.
const UNLOCK1: u32 = 0x80;
const UNLOCK2: u32 = 0x86;
/// RELOAD: begins with the first stage again.
const RESTART: u32 = 1 << 8;
/// RELOAD: the watchdog has expired; written to clear that. Some drivers have the second bit in its place.
const TIMED_OUT: u16 = 1 << 9 | 1 << 12;

/// Of a preload value.
const PRELOAD: u32 = 0xf_ffff;
/// Configuration: its end leads to nothing.
const NO_ACTION: u8 = 1 << 5;
/// Configuration: ticks of about a microsecond, in place of a millisecond.
const FAST: u8 = 1 << 2;
const CONFIG_BITS: u8 = NO_ACTION | FAST | 0b11;
/// Lock register: it counts, and nothing in this register changes any more.
const ENABLE: u8 = 1 << 1;
const LOCKED: u8 = 1 << 0;
const LOCK_BITS: u8 = 1 << 2 | ENABLE | LOCKED;

/// A tick of the PCI clock.
const PCI_TICK: u64 = 30;

/// How far the driver is with the two writes that unlock the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Unlock {
    No,
    Half,
    Yes,
}

/// All registers but the one that survives a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Registers {
    preload: [u32; 2],
    config: u8,
    lock: u8,
    unlock: Unlock,
    second: bool,
}

impl Default for Registers {
    fn default() -> Self {
        Self { preload: [PRELOAD; 2], config: 0, lock: 0, unlock: Unlock::No, second: false }
    }
}

/// What a write behind the BAR leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) restarts: bool,
    pub(super) clears_status: bool,
}

/// What RELOAD reads as.
pub(super) fn status(timed_out: bool) -> u16 {
    if timed_out { TIMED_OUT } else { 0 }
}

impl Registers {
    pub(super) fn config(&self) -> u8 {
        self.config
    }

    pub(super) fn lock(&self) -> u8 {
        self.lock
    }

    /// Whether it begins to count, or stops.
    pub(super) fn set_config(&mut self, value: u8) -> bool {
        self.change(|registers| registers.config = value & CONFIG_BITS)
    }

    /// Whether it begins to count, or stops.
    pub(super) fn set_lock(&mut self, value: u8) -> bool {
        if self.lock & LOCKED != 0 {
            return false;
        }
        self.change(|registers| registers.lock = value & LOCK_BITS)
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) -> bool {
        let before = self.counts();
        change(self);
        let changed = self.counts() != before;
        if changed {
            self.second = false;
        }
        changed
    }

    /// A write at `offset` behind the BAR.
    pub(super) fn write(&mut self, offset: u64, value: u32) -> Effect {
        let unlock = std::mem::replace(&mut self.unlock, Unlock::No);
        match (offset, value, unlock) {
            (RELOAD, UNLOCK1, _) => self.unlock = Unlock::Half,
            (RELOAD, UNLOCK2, Unlock::Half) => self.unlock = Unlock::Yes,
            (RELOAD, _, Unlock::Yes) => {
                let restarts = value & RESTART != 0 && self.counts();
                self.second &= !restarts;
                return Effect { restarts, clears_status: value & u32::from(TIMED_OUT) != 0 };
            }
            (TIMER1, _, Unlock::Yes) => self.preload[0] = value & PRELOAD,
            (TIMER2, _, Unlock::Yes) => self.preload[1] = value & PRELOAD,
            _ => {}
        }
        Effect::default()
    }

    /// A watchdog whose end leads to nothing does not count: there is no register that shows its time.
    fn counts(&self) -> bool {
        self.lock & ENABLE != 0 && self.config & NO_ACTION == 0
    }

    /// How long the stage takes, if it counts.
    pub(super) fn stage_length(&self) -> Option<Duration> {
        let [first, second] = self.preload;
        let ticks = u64::from(if self.second { second } else { first });
        let scale = if self.config & FAST == 0 { 15 } else { 5 };
        self.counts().then(|| Duration::from_nanos((ticks << scale) * PCI_TICK))
    }

    /// The longest that a stage can be.
    pub(super) fn longest_stage() -> Duration {
        Duration::from_nanos((u64::from(PRELOAD) << 15) * PCI_TICK)
    }

    /// The time of a stage is over. After the second, the device is as after a reset, and an action is due.
    pub(super) fn end_stage(&mut self) -> bool {
        if self.second {
            *self = Self::default();
            return true;
        }
        self.second = true;
        false
    }

    /// Registers that were saved, if a driver could have brought them about.
    pub(super) fn checked(self) -> Result<Self, SectionError> {
        let [first, second] = self.preload;
        let unknown = self.config & !CONFIG_BITS | self.lock & !LOCK_BITS;
        if first > PRELOAD || second > PRELOAD || unknown != 0 || self.second && !self.counts() {
            return Err(SectionError::Invalid("there are no such registers of a watchdog"));
        }
        Ok(self)
    }
}
