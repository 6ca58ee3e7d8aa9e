//! The SATA controller of an ICH9 in AHCI mode (AHCI 1.3.1): six ports with disks or CD-ROM drives.
//!
//! Register accesses run on vCPU threads and only change the registers of a port under its own lock ([`port`]). Each
//! port with a drive has a worker ([`worker`]) that takes command slots, reads their command tables once
//! ([`slot`]), has the drive carry them out ([`drive`]), and posts the outcome. Command lists, tables and the
//! regions they name are the guest's: every one is checked against RAM, and no list is followed further than the
//! longest command needs.

mod drive;
mod fis;
mod hba;
mod identify;
mod packet;
mod port;
mod section;
mod slot;
mod taskfile;
#[cfg(test)]
mod tests;
mod worker;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use vireo_vmconfig::DiskDevice;

use self::drive::Drive;
use self::hba::Hba;
use self::port::Port;
use self::worker::Worker;
use crate::block::ImageError;
use crate::bus::BusDevice;
use crate::config::{Disk, ThreadHook};
use crate::irq::MsiRouter;
use crate::memory::GuestMemory;
use crate::pci::{Address, BarKind, Bars, ConfigSpace, Decoding, Function, Identity, Msi, RootError, Slot};
use crate::state::{AnySection, SectionError};

/// Where firmware looks for it: a function of the ICH9 beside the LPC bridge.
pub(crate) const ADDRESS: Address = Address::root_function(31, 2);
/// How many drives fit.
pub(crate) const PORTS: usize = crate::config::SATA_PORTS;
/// That of an ICH9.
const IDENTITY: Identity =
    Identity { vendor: 0x8086, device: 0x2922, revision: 2, class: 0x01_06_01, subsystem: (0x1af4, 0x1100) };
const BAR: (usize, BarKind) = (5, BarKind::Memory32 { prefetchable: false });
const BAR_SIZE: u64 = 0x1000;
/// Ports' registers begin here, and are this far apart.
const PORT_START: u64 = 0x100;
const PORT_SIZE: u64 = 0x80;

/// Why the controller could not be made.
#[derive(Debug, thiserror::Error)]
pub enum AhciError {
    /// A drive's image cannot be used.
    #[error("cannot use the image of SATA drive number {number}")]
    Image {
        /// Counted from 1.
        number: usize,
        /// Why.
        #[source]
        source: ImageError,
    },
    /// No interrupt vector, or no thread for a drive.
    #[error("no resources for the SATA controller")]
    Host(#[from] io::Error),
}

/// The controller with its drives.
pub(crate) struct Controller {
    hba: Arc<Hba>,
    ports: Vec<Arc<Port>>,
    config: Mutex<Config>,
    workers: Mutex<Vec<Worker>>,
}

struct Config {
    space: ConfigSpace,
    bars: Bars,
}

impl Controller {
    /// With a drive at each port from the first, at most [`PORTS`].
    pub(crate) fn new(
        drives: &[(&Disk, DiskDevice)],
        memory: &GuestMemory,
        router: &dyn MsiRouter,
        threads: &ThreadHook,
    ) -> Result<Arc<Self>, AhciError> {
        let mut space = ConfigSpace::new(IDENTITY);
        space.set_interrupt_pin();
        let hba = Arc::new(Hba::new(Msi::new(router, &mut space)?));
        let mut opened = Vec::new();
        for (number, (disk, device)) in (1..).zip(drives) {
            let drive: Box<dyn Drive> = match device {
                DiskDevice::Disk => drive::Disk::open(disk).map(|disk| Box::new(disk) as _),
                DiskDevice::CdRom => packet::CdRom::open(disk).map(|drive| Box::new(drive) as _),
            }
            .map_err(|source| AhciError::Image { number, source })?;
            opened.push(drive);
        }
        let mut opened = opened.into_iter();
        let (mut ports, mut workers) = (Vec::new(), Vec::new());
        for index in 0..PORTS {
            let drive = opened.next();
            let port = Arc::new(Port::new(index, hba.clone(), drive.as_deref().map(Drive::ready)));
            if let Some(drive) = drive {
                workers.push(Worker::spawn(port.clone(), drive, memory.clone(), threads.clone())?);
            }
            ports.push(port);
        }
        Ok(Arc::new_cyclic(|me: &Weak<Self>| {
            let mut bars = Bars::default();
            bars.add(&mut space, BAR, BAR_SIZE, me.clone());
            let config = Mutex::new(Config { space, bars });
            Self { hba, ports, config, workers: Mutex::new(workers) }
        }))
    }

    fn config(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Worker>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn port(&self, offset: u64) -> Option<(&Port, u64)> {
        let at = offset.checked_sub(PORT_START)?;
        let port = usize::try_from(at / PORT_SIZE).ok().and_then(|index| self.ports.get(index))?;
        Some((port, at % PORT_SIZE))
    }

    fn read32(&self, offset: u64) -> u32 {
        match self.port(offset) {
            Some((port, register)) => port.read(register),
            None => self.hba.read(offset, || self.ports.iter().any(|port| port.is_busy())),
        }
    }

    fn write32(&self, offset: u64, value: u32) {
        if let Some((port, register)) = self.port(offset) {
            return port.write(register, value);
        }
        match self.hba.write(offset, value) {
            hba::Effect::None => {}
            hba::Effect::Reset => self.ports.iter().for_each(|port| port.reset()),
            // What is still pending in a port shows again at once.
            hba::Effect::Acknowledged => self.ports.iter().for_each(|port| port.signal()),
        }
    }
}

/// Registers are read in any width, and written in whole dwords, as the specification requires (section 3).
impl BusDevice for Controller {
    fn read(&self, offset: u64, data: &mut [u8]) {
        for (at, byte) in (offset..).zip(data) {
            let word = self.read32(at & !3).to_le_bytes();
            *byte = usize::try_from(at & 3).ok().and_then(|at| word.get(at)).copied().unwrap_or(0xff);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let (words, rest) = data.as_chunks::<4>();
        if !offset.is_multiple_of(4) || !rest.is_empty() {
            tracing::debug!(offset, len = data.len(), "a narrow write to SATA registers is dropped");
            return;
        }
        for (at, word) in (offset..).step_by(4).zip(words) {
            self.write32(at, u32::from_le_bytes(*word));
        }
    }
}

impl Function for Controller {
    fn name(&self) -> &'static str {
        "SATA controller"
    }

    fn section(&self) -> Result<&dyn AnySection, SectionError> {
        Ok(self)
    }

    fn read_config(&self, register: u16, data: &mut [u8]) {
        let mut config = self.config();
        config.space.set_interrupt_status(self.hba.intx().is_wanted());
        config.space.read(register, data);
    }

    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        let Config { space, bars } = &mut *self.config();
        space.write(register, data);
        self.hba.follow(space);
        for port in &self.ports {
            port.set_bus_master(space.is_bus_master());
        }
        bars.follow(space)
    }

    fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        let Config { space, bars } = &mut *self.config();
        slot.connect(self.hba.intx());
        bars.attach(space, slot)
    }

    fn retry(&self) {
        self.config().bars.retry();
    }

    fn pause(&self) -> bool {
        let workers = self.workers();
        // Beside each other: each flushes its disk.
        workers.iter().for_each(Worker::ask_to_pause);
        workers.iter().filter(|worker| !worker.is_paused_in_time()).count() == 0
    }

    fn resume(&self) {
        self.workers().iter().for_each(Worker::resume);
    }

    fn stop(&self) {
        self.workers().clear();
    }
}

/// For fuzzing: has all slots of the list at address 0 carried out by a disk and by a CD-ROM drive, without a worker.
#[cfg(fuzzing)]
pub(crate) fn fuzz_slots(memory: &GuestMemory, disk: &Disk) {
    let drives: [Box<dyn Drive>; 2] = [
        Box::new(drive::Disk::open(disk).expect("an image")),
        Box::new(packet::CdRom::open(disk).expect("an image")),
    ];
    for mut drive in drives {
        for number in 0..32 {
            let Ok(command) = slot::Command::read(memory, 0, number) else { continue };
            let room = command.data.len();
            let outcome = drive.execute(memory, command);
            assert!(outcome.transferred <= room, "more than there is room for");
            slot::set_transferred(memory, 0, number, outcome.transferred);
        }
    }
}
