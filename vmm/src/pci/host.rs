use std::sync::{Mutex, PoisonError};

use super::{ConfigSpace, ConfigState, Decoding, Function, Identity};
use crate::bus::BusRange;
use crate::layout::ECAM_START;
use crate::state::{AnySection, Section, SectionError};

const PCIEXBAR: usize = 0x60;
const ENABLE: u64 = 1;

/// The memory controller hub of a Q35 (82G33 family datasheet, section 5): firmware identifies the platform by it.
///
/// PCIEXBAR is live; the shadowing (PAM) and SMRAM registers only keep what is written to them.
pub(super) struct HostBridge {
    config: Mutex<ConfigSpace>,
}

impl HostBridge {
    pub(super) fn new() -> Self {
        let mut config = ConfigSpace::new(Identity {
            vendor: 0x8086,
            device: 0x29c0,
            revision: 0,
            class: 0x06_00_00,
            subsystem: (0x1af4, 0x1100),
        });
        config.set(PCIEXBAR, &(ECAM_START | ENABLE).to_le_bytes());
        config.allow(PCIEXBAR, &0x0000_007f_fc00_0007_u64.to_le_bytes());
        // PAM0 to PAM6, then LAC, and SMRAM with ESMRAMC.
        config.allow(0x90, &[0xff; 8]);
        config.allow(0x9d, &[0xff; 2]);
        config.set(0x9d, &[0x02]);
        Self { config: Mutex::new(config) }
    }

    /// Where PCIEXBAR puts the memory-mapped configuration space (datasheet, section 5.1.16).
    pub(super) fn ecam(&self) -> Option<BusRange> {
        decode(self.config.lock().unwrap_or_else(PoisonError::into_inner).u64(PCIEXBAR))
    }
}

fn decode(pciexbar: u64) -> Option<BusRange> {
    let shift = match (pciexbar >> 1) & 3 {
        0 => 28,
        1 => 27,
        2 => 26,
        _ => return None,
    };
    let base = pciexbar & 0x7f_ffff_ffff & !((1 << shift) - 1);
    (pciexbar & ENABLE != 0).then(|| BusRange::new(base, 1 << shift)).flatten()
}

impl Section for HostBridge {
    const TAG: &'static str = "host-bridge";
    const VERSION: u16 = 1;
    type State = ConfigState;

    fn save(&self) -> Result<ConfigState, SectionError> {
        Ok(self.config.lock().unwrap_or_else(PoisonError::into_inner).save())
    }

    fn load(&self, state: ConfigState) -> Result<(), SectionError> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).load(&state)
    }
}

impl Function for HostBridge {
    fn name(&self) -> &'static str {
        "host bridge"
    }

    fn section(&self) -> Result<&dyn AnySection, SectionError> {
        Ok(self)
    }

    fn read_config(&self, register: u16, data: &mut [u8]) {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).read(register, data);
    }

    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let before = config.u64(PCIEXBAR);
        config.write(register, data);
        if config.u64(PCIEXBAR) == before { Decoding::Same } else { Decoding::Changed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pciexbar_decodes_base_and_length() {
        let range = BusRange::new;
        for (register, want) in [
            (0xb000_0001, range(0xb000_0000, 0x1000_0000)),
            (0xe000_0001, range(0xe000_0000, 0x1000_0000)),
            (0xe800_0003, range(0xe800_0000, 0x0800_0000)),
            (0xec00_0005, range(0xec00_0000, 0x0400_0000)),
            (0x10_0000_0001, range(0x10_0000_0000, 0x1000_0000)),
            (0xb000_0000, None),
            (0xb000_0007, None),
        ] {
            assert_eq!(decode(register), want, "{register:#x}");
        }
    }
}
