use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use proptest::prelude::*;

use super::registers::*;
use super::*;

/// 2024-02-29 23:59:58.5 UTC, a Thursday.
fn leap_day() -> Duration {
    Duration::from_millis(1_709_251_198_500)
}

const LEAP_DAY: Nanos = 1_709_251_198_500_000_000;
const MILLISECOND: Nanos = 1_000_000;
const TIME: [u8; 8] = [SECONDS, MINUTES, HOURS, WEEKDAY, DAY, MONTH, YEAR, CENTURY];

#[derive(Default)]
struct Alarms(AtomicUsize);

impl PowerEvents for Alarms {
    fn press_power_button(&self) {}
    fn rtc_alarm(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends what its level becomes.
struct Line(mpsc::Sender<bool>);

impl IrqLine for Line {
    fn pulse(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_level(&self, high: bool) -> io::Result<()> {
        self.0.send(high).map_err(io::Error::other)
    }
}

fn line() -> (Arc<Line>, mpsc::Receiver<bool>) {
    let (sender, receiver) = mpsc::channel();
    (Arc::new(Line(sender)), receiver)
}

/// On the leap day, and without its thread.
fn still() -> Rtc {
    Rtc::with_clock(leap_day, line().0, Arc::new(Alarms::default()), ClockOffset::default())
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

/// Registers at some time.
struct At(Registers, Nanos);

impl At {
    fn leap_day() -> Self {
        Self(Registers::new(0, LEAP_DAY), LEAP_DAY)
    }

    fn get(&mut self, index: u8) -> u8 {
        self.0.select(index);
        self.0.read(self.1)
    }

    fn set(&mut self, index: u8, value: u8) {
        self.0.select(index);
        self.0.write(value, self.1);
    }

    /// Sleeps until the deadline; returns for how long.
    fn sleep(&mut self) -> Nanos {
        let due = self.0.deadline().expect("an interrupt is due");
        let slept = due - self.1;
        self.0.advance(due - 1);
        assert!(!self.0.interrupts(), "it is early");
        self.0.advance(due);
        assert!(self.0.interrupts(), "it is late");
        self.1 = due;
        slept
    }
}

#[test]
fn the_host_time_shows_in_bcd() {
    let rtc = still();
    let got = TIME.map(|index| get(&rtc, index));
    assert_eq!(got, [0x58, 0x59, 0x23, 5, 0x29, 0x02, 0x24, 0x20]);
    assert_eq!(get(&rtc, STATUS_D), VALID);
    assert_eq!(get(&rtc, STATUS_A), STATUS_A_DEFAULT);
    assert_eq!(get(&rtc, 0x80 | STATUS_D), VALID, "the NMI bit is not part of the index");
}

#[test]
fn the_formats_of_status_b_are_followed() {
    let rtc = still();
    set(&rtc, STATUS_B, BINARY | HOURS_24);
    assert_eq!(get(&rtc, HOURS), 23);
    set(&rtc, STATUS_B, BINARY);
    assert_eq!(get(&rtc, HOURS), 11 | 0x80);
    set(&rtc, STATUS_B, 0);
    assert_eq!(get(&rtc, HOURS), 0x11 | 0x80);
}

#[test]
fn an_update_shows_only_at_the_end_of_a_second() {
    let mut clock = At::leap_day();
    clock.1 += 499 * MILLISECOND + 800_000;
    assert_eq!(clock.get(STATUS_A) & UPDATING, UPDATING);
    let mut clock = At::leap_day();
    clock.1 += 499 * MILLISECOND + 700_000;
    assert_eq!(clock.get(STATUS_A) & UPDATING, 0);
}

#[test]
fn a_time_that_was_set_runs_on() {
    let rtc = still();
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
fn a_time_that_was_set_outlives_a_reset() {
    let kept = ClockOffset::default();
    let build = || Rtc::with_clock(leap_day, line().0, Arc::new(Alarms::default()), kept.clone());
    set(&build(), HOURS, 0x07);
    let rtc = build();
    assert_eq!((get(&rtc, HOURS), get(&rtc, MINUTES)), (0x07, 0x59));
}

#[test]
fn a_second_begins_half_a_second_after_the_divider_leaves_reset() {
    // As Linux sets the time: at the half of a second.
    let mut clock = At::leap_day();
    clock.1 += 200 * MILLISECOND;
    clock.set(STATUS_B, SET | HOURS_24);
    clock.set(STATUS_A, 0x70 | 6);
    clock.set(SECONDS, 0x10);
    clock.set(STATUS_B, HOURS_24);
    clock.1 += 3 * SECOND;
    assert_eq!(clock.get(SECONDS), 0x10, "it stands as long as the divider does");
    clock.set(STATUS_A, STATUS_A_DEFAULT);
    clock.1 += 499 * MILLISECOND;
    assert_eq!(clock.get(SECONDS), 0x10);
    clock.1 += 2 * MILLISECOND;
    assert_eq!(clock.get(SECONDS), 0x11);
}

#[test]
fn memory_beside_the_clock_is_kept() {
    let rtc = still();
    set(&rtc, 0x0f, 0x55);
    assert_eq!(get(&rtc, 0x0f), 0x55);
    assert_eq!(get(&rtc, SECONDS), 0x58, "writing memory does not disturb the clock");
}

#[test]
fn nothing_is_due_while_nothing_is_enabled() {
    let mut clock = At::leap_day();
    assert_eq!(clock.0.deadline(), None);
    clock.set(STATUS_B, PERIODIC | ALARM | UPDATE_ENDED | HOURS_24);
    assert!(clock.0.deadline().is_some());
    clock.set(STATUS_B, HOURS_24);
    clock.1 += 3 * SECOND;
    assert_eq!(clock.0.deadline(), None);
    clock.set(STATUS_A, 0x20);
    clock.set(STATUS_B, PERIODIC | HOURS_24);
    assert_eq!(clock.0.deadline(), None, "a rate of zero is none");
}

#[test]
fn an_update_interrupts_at_the_next_second_until_status_c_is_read() {
    let mut clock = At::leap_day();
    clock.set(STATUS_B, UPDATE_ENDED | HOURS_24);
    assert_eq!(clock.sleep(), SECOND / 2);
    assert_eq!(clock.0.deadline(), None, "the line is high already");
    assert_eq!(clock.get(STATUS_C) & (REQUESTED | UPDATE_ENDED), REQUESTED | UPDATE_ENDED);
    assert!(!clock.0.interrupts());
    assert_eq!(clock.get(STATUS_C), 0, "reading it clears it");
    assert_eq!(clock.sleep(), SECOND);
    clock.get(STATUS_C);
    clock.set(STATUS_B, SET | UPDATE_ENDED | HOURS_24);
    assert_eq!(clock.get(STATUS_B), SET | HOURS_24, "there is no update of a clock that is being set");
}

#[test]
fn flags_are_there_for_those_who_poll() {
    let mut clock = At::leap_day();
    clock.1 += SECOND;
    assert_eq!(clock.get(STATUS_C), PERIODIC | UPDATE_ENDED);
    assert_eq!(clock.get(STATUS_C), 0);
}

#[test]
fn periodic_interrupts_have_the_rate_of_status_a() {
    for (rate, hertz) in [(1, 256), (2, 128), (3, 8192), (6, 1024), (8, 256), (15, 2)] {
        let mut clock = At::leap_day();
        clock.set(STATUS_A, 0x20 | rate);
        clock.set(STATUS_B, PERIODIC | HOURS_24);
        clock.sleep();
        clock.get(STATUS_C);
        assert_eq!(clock.sleep(), SECOND / hertz, "rate {rate}");
    }
}

#[test]
fn the_alarm_follows_the_format_and_its_dont_cares() {
    let day = 86_400 * SECOND;
    let half = SECOND / 2;
    // From 23:59:58.5.
    let table: &[(u8, [u8; 3], Nanos)] = &[
        (HOURS_24, [0x23, 0x59, 0x59], half),
        (HOURS_24, [0xff, 0xff, 0xff], half),
        (HOURS_24, [0xc0, 0xc0, 0x00], half + SECOND),
        (HOURS_24, [0x00, 0x00, 0x00], half + SECOND),
        (HOURS_24, [0x23, 0x59, 0x58], half + day - SECOND),
        (HOURS_24, [0x07, 0xff, 0x30], half + SECOND + (7 * 3600 + 30) * SECOND),
        (HOURS_24 | BINARY, [13, 10, 11], half + SECOND + (13 * 3600 + 10 * 60 + 11) * SECOND),
        (BINARY, [0x80 | 1, 0, 0], half + SECOND + 13 * 3600 * SECOND),
        (0, [0x12, 0x30, 0], half + SECOND + 1800 * SECOND),
        (0, [0x92, 0xff, 0], half + SECOND + 12 * 3600 * SECOND),
    ];
    for (format, [hour, minute, second], after) in table {
        let mut clock = At::leap_day();
        clock.set(HOURS_ALARM, *hour);
        clock.set(MINUTES_ALARM, *minute);
        clock.set(SECONDS_ALARM, *second);
        clock.set(STATUS_B, ALARM | format);
        assert_eq!(clock.sleep(), *after, "{hour:#x} {minute:#x} {second:#x}");
        assert!(clock.0.alarms());
        assert_eq!(clock.get(STATUS_C) & (REQUESTED | ALARM), REQUESTED | ALARM);
    }
}

#[test]
fn an_impossible_alarm_never_comes() {
    let mut clock = At::leap_day();
    clock.set(MINUTES_ALARM, 0x61);
    clock.set(STATUS_B, ALARM | HOURS_24);
    assert_eq!(clock.0.deadline(), None);
    clock.1 += 100_000 * SECOND;
    assert_eq!(clock.get(STATUS_C) & ALARM, 0);
}

#[test]
fn the_thread_raises_the_line_and_reading_lowers_it() {
    let (line, levels) = line();
    let alarms = Arc::new(Alarms::default());
    let rtc = Rtc::new(line, alarms.clone(), ClockOffset::default(), &[(0x10, 0x40)]).unwrap();
    assert_eq!(get(&rtc, 0x10), 0x40);
    set(&rtc, STATUS_B, PERIODIC | HOURS_24);
    for _ in 0..3 {
        assert!(levels.recv().unwrap());
        assert_eq!(get(&rtc, STATUS_C) & (REQUESTED | PERIODIC), REQUESTED | PERIODIC);
        assert!(!levels.recv().unwrap());
    }
    set(&rtc, STATUS_B, HOURS_24);
    get(&rtc, STATUS_C);
    for index in [HOURS_ALARM, MINUTES_ALARM, SECONDS_ALARM] {
        set(&rtc, index, 0xff);
    }
    while levels.try_recv().is_ok() {}
    set(&rtc, STATUS_B, ALARM | HOURS_24);
    assert!(levels.recv().unwrap());
    assert_eq!(alarms.0.load(Ordering::Relaxed), 1);
    drop(rtc);
}

proptest! {
    #[test]
    fn no_sequence_of_accesses_panics(
        accesses in prop::collection::vec((0..4_u64, any::<u8>(), any::<bool>()), 0..200),
    ) {
        let rtc = still();
        for (offset, value, is_write) in accesses {
            if is_write {
                rtc.write(offset, &[value]);
            } else {
                rtc.read(offset, &mut [0]);
            }
        }
    }

    #[test]
    fn time_passes_for_any_registers(writes in prop::collection::vec((any::<u8>(), any::<u8>(), 0..200_000_u64), 0..100)) {
        let mut clock = At::leap_day();
        for (index, value, seconds) in writes {
            clock.set(index, value);
            clock.1 += Nanos::from(seconds) * SECOND / 7;
            clock.get(index);
            prop_assert!(clock.0.deadline().is_none_or(|due| due > clock.1));
        }
    }
}
