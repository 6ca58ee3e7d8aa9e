//! The hotplug controller: three registers of 32 bits with a bit for each slot of the root bus.
//!
//! | Offset | Read | Write |
//! | --- | --- | --- |
//! | 0 | slots that something was put into, since the last read | ignored |
//! | 4 | slots that are to be ejected, since the last read | ignored |
//! | 8 | zero | ejects the slots whose bits are set |
//!
//! The general-purpose event of hotplug makes the guest read the first two (`acpi::hotplug`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::bus::BusDevice;
use crate::legacy::PowerManagement;
use crate::pci::{Address, Function, Root, RootError};
use crate::state::{Section, SectionError};

const EJECT: u64 = 8;

/// Called with what was in a slot, which is off the bus and detached.
type Ejected = Box<dyn Fn(u8, Arc<dyn Function>) + Send + Sync>;

/// The registers, on ports.
///
/// A guest may eject what is in a hotplug slot at any time; other slots are left alone.
pub(crate) struct Controller {
    root: Weak<Root>,
    power: Arc<PowerManagement>,
    /// The hotplug slots.
    mask: u32,
    registers: Mutex<Registers>,
    ejected: Ejected,
}

#[derive(Default)]
struct Registers {
    plugged: u32,
    requested: u32,
}

fn bit(slot: u8) -> u32 {
    1_u32.checked_shl(slot.into()).unwrap_or(0)
}

impl Controller {
    /// For the slots of `mask`; what the guest ejects goes to `ejected`.
    pub(crate) fn new(root: &Arc<Root>, power: Arc<PowerManagement>, mask: u32, ejected: Ejected) -> Self {
        Self { root: Arc::downgrade(root), power, mask, registers: Mutex::default(), ejected }
    }

    fn registers(&self) -> MutexGuard<'_, Registers> {
        self.registers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hotplug slots, a bit for each.
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// The hotplug slots, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u8> + use<> {
        slots(self.mask)
    }

    /// Puts `function` into a hotplug slot, and has the guest look.
    pub(crate) fn plug(&self, slot: u8, function: Arc<dyn Function>) -> Result<(), RootError> {
        // Without the bus there is no guest either.
        let Some(root) = self.root.upgrade() else { return Ok(()) };
        // That was for what was in the slot before. A guest that sees the next device must not be asked for it.
        self.registers().requested &= !bit(slot);
        root.hot_add(Address::root(slot), function)?;
        self.registers().plugged |= bit(slot) & self.mask;
        self.power.raise_hotplug();
        Ok(())
    }

    /// Requests that the guest ejects what is in a slot.
    pub(crate) fn request_eject(&self, slot: u8) {
        self.registers().requested |= bit(slot) & self.mask;
        self.power.raise_hotplug();
    }

    fn eject(&self, slot: u8) {
        let function = self.root.upgrade().and_then(|root| root.remove(Address::root(slot)));
        let mut registers = self.registers();
        registers.plugged &= !bit(slot);
        registers.requested &= !bit(slot);
        drop(registers);
        if let Some(function) = function {
            function.detach();
            (self.ejected)(slot, function);
        }
    }
}

/// The slots whose bits are set.
pub(crate) fn slots(mask: u32) -> impl Iterator<Item = u8> + use<> {
    (0..32).filter(move |slot| mask & bit(*slot) != 0)
}

impl BusDevice for Controller {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let mut registers = self.registers();
        for (at, byte) in (offset..).zip(data) {
            let shift = u32::try_from(at % 4 * 8).unwrap_or(0);
            let register = match at / 4 {
                0 => &mut registers.plugged,
                1 => &mut registers.requested,
                _ => {
                    *byte = 0;
                    continue;
                }
            };
            let [value, ..] = (*register >> shift).to_le_bytes();
            *byte = value;
            *register &= !(0xff << shift);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut ejects = 0;
        for (at, byte) in (offset..).zip(data) {
            if let Some(shift) = at.checked_sub(EJECT).and_then(|at| u32::try_from(at * 8).ok()) {
                ejects |= u32::from(*byte).checked_shl(shift).unwrap_or(0);
            }
        }
        slots(ejects & self.mask).for_each(|slot| self.eject(slot));
    }
}

/// The mask of the slots; where nothing is attached, the registers are of no use. A VM to which something is attached is not saved: a
/// VM that is loaded is built from its configuration, which does not have that.
impl Section for Controller {
    const TAG: &'static str = "pci-hotplug";
    const VERSION: u16 = 1;
    type State = u32;

    fn save(&self) -> Result<u32, SectionError> {
        let taken = self.root.upgrade().map(|root| root.addresses()).unwrap_or_default();
        match taken.iter().any(|address| self.mask & bit(address.device()) != 0) {
            true => {
                Err(SectionError::Unsavable("devices were attached to the running VM: detach them first"))
            }
            false => Ok(self.mask),
        }
    }

    fn load(&self, mask: u32) -> Result<(), SectionError> {
        match mask == self.mask {
            true => Ok(()),
            false => Err(SectionError::Invalid("it has other hotplug slots")),
        }
    }
}
