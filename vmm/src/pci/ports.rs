use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use super::address::Register;
use super::root::Fabric;
use crate::bus::BusDevice;
use crate::layout::{PCI_CONFIG_PORT, RESET_PORT};
use crate::state::{Section, SectionError};

/// First data port, counted from the address port.
const DATA: u64 = 4;
const RESET: u64 = (RESET_PORT - PCI_CONFIG_PORT) as u64;

/// Configuration mechanism #1 (PCI 3.0, section 3.2.2.3.2): ports 0xCF8 to 0xCFF.
///
/// The reset control register 0xCF9 is in the middle of the address port; accesses of one byte there go to the device that
/// claimed it.
pub(super) struct ConfigPorts {
    fabric: Arc<Fabric>,
    selected: AtomicU32,
    reset: OnceLock<Arc<dyn BusDevice>>,
}

impl ConfigPorts {
    pub(super) fn new(fabric: Arc<Fabric>) -> Self {
        Self { fabric, selected: AtomicU32::new(0), reset: OnceLock::new() }
    }

    /// Whether it was not claimed before.
    pub(super) fn claim_reset(&self, device: Arc<dyn BusDevice>) -> bool {
        self.reset.set(device).is_ok()
    }

    fn register(&self, offset: u64) -> Option<Register> {
        let byte = u8::try_from(offset.checked_sub(DATA)?).ok()?;
        Register::from_ports(self.selected.load(Ordering::Relaxed), byte)
    }
}

impl Section for ConfigPorts {
    const TAG: &'static str = "pci-ports";
    const VERSION: u16 = 1;
    /// The address port.
    type State = u32;

    fn save(&self) -> Result<u32, SectionError> {
        Ok(self.selected.load(Ordering::Relaxed))
    }

    fn load(&self, selected: u32) -> Result<(), SectionError> {
        self.selected.store(selected, Ordering::Relaxed);
        Ok(())
    }
}

impl BusDevice for ConfigPorts {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        match (offset, data.len(), self.reset.get()) {
            (0, 4, _) => data.copy_from_slice(&self.selected.load(Ordering::Relaxed).to_le_bytes()),
            (RESET, 1, Some(device)) => device.read(0, data),
            _ => {
                if let Some(register) = self.register(offset) {
                    self.fabric.read(register, data);
                }
            }
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        match (offset, data, self.reset.get()) {
            (0, &[a, b, c, d], _) => self.selected.store(u32::from_le_bytes([a, b, c, d]), Ordering::Relaxed),
            (RESET, &[_], Some(device)) => device.write(0, data),
            _ => {
                if let Some(register) = self.register(offset) {
                    self.fabric.write(register, data);
                }
            }
        }
    }
}
