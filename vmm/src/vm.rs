//! A machine's life: built paused, started once, waited for, gone.

mod outcome;

use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use crate::builder::{self, Assembly, BuildError};
use crate::config::Machine;
use crate::legacy::PowerEvents;
use crate::serial::{SerialInput, SerialOutput};
use crate::vcpu::{Crew, Processors, Vcpu};

pub use crate::vcpu::{RunError, StartError};
pub use outcome::Exit;
pub(crate) use outcome::Outcome;

/// A machine in the phase `S`: [`Paused`] or [`Running`].
///
/// Dropping it ends it: its threads are joined and nothing of it is left.
pub struct Vm<S> {
    state: S,
    /// A machine is moved between threads, not shared: `Controls` are what is shared.
    not_sync: PhantomData<std::cell::Cell<()>>,
}

/// Everything is in place and no guest instruction has run.
pub struct Paused {
    vcpus: Vec<Vcpu>,
    assembly: Assembly,
}

/// The guest runs.
pub struct Running {
    // Dropped first: no processor runs once the devices and the memory go.
    processors: Processors,
    assembly: Assembly,
}

impl Vm<Paused> {
    /// Builds `machine`, whose serial port writes to `output`.
    ///
    /// Opens no path, and leaves `machine` as it was: after the guest has reset itself, the same `machine` is built
    /// again into one with fresh memory and fresh devices.
    pub fn build(machine: &Machine, output: Box<dyn SerialOutput>) -> Result<Self, BuildError> {
        let (assembly, vcpus) = builder::build(machine, output)?;
        Ok(Self { state: Paused { vcpus, assembly }, not_sync: PhantomData })
    }

    /// Lets the guest run: one thread for each processor.
    pub fn start(self) -> Result<Vm<Running>, StartError> {
        self.start_as(false)
    }

    /// The same, where each processor waits for [`Controls::resume`] before its first instruction.
    pub fn start_paused(self) -> Result<Vm<Running>, StartError> {
        self.start_as(true)
    }

    fn start_as(self, paused: bool) -> Result<Vm<Running>, StartError> {
        let Paused { vcpus, assembly } = self.state;
        let processors = Processors::start(vcpus, assembly.outcome.clone(), paused)?;
        Ok(Vm { state: Running { processors, assembly }, not_sync: PhantomData })
    }
}

impl Vm<Running> {
    /// Handles for other threads.
    pub fn controls(&self) -> Controls {
        let power: Arc<dyn PowerEvents> = self.state.assembly.power.clone();
        Controls {
            outcome: self.state.assembly.outcome.clone(),
            power: Arc::downgrade(&power),
            crew: Arc::downgrade(self.state.processors.crew()),
            serial: SerialInput::new(self.state.assembly.uart.clone()),
        }
    }

    /// Blocks until the guest is over, takes the machine down and says how it ended.
    pub fn wait(self) -> Exit {
        let Running { processors, assembly } = self.state;
        let exit = assembly.outcome.wait();
        drop(processors);
        drop(assembly);
        exit
    }
}

/// What can be done to a running machine from any thread. Does nothing once the machine is gone.
#[derive(Clone)]
pub struct Controls {
    outcome: Arc<Outcome>,
    power: Weak<dyn PowerEvents>,
    crew: Weak<Crew>,
    serial: SerialInput,
}

impl Controls {
    /// Presses the ACPI power button: a guest that listens shuts itself down.
    pub fn power_button(&self) {
        if let Some(power) = self.power.upgrade() {
            power.press_power_button();
        }
    }

    /// Ends the machine now, as pulling the plug does.
    pub fn kill(&self) {
        self.outcome.report(Exit::Killed);
    }

    /// Presses the reset button: the machine is over, as by the guest's own reset.
    pub fn reset(&self) {
        self.outcome.report(Exit::Reset);
    }

    /// Stops the processors; blocks until none of them runs. Devices go on with what they were asked for.
    pub fn pause(&self) {
        if let Some(crew) = self.crew.upgrade() {
            crew.pause();
        }
    }

    /// Lets the processors go on.
    pub fn resume(&self) {
        if let Some(crew) = self.crew.upgrade() {
            crew.resume();
        }
    }

    /// The gate of the serial port.
    pub fn serial_input(&self) -> SerialInput {
        self.serial.clone()
    }
}
