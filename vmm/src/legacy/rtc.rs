use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::bus::BusDevice;

/// Bytes of CMOS memory, the clock's registers included.
const SIZE: usize = 128;
/// The rest of the index register masks NMIs.
const INDEX: u8 = 0x7f;

const SECONDS: u8 = 0x00;
const MINUTES: u8 = 0x02;
const HOURS: u8 = 0x04;
const WEEKDAY: u8 = 0x06;
const DAY: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const STATUS_A: u8 = 0x0a;
const STATUS_B: u8 = 0x0b;
const STATUS_C: u8 = 0x0c;
const STATUS_D: u8 = 0x0d;
const CENTURY: u8 = 0x32;

/// Status A: an update is in progress.
const UPDATING: u8 = 1 << 7;
/// Status A at reset: 32.768 kHz time base, 1024 Hz periodic rate.
const STATUS_A_DEFAULT: u8 = 0x26;
/// Status B: the clock is stopped for setting.
const SET: u8 = 1 << 7;
/// Status B: registers hold binary numbers.
const BINARY: u8 = 1 << 2;
/// Status B: 24-hour clock.
const HOURS_24: u8 = 1 << 1;
/// Status D: the battery is good.
const VALID: u8 = 1 << 7;

/// How long before a second's end an update shows (MC146818A data sheet).
const UPDATE_WINDOW: Duration = Duration::from_micros(244);

/// A CMOS clock with the host's time in UTC, and 128 bytes of memory.
///
/// The guest may set the clock and reads back what it set, running on; the alarm and the periodic interrupt do
/// nothing (no line is raised), which is what a kernel with any other timer expects of one that it never asks.
pub(crate) struct Rtc {
    state: Mutex<State>,
    now: fn() -> Duration,
}

struct State {
    index: u8,
    memory: [u8; SIZE],
    /// Guest time less host time, in seconds.
    offset: i64,
}

impl Rtc {
    /// A clock that shows the host's time.
    pub(crate) fn new() -> Self {
        Self::with_clock(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// Sets bytes of the memory beside the clock, by index.
    pub(crate) fn with_memory(self, bytes: &[(u8, u8)]) -> Self {
        let mut state = self.state();
        bytes.iter().for_each(|(index, value)| state.store(*index, *value));
        drop(state);
        self
    }

    fn with_clock(now: fn() -> Duration) -> Self {
        let mut state = State { index: 0, memory: [0; SIZE], offset: 0 };
        state.store(STATUS_A, STATUS_A_DEFAULT);
        state.store(STATUS_B, HOURS_24);
        Self { state: Mutex::new(state), now }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_register(&self) -> u8 {
        let state = self.state();
        let (index, now) = (state.index, (self.now)());
        match index {
            STATUS_A => {
                let left = Duration::from_nanos(u64::from(1_000_000_000 - now.subsec_nanos()));
                let updating = left <= UPDATE_WINDOW && state.load(STATUS_B) & SET == 0;
                state.load(STATUS_A) | if updating { UPDATING } else { 0 }
            }
            STATUS_C => 0,
            STATUS_D => VALID,
            _ if state.load(STATUS_B) & SET != 0 => state.load(index),
            _ => match Civil::at(state.guest_seconds(now)).register(index) {
                Some(value) => state.encode(index, value),
                None => state.load(index),
            },
        }
    }

    fn write_register(&self, value: u8) {
        let mut state = self.state();
        let (index, now) = (state.index, (self.now)());
        match index {
            STATUS_A => state.store(index, value & !UPDATING),
            STATUS_B => {
                let was_set = state.load(STATUS_B) & SET != 0;
                let set = value & SET != 0;
                if set && !was_set {
                    state.freeze(now);
                }
                state.store(index, value);
                if was_set && !set {
                    state.thaw(now);
                }
            }
            STATUS_C | STATUS_D => {}
            _ => {
                let running = state.load(STATUS_B) & SET == 0;
                if running {
                    state.freeze(now);
                }
                state.store(index, value);
                if running && is_time(index) {
                    state.thaw(now);
                }
            }
        }
    }
}

fn is_time(index: u8) -> bool {
    matches!(index, SECONDS | MINUTES | HOURS | WEEKDAY | DAY | MONTH | YEAR | CENTURY)
}

impl State {
    fn load(&self, index: u8) -> u8 {
        self.memory.get(usize::from(index)).copied().unwrap_or(0xff)
    }

    fn store(&mut self, index: u8, value: u8) {
        if let Some(byte) = self.memory.get_mut(usize::from(index)) {
            *byte = value;
        }
    }

    fn guest_seconds(&self, now: Duration) -> i64 {
        i64::try_from(now.as_secs()).unwrap_or(i64::MAX).saturating_add(self.offset)
    }

    /// Puts the running time into the registers.
    fn freeze(&mut self, now: Duration) {
        let civil = Civil::at(self.guest_seconds(now));
        for index in [SECONDS, MINUTES, HOURS, WEEKDAY, DAY, MONTH, YEAR, CENTURY] {
            if let Some(value) = civil.register(index) {
                self.store(index, self.encode(index, value));
            }
        }
    }

    /// Continues from the registers' values.
    fn thaw(&mut self, now: Duration) {
        let field = |index| i64::from(self.decode(index));
        let civil = Civil {
            year: field(CENTURY) * 100 + field(YEAR),
            month: field(MONTH),
            day: field(DAY),
            second_of_day: field(HOURS) * 3600 + field(MINUTES) * 60 + field(SECONDS),
        };
        let host = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        self.offset = civil.seconds().saturating_sub(host);
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
        if index == HOURS && mode & HOURS_24 == 0 {
            return number(raw & 0x7f) % 12 + if raw & 0x80 != 0 { 12 } else { 0 };
        }
        number(raw)
    }
}

/// A date and time of the proleptic Gregorian calendar.
#[derive(Debug, PartialEq, Eq)]
struct Civil {
    year: i64,
    month: i64,
    day: i64,
    second_of_day: i64,
}

impl Civil {
    /// The time `seconds` after 1970. Years count from 1 March here, so that the leap day is the last of its year.
    fn at(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        Self {
            year: era * 400 + year_of_era + i64::from(month <= 2),
            month,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }

    /// Seconds after 1970. Fields out of their range carry over.
    fn seconds(&self) -> i64 {
        let month = self.month.clamp(1, 12);
        let year = self.year - i64::from(month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + self.day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        (era * 146_097 + day_of_era - 719_468) * 86_400 + self.second_of_day
    }

    /// The value of the clock's register `index`, as a number; `None` for a register that is not part of the time.
    fn register(&self, index: u8) -> Option<u8> {
        let days = self.seconds().div_euclid(86_400);
        let value = match index {
            SECONDS => self.second_of_day % 60,
            MINUTES => self.second_of_day / 60 % 60,
            HOURS => self.second_of_day / 3600,
            // 1 January 1970 was a Thursday, and Sunday is 1.
            WEEKDAY => (days + 4).rem_euclid(7) + 1,
            DAY => self.day,
            MONTH => self.month,
            YEAR => self.year.rem_euclid(100),
            CENTURY => self.year.div_euclid(100).rem_euclid(100),
            _ => return None,
        };
        u8::try_from(value).ok()
    }
}

impl BusDevice for Rtc {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let (1, [byte]) = (offset, data) {
            *byte = self.read_register();
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        match (offset, data) {
            (0, &[index]) => self.state().index = index & INDEX,
            (1, &[value]) => self.write_register(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2024-02-29 23:59:58.5 UTC, a Thursday.
    fn leap_day() -> Duration {
        Duration::from_millis(1_709_251_198_500)
    }

    fn get(rtc: &Rtc, index: u8) -> u8 {
        rtc.write(0, &[index]);
        let mut byte = [0];
        rtc.read(1, &mut byte);
        byte[0]
    }

    fn set(rtc: &Rtc, index: u8, value: u8) {
        rtc.write(0, &[index]);
        rtc.write(1, &[value]);
    }

    const TIME: [u8; 8] = [SECONDS, MINUTES, HOURS, WEEKDAY, DAY, MONTH, YEAR, CENTURY];

    #[test]
    fn the_host_time_shows_in_bcd() {
        let rtc = Rtc::with_clock(leap_day);
        let got = TIME.map(|index| get(&rtc, index));
        assert_eq!(got, [0x58, 0x59, 0x23, 5, 0x29, 0x02, 0x24, 0x20]);
        assert_eq!(get(&rtc, STATUS_D), VALID);
        assert_eq!(get(&rtc, STATUS_A), STATUS_A_DEFAULT);
        assert_eq!(get(&rtc, 0x80 | STATUS_D), VALID, "the NMI bit is not part of the index");
    }

    #[test]
    fn the_formats_of_status_b_are_followed() {
        let rtc = Rtc::with_clock(leap_day);
        set(&rtc, STATUS_B, BINARY | HOURS_24);
        assert_eq!(get(&rtc, HOURS), 23);
        set(&rtc, STATUS_B, BINARY);
        assert_eq!(get(&rtc, HOURS), 11 | 0x80);
        set(&rtc, STATUS_B, 0);
        assert_eq!(get(&rtc, HOURS), 0x11 | 0x80);
    }

    #[test]
    fn an_update_shows_only_at_the_end_of_a_second() {
        let late = Rtc::with_clock(|| Duration::from_micros(1_999_800));
        assert_eq!(get(&late, STATUS_A) & UPDATING, UPDATING);
        let early = Rtc::with_clock(|| Duration::from_micros(1_999_700));
        assert_eq!(get(&early, STATUS_A) & UPDATING, 0);
    }

    #[test]
    fn a_time_that_was_set_runs_on() {
        let rtc = Rtc::with_clock(leap_day);
        set(&rtc, STATUS_B, SET | HOURS_24);
        for (index, value) in TIME.into_iter().zip([0x01, 0x02, 0x03, 2, 0x31, 0x12, 0x99, 0x19]) {
            set(&rtc, index, value);
        }
        assert_eq!(get(&rtc, YEAR), 0x99);
        set(&rtc, STATUS_B, HOURS_24);
        let got = TIME.map(|index| get(&rtc, index));
        assert_eq!(got, [0x01, 0x02, 0x03, 6, 0x31, 0x12, 0x99, 0x19]);
    }

    #[test]
    fn memory_beside_the_clock_is_kept() {
        let rtc = Rtc::with_clock(leap_day);
        set(&rtc, 0x0f, 0x55);
        assert_eq!(get(&rtc, 0x0f), 0x55);
        assert_eq!(get(&rtc, SECONDS), 0x58, "writing memory does not disturb the clock");
    }

    proptest! {
        #[test]
        fn civil_time_round_trips(seconds in -62_000_000_000_i64..250_000_000_000) {
            let civil = Civil::at(seconds);
            prop_assert_eq!(civil.seconds(), seconds);
            prop_assert!((1..=12).contains(&civil.month) && (1..=31).contains(&civil.day));
        }

        #[test]
        fn no_sequence_of_accesses_panics(accesses in prop::collection::vec((0..4_u64, any::<u8>(), any::<bool>()), 0..200)) {
            let rtc = Rtc::new();
            for (offset, value, is_write) in accesses {
                if is_write {
                    rtc.write(offset, &[value]);
                } else {
                    rtc.read(offset, &mut [0]);
                }
            }
        }
    }
}
