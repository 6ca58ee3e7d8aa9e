use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;

use rustix::rand::{GetRandomFlags, getrandom};

use super::description::{Description, describe};
use super::file::{self, Payload, Record, SaveId};
use super::{LoadError, SaveError, SavedVm, SharedSection, core_dump, ram};
use crate::config::VmConfig;
use crate::memory::GuestMemory;
use crate::pci::Root;
use crate::vcpu::{Vcpu, VcpuControl};

/// What there is of a VM to be saved: all sections but those of vCPUs, in the order in which they are loaded.
pub(crate) struct Saver {
    configuration: Description,
    memory: GuestMemory,
    pci: Arc<Root>,
    /// Before those of the functions on the PCI bus.
    devices: Vec<(&'static str, SharedSection)>,
    /// After devices, which set the levels of interrupt lines, and after vCPUs, which interrupts are delivered to.
    kernel: Vec<(&'static str, SharedSection)>,
    /// Last: it is set to when the guest was paused.
    clock: (&'static str, SharedSection),
}

impl Saver {
    pub(crate) fn new(
        config: &VmConfig,
        (memory, pci): (GuestMemory, Arc<Root>),
        devices: Vec<(&'static str, SharedSection)>,
        (kernel, clock): (Vec<(&'static str, SharedSection)>, SharedSection),
    ) -> Self {
        Self { configuration: describe(config), memory, pci, devices, kernel, clock: ("clock", clock) }
    }

    /// Writes the state of a VM whose vCPUs are paused by `vcpus`. Writes nothing if a part cannot be saved.
    pub(crate) fn save(
        &self,
        vcpus: &VcpuControl,
        state: &mut dyn Write,
        ram: &File,
    ) -> Result<(), SaveError> {
        if let Some(busy) = self.pci.pause_all() {
            return Err(SaveError::Busy(busy));
        }
        let mut sections = Vec::new();
        let mut add = |name: String, record: Result<Record, _>| match record {
            Ok(record) => {
                sections.push(record);
                Ok(())
            }
            Err(source) => Err(SaveError::Section { name, source }),
        };
        let shared = |(name, section): &(&'static str, SharedSection)| {
            ((*name).to_owned(), Record::of(name, section.as_ref()))
        };
        for (name, record) in self.devices.iter().map(shared) {
            add(name, record)?;
        }
        for (name, function) in self.pci.named_functions() {
            let record = function.section().and_then(|section| Record::of(&name, section));
            add(name, record)?;
        }
        for (name, record) in self.kernel.iter().map(shared) {
            add(name, record)?;
        }
        let (name, record) = shared(&self.clock);
        add(name, record)?;
        let saved = vcpus.visit(|vcpu| {
            let name = vcpu_name(vcpu.number());
            let record = Record::of(&name, vcpu);
            (name, record)
        });
        for (name, record) in saved.ok_or(SaveError::Over)? {
            add(name, record)?;
        }
        let id = random().map_err(SaveError::State)?;
        ram::write(&self.memory, id, ram).map_err(SaveError::Ram)?;
        let payload = Payload { id, configuration: self.configuration.clone(), sections };
        file::write(&payload, state).map_err(SaveError::State)
    }

    /// Writes the RAM of a VM whose vCPUs are paused by `vcpus`, and their registers, into an empty file.
    pub(crate) fn dump(
        &self,
        vcpus: &VcpuControl,
        file: &File,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), SaveError> {
        if let Some(busy) = self.pci.pause_all() {
            return Err(SaveError::Busy(busy));
        }
        let read = vcpus.visit(|vcpu| (vcpu_name(vcpu.number()), vcpu.registers()));
        let registers = read
            .ok_or(SaveError::Over)?
            .into_iter()
            .map(|(name, registers)| registers.map_err(|source| SaveError::Section { name, source }));
        let registers: Vec<_> = registers.collect::<Result<_, _>>()?;
        core_dump::write(&self.memory, &registers, file, is_over)
            .map_err(|error| if is_over() { SaveError::Over } else { SaveError::Ram(error) })
    }

    /// Loads a state into a VM that was built and did not run.
    pub(crate) fn load(&self, saved: &SavedVm, vcpus: &[Vcpu]) -> Result<(), LoadError> {
        let mut sections = saved.sections();
        for (name, section) in &self.devices {
            sections.load(name, section.as_ref())?;
        }
        let functions = self.pci.named_functions();
        for (name, function) in &functions {
            let failed = |source| LoadError::Section { name: name.clone(), source };
            sections.load(name, function.section().map_err(failed)?)?;
            self.pci.follow_loaded();
        }
        for vcpu in vcpus {
            sections.load(&vcpu_name(vcpu.number()), vcpu)?;
        }
        for (name, section) in &self.kernel {
            sections.load(name, section.as_ref())?;
        }
        let (name, clock) = &self.clock;
        sections.load(name, clock.as_ref())?;
        sections.finish()?;
        self.devices.iter().for_each(|(_, section)| section.after_load());
        for (name, function) in &functions {
            let failed = |source| LoadError::Section { name: name.clone(), source };
            function.section().map_err(failed)?.after_load();
        }
        Ok(())
    }
}

fn vcpu_name(number: u8) -> String {
    format!("vCPU {number}")
}

fn random() -> io::Result<SaveId> {
    let mut id = SaveId::default();
    getrandom(&mut id, GetRandomFlags::empty())?;
    Ok(id)
}
