use std::sync::{Arc, Mutex, PoisonError};

use super::intx::Pirqs;
use super::{ConfigSpace, ConfigState, Decoding, Function, Identity};
use crate::layout::{PIRQ_ISA, PIRQS, PM_PORT};
use crate::state::{AnySection, Section, SectionError};

/// The routing registers of PIRQA and of PIRQE, with three more behind each.
const ROUTES: [u16; 2] = [0x60, 0x68];

/// Where firmware puts the chipset's memory-mapped registers.
const RCBA: u32 = 0xfed1_c000;

/// The LPC bridge of an ICH9 (ICH9 datasheet, section 13.1): firmware reads the power management base from it and
/// writes interrupt routing into it. Only that has an effect, the other registers keep what is written: the power management block stays where the
/// layout puts it, where firmware puts it too.
pub(super) struct Lpc {
    config: Mutex<ConfigSpace>,
    pirqs: Arc<Pirqs>,
}

impl Lpc {
    pub(super) fn new(pirqs: Arc<Pirqs>) -> Self {
        let mut config = ConfigSpace::new(Identity {
            vendor: 0x8086,
            device: 0x2918,
            revision: 2,
            class: 0x06_01_00,
            subsystem: (0x1af4, 0x1100),
        });
        config.set_multifunction();
        // PMBASE: bits 15-7, bit 0 is set for I/O space. ACPI_CNTL: bit 7 enables the block.
        config.set(0x40, &(u32::from(PM_PORT) | 1).to_le_bytes());
        config.allow(0x40, &0xff80_u32.to_le_bytes());
        config.set(0x44, &[0x80]);
        config.allow(0x44, &[0x87]);
        // As firmware leaves them, for a kernel that is started without any.
        for at in ROUTES {
            config.set(at.into(), &PIRQ_ISA);
            config.allow(at.into(), &[0x8f; 4]);
        }
        // RCBA: bits 31-14 and enable, as firmware leaves it. Nothing answers there, by which Linux learns that there
        // is no watchdog.
        config.set(0xf0, &(RCBA | 1).to_le_bytes());
        config.allow(0xf0, &0xffff_c001_u32.to_le_bytes());
        let lpc = Self { config: Mutex::new(config), pirqs };
        lpc.pirqs.route(lpc.routes());
        lpc
    }

    fn routes(&self) -> [u8; PIRQS] {
        let config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let mut routes = [0; PIRQS];
        for (to, at) in routes.chunks_mut(4).zip(ROUTES) {
            config.read(at, to);
        }
        routes
    }
}

impl Section for Lpc {
    const TAG: &'static str = "lpc-bridge";
    const VERSION: u16 = 1;
    type State = ConfigState;

    fn save(&self) -> Result<ConfigState, SectionError> {
        Ok(self.config.lock().unwrap_or_else(PoisonError::into_inner).save())
    }

    fn load(&self, state: ConfigState) -> Result<(), SectionError> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).load(&state)?;
        self.pirqs.route(self.routes());
        Ok(())
    }
}

impl Function for Lpc {
    fn name(&self) -> &'static str {
        "LPC bridge"
    }

    fn section(&self) -> Result<&dyn AnySection, SectionError> {
        Ok(self)
    }

    fn read_config(&self, register: u16, data: &mut [u8]) {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).read(register, data);
    }

    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).write(register, data);
        self.pirqs.route(self.routes());
        Decoding::Same
    }
}
