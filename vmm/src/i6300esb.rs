//! The watchdog of Intel's 6300ESB I/O controller hub, as far as Linux' `i6300esb.ko` drives it (datasheet, chapter 16): two
//! stages that the guest has to restart, and an action on the host when the second one ends.
//!
//! The interrupt or SMI at the end of the first stage is left out: drivers switch it off.

mod registers;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use vireo_vmconfig::WatchdogAction;

use registers::Registers;

use crate::bus::BusDevice;
use crate::config::Watchdog as WatchdogConfig;
use crate::exit::{Exit, Outcome};
use crate::legacy::PowerEvents;
use crate::pci::{
    BarKind, Bars, ConfigSpace, ConfigState, Decoding, Function, FunctionSpace, Identity, RootError, Slot,
};
use crate::state::{AnySection, Section, SectionError};

const BAR: (usize, BarKind) = (0, BarKind::Memory32 { prefetchable: false });
/// Of 16 bytes of registers: a page of its own.
const BAR_SIZE: u64 = 4096;
/// WDT configuration and lock, in the configuration space.
const CONFIG: u16 = 0x60;
const LOCK: u16 = 0x68;
/// Of the thread that waits for the end of a stage.
const STACK: usize = 64 << 10;

/// The device as a PCI function, with a thread that counts.
pub(crate) struct I6300Esb {
    space: FunctionSpace,
    timer: Arc<Timer>,
    waker: Mutex<Option<JoinHandle<()>>>,
}

/// The registers behind the BAR, and the time.
struct Timer {
    state: Mutex<State>,
    /// The stage ends at another time than before, or the VM is gone.
    changed: Condvar,
    outcome: Arc<Outcome>,
    power: Arc<dyn PowerEvents>,
    config: WatchdogConfig,
}

struct State {
    registers: Registers,
    /// Of the time that counts, when the stage ends.
    due: Option<Duration>,
    clock: Clock,
    over: bool,
}

/// The time that the VM has run.
struct Clock {
    before: Duration,
    /// `None` while the VM is paused.
    since: Option<Instant>,
}

impl Clock {
    fn now(&self) -> Duration {
        self.before.saturating_add(self.since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    fn run(&mut self, runs: bool) {
        self.before = self.now();
        self.since = runs.then(Instant::now);
    }
}

impl State {
    /// How long the stage lasts that ends by time; none while no time counts.
    fn left(&self) -> Option<Duration> {
        self.clock.since?;
        self.due.map(|due| due.saturating_sub(self.clock.now()))
    }
}

impl Timer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest, or the VM, did something that changes when the stage ends.
    fn restart(&self, state: &mut State) {
        let now = state.clock.now();
        state.due = state.registers.stage_length().map(|length| now.saturating_add(length));
        self.changed.notify_one();
    }

    /// Counts until the VM is gone.
    fn run(&self) {
        let mut state = self.state();
        while !state.over {
            state = match state.left() {
                Some(Duration::ZERO) => {
                    self.end_stage(&mut state);
                    state
                }
                Some(left) => {
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn end_stage(&self, state: &mut State) {
        if state.registers.end_stage() {
            tracing::warn!(action = %self.config.action(), "the guest's watchdog has expired");
            self.config.set_timed_out(true);
            match self.config.action() {
                WatchdogAction::Reset => self.outcome.report(Exit::Reset),
                WatchdogAction::PowerOff => self.outcome.report(Exit::WatchdogExpired),
                WatchdogAction::Shutdown => self.power.press_power_button(),
            }
        }
        self.restart(state);
    }
}

/// Registers are read and written in whole; an access that is none of one register's is dropped, and reads as zeros.
impl BusDevice for Timer {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if offset == registers::RELOAD && data.len() >= 2 {
            let status = registers::status(self.config.timed_out());
            data.iter_mut().zip(status.to_le_bytes()).for_each(|(to, from)| *to = from);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut bytes = [0; 4];
        match (bytes.get_mut(..data.len()), data.len()) {
            (Some(low), 1 | 2 | 4) => low.copy_from_slice(data),
            _ => return,
        }
        let mut state = self.state();
        let effect = state.registers.write(offset, u32::from_le_bytes(bytes));
        if effect.clears_status {
            self.config.set_timed_out(false);
        }
        if effect.restarts {
            self.restart(&mut state);
        }
    }
}

impl I6300Esb {
    /// A watchdog whose action is taken by `outcome` or `power`.
    pub(crate) fn new(
        config: &WatchdogConfig,
        outcome: Arc<Outcome>,
        power: Arc<dyn PowerEvents>,
    ) -> io::Result<Self> {
        let mut space = ConfigSpace::new(Identity {
            vendor: 0x8086,
            device: 0x25ab,
            revision: 0,
            class: 0x08_80_00,
            subsystem: (0x1af4, 0x1100),
        });
        let state = State {
            registers: Registers::default(),
            due: None,
            clock: Clock { before: Duration::ZERO, since: None },
            over: false,
        };
        let timer = Timer {
            state: Mutex::new(state),
            changed: Condvar::new(),
            outcome,
            power,
            config: config.clone(),
        };
        let timer = Arc::new(timer);
        let waking = timer.clone();
        let builder = std::thread::Builder::new().name("watchdog".to_owned()).stack_size(STACK);
        let waker = builder.spawn(move || waking.run())?;
        let mut bars = Bars::default();
        let weak: Arc<dyn BusDevice> = timer.clone();
        bars.add(&mut space, BAR, BAR_SIZE, Arc::downgrade(&weak));
        let space = FunctionSpace::new(space, bars);
        Ok(Self { space, timer, waker: Mutex::new(Some(waker)) })
    }
}

impl Function for I6300Esb {
    fn name(&self) -> &'static str {
        "watchdog"
    }

    fn read_config(&self, register: u16, data: &mut [u8]) {
        self.space.read(register, data);
        let state = self.timer.state();
        for (at, byte) in (register..).zip(data) {
            *byte = match at {
                CONFIG => state.registers.config(),
                LOCK => state.registers.lock(),
                _ => continue,
            };
        }
    }

    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        let mut state = self.timer.state();
        for (at, byte) in (register..).zip(data) {
            let restarts = match at {
                CONFIG => state.registers.set_config(*byte),
                LOCK => state.registers.set_lock(*byte),
                _ => false,
            };
            if restarts {
                self.timer.restart(&mut state);
            }
        }
        drop(state);
        self.space.write(register, data)
    }

    fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        self.space.attach(slot)
    }

    fn retry(&self) {
        self.space.retry();
    }

    /// While no vCPU runs, the guest can do nothing against its end.
    fn set_running(&self, runs: bool) {
        self.timer.state().clock.run(runs);
        self.timer.changed.notify_one();
    }

    fn section(&self) -> Result<&dyn AnySection, SectionError> {
        Ok(self)
    }

    fn stop(&self) {
        self.timer.state().over = true;
        self.timer.changed.notify_one();
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if waker.is_some_and(|waker| waker.join().is_err()) {
            tracing::error!("the watchdog's thread panicked");
        }
    }
}

impl Drop for I6300Esb {
    fn drop(&mut self) {
        self.stop();
    }
}

/// As it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WatchdogState {
    space: ConfigState,
    registers: Registers,
    /// Of the stage, if it runs.
    left: Option<Duration>,
    timed_out: bool,
}

impl Section for I6300Esb {
    const TAG: &'static str = "i6300esb";
    const VERSION: u16 = 1;
    type State = WatchdogState;

    fn save(&self) -> Result<WatchdogState, SectionError> {
        let space = self.space.save();
        let state = self.timer.state();
        let now = state.clock.now();
        Ok(WatchdogState {
            space,
            registers: state.registers,
            left: state.due.map(|due| due.saturating_sub(now)),
            timed_out: self.timer.config.timed_out(),
        })
    }

    fn load(&self, saved: WatchdogState) -> Result<(), SectionError> {
        let registers = saved.registers.checked()?;
        let longest = registers.stage_length().map(|_| Registers::longest_stage());
        if saved.left.is_some() != longest.is_some() || saved.left > longest {
            return Err(SectionError::Invalid("a watchdog has no such time left"));
        }
        self.space.load(&saved.space)?;
        let mut state = self.timer.state();
        state.registers = registers;
        let now = state.clock.now();
        state.due = saved.left.map(|left| now.saturating_add(left));
        self.timer.config.set_timed_out(saved.timed_out);
        self.timer.changed.notify_one();
        Ok(())
    }
}
