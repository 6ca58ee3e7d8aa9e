//! A VM's life: built paused, started once, waited for, gone.

use std::fs::File;
use std::io::Write;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use crate::builder::{self, Assembly, BuildError};
use crate::config::VmConfig;
use crate::exit::{Exit, Outcome};
use crate::legacy::PowerEvents;
use crate::pci::Root;
use crate::serial::{SerialInput, SerialOutput};
use crate::state::{SaveError, SavedVm, Saver};
use crate::vcpu::{StartError, Vcpu, VcpuControl, VcpuPool};

/// A VM in the phase `S`: [`Paused`] or [`Running`].
///
/// Dropping it ends it: its threads are joined and nothing of it is left.
pub struct Vm<S> {
    state: S,
    /// A VM is moved between threads, not shared: `Controls` are what is shared.
    not_sync: PhantomData<std::cell::Cell<()>>,
}

/// Everything is built and no guest instruction has run.
pub struct Paused {
    vcpus: Vec<Vcpu>,
    assembly: Assembly,
}

/// The guest runs.
pub struct Running {
    // Dropped first: no vCPU runs once the devices and the memory go.
    vcpus: VcpuPool,
    assembly: Assembly,
}

impl Vm<Paused> {
    /// Builds `config`, whose serial port writes to `output`.
    ///
    /// Opens no path, and leaves `config` as it was: after the guest has reset itself, the same `config` is built
    /// again into one with fresh memory and fresh devices.
    pub fn build(config: &VmConfig, output: Box<dyn SerialOutput>) -> Result<Self, BuildError> {
        Self::make(config, output, None)
    }

    /// Builds `config` in the state of `saved`, whose configuration has to be equal as far as the guest can see it.
    ///
    /// Started, it goes on where the saved VM was paused: for its vCPUs no time has passed, and its real-time clock shows
    /// the host's time as before.
    pub fn load(
        config: &VmConfig,
        output: Box<dyn SerialOutput>,
        saved: &SavedVm,
    ) -> Result<Self, BuildError> {
        Self::make(config, output, Some(saved))
    }

    fn make(
        config: &VmConfig,
        output: Box<dyn SerialOutput>,
        saved: Option<&SavedVm>,
    ) -> Result<Self, BuildError> {
        let (assembly, vcpus) = builder::build(config, output, saved)?;
        Ok(Self { state: Paused { vcpus, assembly }, not_sync: PhantomData })
    }

    /// Lets the guest run: one thread for each vCPU.
    pub fn start(self) -> Result<Vm<Running>, StartError> {
        self.start_as(false)
    }

    /// The same, where each vCPU waits for [`Controls::resume`] before its first instruction.
    pub fn start_paused(self) -> Result<Vm<Running>, StartError> {
        self.start_as(true)
    }

    fn start_as(self, paused: bool) -> Result<Vm<Running>, StartError> {
        let Paused { vcpus, assembly } = self.state;
        let vcpus = VcpuPool::start(vcpus, assembly.outcome.clone(), &assembly.threads, paused)?;
        if !paused {
            // Those of a loaded VM.
            assembly.pci.resume();
            assembly.pci.set_running(true);
        }
        Ok(Vm { state: Running { vcpus, assembly }, not_sync: PhantomData })
    }
}

impl Vm<Running> {
    /// Handles for other threads.
    pub fn controls(&self) -> Controls {
        let power: Arc<dyn PowerEvents> = self.state.assembly.power.clone();
        Controls {
            outcome: self.state.assembly.outcome.clone(),
            power: Arc::downgrade(&power),
            vcpus: Arc::downgrade(self.state.vcpus.control()),
            pci: Arc::downgrade(&self.state.assembly.pci),
            saver: self.state.assembly.saver.as_ref().map(Arc::downgrade).unwrap_or_default(),
            serial: SerialInput::new(self.state.assembly.uart.clone()),
        }
    }

    /// Blocks until the guest is over, takes the VM down and returns how it ended.
    pub fn wait(self) -> Exit {
        let Running { vcpus, assembly } = self.state;
        let exit = assembly.outcome.wait();
        drop(vcpus);
        drop(assembly);
        exit
    }
}

/// What can be done to a running VM from any thread. Does nothing once the VM is gone.
#[derive(Clone)]
pub struct Controls {
    outcome: Arc<Outcome>,
    power: Weak<dyn PowerEvents>,
    vcpus: Weak<VcpuControl>,
    pci: Weak<Root>,
    saver: Weak<Saver>,
    serial: SerialInput,
}

impl Controls {
    /// Presses the ACPI power button: a guest that listens shuts itself down.
    pub fn power_button(&self) {
        if let Some(power) = self.power.upgrade() {
            power.press_power_button();
        }
    }

    /// Ends the VM at once.
    pub fn kill(&self) {
        self.outcome.report(Exit::Killed);
    }

    /// Presses the reset button: the VM is over, as by the guest's own reset.
    pub fn reset(&self) {
        self.outcome.report(Exit::Reset);
    }

    /// Stops the vCPUs; blocks until none of them runs. Devices go on.
    pub fn pause_vcpus(&self) {
        if let Some(vcpus) = self.vcpus.upgrade() {
            vcpus.pause();
        }
        self.set_running(false);
    }

    fn set_running(&self, runs: bool) {
        if let Some(pci) = self.pci.upgrade() {
            pci.set_running(runs);
        }
    }

    /// Stops the vCPUs, then the devices: blocks until no vCPU runs and no request is in flight. RAM and disks do not
    /// change until [`Self::resume`]. A device whose host does not answer is waited for 10 s, and named in the log.
    pub fn pause(&self) {
        self.pause_vcpus();
        if let Some(pci) = self.pci.upgrade() {
            pci.pause();
        }
    }

    /// Writes the VM's RAM to `ram` and all its other state to `state`, for [`Vm::load`]. Pauses the VM, which stays paused.
    ///
    /// Nothing is written if a part of the VM cannot be saved. A disk is not part of the state: it has to be as it is now
    /// when the VM is loaded.
    pub fn save(&self, state: &mut dyn Write, ram: &File) -> Result<(), SaveError> {
        self.pause();
        match (self.vcpus.upgrade(), self.saver.upgrade()) {
            (Some(vcpus), Some(saver)) if !self.outcome.is_over() => saver.save(&vcpus, state, ram),
            _ => Err(SaveError::Over),
        }
    }

    /// Writes the VM's RAM and the registers of its vCPUs to an empty file, as an ELF core file. Pauses the VM, which stays
    /// paused.
    pub fn dump(&self, file: &File) -> Result<(), SaveError> {
        self.pause();
        match (self.vcpus.upgrade(), self.saver.upgrade()) {
            (Some(vcpus), Some(saver)) if !self.outcome.is_over() => {
                saver.dump(&vcpus, file, &|| self.outcome.is_over())
            }
            _ => Err(SaveError::Over),
        }
    }

    /// Resumes the devices; vCPUs stay as they are.
    pub fn resume_devices(&self) {
        if let Some(pci) = self.pci.upgrade() {
            pci.resume();
        }
    }

    /// Resumes the devices and the vCPUs.
    pub fn resume(&self) {
        self.resume_devices();
        self.set_running(true);
        if let Some(vcpus) = self.vcpus.upgrade() {
            vcpus.resume();
        }
    }

    /// The gate of the serial port.
    pub fn serial_input(&self) -> SerialInput {
        self.serial.clone()
    }
}
