//! A real-time clock with its memory (Motorola MC146818, data sheet), as every PC has it on ports 0x70 and 0x71.

mod civil;
mod registers;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use registers::{Nanos, Registers, RtcState};

use super::PowerEvents;
use crate::bus::BusDevice;
use crate::config::ClockOffset;
use crate::irq::IrqLine;
use crate::state::{Section, SectionError};

/// Of the thread that waits for the next interrupt.
const STACK: usize = 64 << 10;
/// An alarm is waited for in steps: the host's clock may be set meanwhile.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A CMOS clock with the host's time in UTC, and 128 bytes of memory.
///
/// The guest may set the clock; it runs on from there, after a reset of the guest too. While no interrupt is enabled,
/// nothing here wakes up.
pub(crate) struct Rtc {
    shared: Arc<Shared>,
    waker: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// The next interrupt is due earlier than before, or the VM is gone.
    changed: Condvar,
    now: fn() -> Duration,
    offset: ClockOffset,
    power: Arc<dyn PowerEvents>,
}

struct State {
    registers: Registers,
    line: Arc<dyn IrqLine>,
    /// What the line was last set to.
    level: bool,
    /// Whether the alarm was one of its reasons.
    alarm: bool,
    /// What the thread waits for.
    awaited: Option<Nanos>,
    over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos::try_from((self.now)().as_nanos()).unwrap_or(Nanos::MAX)
    }

    /// The line and the power management block follow the registers.
    fn settle(&self, state: &mut State) {
        let (level, alarm) = (state.registers.interrupts(), state.registers.alarms());
        if alarm && !state.alarm {
            self.power.rtc_alarm();
        }
        state.alarm = alarm;
        if level != state.level {
            state.level = level;
            if let Err(error) = state.line.set_level(level) {
                tracing::warn!(%error, level, "cannot set the interrupt line of the real-time clock");
            }
        }
    }

    /// After an access. Wakes the thread if it would sleep too long.
    fn settle_and_wake(&self, state: &mut State) {
        self.settle(state);
        if let Some(due) = state.registers.deadline()
            && state.awaited.is_none_or(|awaited| due < awaited)
        {
            self.changed.notify_one();
        }
    }

    /// Raises the line when it is due.
    fn run(&self) {
        let mut state = self.state();
        while !state.over {
            let now = self.now();
            state.registers.advance(now);
            self.settle(&mut state);
            state.awaited = state.registers.deadline();
            state = match state.awaited {
                Some(due) => {
                    let left = u64::try_from(due - now).map_or(Duration::ZERO, Duration::from_nanos);
                    let waited = self.changed.wait_timeout(state, left.min(LONGEST_WAIT));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Rtc {
    /// A clock that is as far from the host's as the guest has set it. It interrupts on `line`; the alarm shows in
    /// `power` too. `memory` sets bytes beside the clock, by index.
    pub(crate) fn new(
        line: Arc<dyn IrqLine>,
        power: Arc<dyn PowerEvents>,
        offset: ClockOffset,
        memory: &[(u8, u8)],
    ) -> io::Result<Self> {
        let host = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut rtc = Self::with_clock(host, line, power, offset);
        let mut state = rtc.shared.state();
        memory.iter().for_each(|(index, value)| state.registers.store(*index, *value));
        drop(state);
        let waking = rtc.shared.clone();
        let builder = std::thread::Builder::new().name("clock".to_owned()).stack_size(STACK);
        rtc.waker = Some(builder.spawn(move || waking.run())?);
        Ok(rtc)
    }

    fn with_clock(
        now: fn() -> Duration,
        line: Arc<dyn IrqLine>,
        power: Arc<dyn PowerEvents>,
        offset: ClockOffset,
    ) -> Self {
        let time = Nanos::try_from(now().as_nanos()).unwrap_or(Nanos::MAX);
        let registers = Registers::new(offset.get(), time);
        let state = State { registers, line, level: false, alarm: false, awaited: None, over: false };
        let shared = Shared { state: Mutex::new(state), changed: Condvar::new(), now, offset, power };
        Self { shared: Arc::new(shared), waker: None }
    }
}

impl Drop for Rtc {
    fn drop(&mut self) {
        self.shared.state().over = true;
        self.shared.changed.notify_one();
        if self.waker.take().is_some_and(|waker| waker.join().is_err()) {
            tracing::error!("the clock's thread panicked");
        }
    }
}

impl Section for Rtc {
    const TAG: &'static str = "mc146818";
    const VERSION: u16 = 1;
    type State = RtcState;

    fn save(&self) -> Result<RtcState, SectionError> {
        Ok(self.shared.state().registers.save(self.shared.now()))
    }

    fn load(&self, state: RtcState) -> Result<(), SectionError> {
        let mut ours = self.shared.state();
        ours.registers.restore(state, self.shared.now())?;
        self.shared.offset.set(ours.registers.offset());
        // One that is flagged has shown in the power management block before.
        ours.alarm = ours.registers.alarms();
        self.shared.settle_and_wake(&mut ours);
        Ok(())
    }
}

impl BusDevice for Rtc {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        if let (1, [byte]) = (offset, data) {
            let mut state = self.shared.state();
            *byte = state.registers.read(self.shared.now());
            self.shared.settle_and_wake(&mut state);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut state = self.shared.state();
        match (offset, data) {
            (0, &[index]) => state.registers.select(index),
            (1, &[value]) => {
                state.registers.write(value, self.shared.now());
                self.shared.offset.set(state.registers.offset());
                self.shared.settle_and_wake(&mut state);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
