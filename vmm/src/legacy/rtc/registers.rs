use serde::{Deserialize, Serialize};

use super::civil::Civil;
use crate::state::SectionError;

/// Bytes of CMOS memory, the clock's registers included.
const SIZE: usize = 128;
/// The rest of the index register masks NMIs.
const INDEX: u8 = 0x7f;

pub(super) const SECONDS: u8 = 0x00;
pub(super) const SECONDS_ALARM: u8 = 0x01;
pub(super) const MINUTES: u8 = 0x02;
pub(super) const MINUTES_ALARM: u8 = 0x03;
pub(super) const HOURS: u8 = 0x04;
pub(super) const HOURS_ALARM: u8 = 0x05;
pub(super) const WEEKDAY: u8 = 0x06;
pub(super) const DAY: u8 = 0x07;
pub(super) const MONTH: u8 = 0x08;
pub(super) const YEAR: u8 = 0x09;
pub(super) const STATUS_A: u8 = 0x0a;
pub(super) const STATUS_B: u8 = 0x0b;
pub(super) const STATUS_C: u8 = 0x0c;
pub(super) const STATUS_D: u8 = 0x0d;
pub(super) const CENTURY: u8 = 0x32;

/// Status A: an update is in progress.
pub(super) const UPDATING: u8 = 1 << 7;
/// Status A: with both bits set the divider is held in reset, and the clock with it.
pub(super) const DIVIDER_RESET: u8 = 0b110 << 4;
/// Status A: which tap of the divider makes periodic interrupts.
const RATE: u8 = 0xf;
/// Status A at reset: 32.768 kHz time base, 1024 Hz periodic rate.
pub(super) const STATUS_A_DEFAULT: u8 = 0x26;
/// Status B: the clock is stopped for setting.
pub(super) const SET: u8 = 1 << 7;
/// Status B enables an interrupt by the bit that has its flag in status C.
pub(super) const PERIODIC: u8 = 1 << 6;
pub(super) const ALARM: u8 = 1 << 5;
pub(super) const UPDATE_ENDED: u8 = 1 << 4;
const INTERRUPTS: u8 = PERIODIC | ALARM | UPDATE_ENDED;
/// Status C: one of the enabled interrupts is pending.
pub(super) const REQUESTED: u8 = 1 << 7;
/// Status B: registers hold binary numbers.
pub(super) const BINARY: u8 = 1 << 2;
/// Status B: 24-hour clock.
pub(super) const HOURS_24: u8 = 1 << 1;
/// Status D: the battery is good.
pub(super) const VALID: u8 = 1 << 7;
/// An alarm register from here on matches every value.
const DONT_CARE: u8 = 0xc0;

/// Nanoseconds since 1970.
pub(super) type Nanos = i128;
pub(super) const SECOND: Nanos = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;
/// How long before a second's end an update shows (MC146818A data sheet).
const UPDATE_WINDOW: Nanos = 244_000;
/// A guest can set no time that is further from the host's: years have four digits.
const MAX_OFFSET: Nanos = 20_000 * 366 * 86_400 * SECOND;
/// Cycles of the time base in a second.
const TIME_BASE: Nanos = 32_768;

/// The registers of an MC146818 (its data sheet), by the host's time, which every access brings along.
///
/// Flags are computed at each access; [`Registers::deadline`] is when an interrupt is due without an access.
pub(super) struct Registers {
    index: u8,
    memory: [u8; SIZE],
    /// Guest time less host time.
    offset: Nanos,
    /// The flags of status C.
    flags: u8,
    /// The host's time to which the flags are right.
    seen: Nanos,
}

/// The registers, as they are saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RtcState {
    index: u8,
    memory: Vec<u8>,
    offset: Nanos,
    flags: u8,
}

impl Registers {
    /// The state at the host's time `now`.
    pub(super) fn save(&mut self, now: Nanos) -> RtcState {
        self.advance(now);
        let Self { index, memory, offset, flags, .. } = self;
        RtcState { index: *index, memory: memory.to_vec(), offset: *offset, flags: *flags }
    }

    /// Takes a state over at the host's time `now`. The clock goes on as one with a battery: the time in between has
    /// passed.
    pub(super) fn restore(&mut self, state: RtcState, now: Nanos) -> Result<(), SectionError> {
        let RtcState { index, memory, offset, flags } = state;
        let Ok(memory) = <[u8; SIZE]>::try_from(memory) else {
            return Err(SectionError::Invalid("it has another size of CMOS memory"));
        };
        if offset.checked_abs().is_none_or(|offset| offset > MAX_OFFSET) {
            return Err(SectionError::Invalid("its time is out of range"));
        }
        *self = Self { index: index & INDEX, memory, offset, flags: flags & INTERRUPTS, seen: now };
        // Bits that a guest cannot set.
        self.store(STATUS_A, self.load(STATUS_A) & !UPDATING);
        Ok(())
    }

    /// As after a reset at the host's time `now`, with a clock that differs from the host's by `offset`.
    pub(super) fn new(offset: Nanos, now: Nanos) -> Self {
        let mut registers = Self { index: 0, memory: [0; SIZE], offset, flags: 0, seen: now };
        registers.store(STATUS_A, STATUS_A_DEFAULT);
        registers.store(STATUS_B, HOURS_24);
        registers
    }

    /// Guest time less host time.
    pub(super) fn offset(&self) -> Nanos {
        self.offset
    }

    /// Chooses the register that is read and written.
    pub(super) fn select(&mut self, index: u8) {
        self.index = index & INDEX;
    }

    /// Reads the register chosen.
    pub(super) fn read(&mut self, now: Nanos) -> u8 {
        self.advance(now);
        match self.index {
            STATUS_A => {
                let updating = !self.is_stopped() && SECOND - self.phase(now) <= UPDATE_WINDOW;
                self.load(STATUS_A) | if updating { UPDATING } else { 0 }
            }
            STATUS_C => {
                let requested = if self.interrupts() { REQUESTED } else { 0 };
                std::mem::take(&mut self.flags) | requested
            }
            STATUS_D => VALID,
            index if self.is_stopped() => self.load(index),
            index => match Civil::at(self.guest_second(now)).register(index) {
                Some(value) => self.encode(index, value),
                None => self.load(index),
            },
        }
    }

    /// Writes the register chosen.
    pub(super) fn write(&mut self, value: u8, now: Nanos) {
        self.advance(now);
        match self.index {
            STATUS_A => self.control(STATUS_A, value & !UPDATING, now),
            STATUS_B => {
                let cleared = if value & SET == 0 { 0 } else { UPDATE_ENDED };
                self.control(STATUS_B, value & !cleared, now);
            }
            STATUS_C | STATUS_D => {}
            index if is_time(index) && !self.is_stopped() => {
                self.freeze(now);
                self.store(index, value);
                self.thaw(now);
            }
            index => self.store(index, value),
        }
    }

    /// Writes status A or B, which may stop the clock or start it.
    fn control(&mut self, index: u8, value: u8, now: Nanos) {
        let (was_stopped, was_reset) = (self.is_stopped(), self.in_reset());
        if !was_stopped {
            // In the format that the registers had until now.
            self.freeze(now);
        }
        self.store(index, value);
        if was_reset && !self.in_reset() {
            // A divider that leaves reset starts in the middle of a second.
            self.offset += SECOND / 2 - self.phase(now);
        }
        if was_stopped && !self.is_stopped() {
            self.thaw(now);
        }
    }

    /// Computes the flags of everything up to `now`.
    pub(super) fn advance(&mut self, now: Nanos) {
        let before = std::mem::replace(&mut self.seen, now);
        // The host's clock may be set back.
        if now <= before {
            return;
        }
        if self.period().is_some_and(|period| before.div_euclid(period) != now.div_euclid(period)) {
            self.flags |= PERIODIC;
        }
        let (from, to) = (self.guest_second(before), self.guest_second(now));
        if self.is_stopped() || to <= from {
            return;
        }
        self.flags |= UPDATE_ENDED;
        if self.alarm_after(from).is_some_and(|at| at <= to) {
            self.flags |= ALARM;
        }
    }

    /// Whether the interrupt line is raised.
    pub(super) fn interrupts(&self) -> bool {
        self.flags & self.load(STATUS_B) & INTERRUPTS != 0
    }

    /// Whether the alarm is one of its reasons.
    pub(super) fn alarms(&self) -> bool {
        self.flags & self.load(STATUS_B) & ALARM != 0
    }

    /// The host's time at which the line or the alarm changes without an access; `None` if it does not.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        let awaited = |flag| self.load(STATUS_B) & flag != 0 && self.flags & flag == 0;
        let (low, runs) = (!self.interrupts(), !self.is_stopped());
        let second = self.guest_second(self.seen);
        let host_time = |second: i64| Nanos::from(second) * SECOND - self.offset;
        let tick = self.period().filter(|_| low && awaited(PERIODIC));
        let tick = tick.map(|period| (self.seen.div_euclid(period) + 1) * period);
        let update = (low && runs && awaited(UPDATE_ENDED)).then(|| host_time(second.saturating_add(1)));
        let alarm = if runs && awaited(ALARM) { self.alarm_after(second).map(host_time) } else { None };
        [tick, update, alarm].into_iter().flatten().min()
    }

    /// Of periodic interrupts; `None` if there are none.
    fn period(&self) -> Option<Nanos> {
        let cycles: Nanos = match self.load(STATUS_A) & RATE {
            0 => return None,
            // The taps of 256 and 128 Hz, as 8 and 9 are.
            rate @ 1..=2 => 1 << (rate + 6),
            rate => 1 << (rate - 1),
        };
        (!self.in_reset()).then_some(cycles * SECOND / TIME_BASE)
    }

    /// The first second behind `second` that the alarm registers match.
    fn alarm_after(&self, second: i64) -> Option<i64> {
        // A register that holds no possible value matches nothing.
        let field = |index, limit| match self.load(index) {
            DONT_CARE.. => Some(None),
            _ => Some(i64::from(self.decode(index))).filter(|value| *value < limit).map(Some),
        };
        let (hour, minute) = (field(HOURS_ALARM, 24)?, field(MINUTES_ALARM, 60)?);
        let within_minute = field(SECONDS_ALARM, 60)?;
        let differs = |field: Option<i64>, value| field.is_some_and(|field| field != value);
        let end = second.saturating_add(DAY_SECONDS);
        let mut at = second.saturating_add(1);
        while at <= end {
            let time = at.rem_euclid(DAY_SECONDS);
            if differs(hour, time / 3600) {
                at += 3600 - time % 3600;
            } else if differs(minute, time / 60 % 60) {
                at += 60 - time % 60;
            } else if differs(within_minute, time % 60) {
                at += 1;
            } else {
                return Some(at);
            }
        }
        None
    }

    fn in_reset(&self) -> bool {
        self.load(STATUS_A) & DIVIDER_RESET == DIVIDER_RESET
    }

    /// Whether the registers hold the time as the guest left it.
    fn is_stopped(&self) -> bool {
        self.in_reset() || self.load(STATUS_B) & SET != 0
    }

    fn load(&self, index: u8) -> u8 {
        self.memory.get(usize::from(index)).copied().unwrap_or(0xff)
    }

    /// Sets a byte without what writing it does.
    pub(super) fn store(&mut self, index: u8, value: u8) {
        if let Some(byte) = self.memory.get_mut(usize::from(index)) {
            *byte = value;
        }
    }

    fn guest_second(&self, now: Nanos) -> i64 {
        i64::try_from((now + self.offset).div_euclid(SECOND)).unwrap_or(0)
    }

    /// How much of the second has passed.
    fn phase(&self, now: Nanos) -> Nanos {
        (now + self.offset).rem_euclid(SECOND)
    }

    /// Puts the running time into the registers.
    fn freeze(&mut self, now: Nanos) {
        let civil = Civil::at(self.guest_second(now));
        for index in [SECONDS, MINUTES, HOURS, WEEKDAY, DAY, MONTH, YEAR, CENTURY] {
            if let Some(value) = civil.register(index) {
                self.store(index, self.encode(index, value));
            }
        }
    }

    /// Continues from the registers' values. The divider has run on: the second ends when it would have.
    fn thaw(&mut self, now: Nanos) {
        let field = |index| i64::from(self.decode(index));
        let civil = Civil {
            year: field(CENTURY) * 100 + field(YEAR),
            month: field(MONTH),
            day: field(DAY),
            second_of_day: field(HOURS) * 3600 + field(MINUTES) * 60 + field(SECONDS),
        };
        self.offset = Nanos::from(civil.seconds()) * SECOND + self.phase(now) - now;
    }

    fn encode(&self, index: u8, value: u8) -> u8 {
        let mode = self.load(STATUS_B);
        let number = |value: u8| if mode & BINARY != 0 { value } else { ((value / 10) << 4) | (value % 10) };
        if index == HOURS && mode & HOURS_24 == 0 {
            let afternoon = if value >= 12 { 0x80 } else { 0 };
            return number(if value.is_multiple_of(12) { 12 } else { value % 12 }) | afternoon;
        }
        number(value)
    }

    fn decode(&self, index: u8) -> u8 {
        let (mode, raw) = (self.load(STATUS_B), self.load(index));
        let number = |raw: u8| {
            if mode & BINARY != 0 { raw } else { (raw >> 4).wrapping_mul(10).wrapping_add(raw & 0xf) }
        };
        if matches!(index, HOURS | HOURS_ALARM) && mode & HOURS_24 == 0 {
            return number(raw & 0x7f) % 12 + if raw & 0x80 != 0 { 12 } else { 0 };
        }
        number(raw)
    }
}

fn is_time(index: u8) -> bool {
    matches!(index, SECONDS | MINUTES | HOURS | WEEKDAY | DAY | MONTH | YEAR | CENTURY)
}
