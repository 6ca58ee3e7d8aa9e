use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::bus::BusDevice;
use crate::exit::{Exit, Outcome};
use crate::state::{Section, SectionError};

/// RST_CPU of the reset control register: going from 0 to 1 resets.
const RESET_CPU: u8 = 1 << 2;
/// The bits that are kept: full reset and system reset.
const RESET_KEPT: u8 = 0b1010;
/// INIT_NOW of system control port A.
const FAST_RESET: u8 = 1 << 0;
/// A20 is always enabled.
const A20: u8 = 1 << 1;

/// The reset control register at port 0xCF9 (ICH9 datasheet, section 13.7.5).
pub(crate) struct ResetControl {
    outcome: Arc<Outcome>,
    kept: AtomicU8,
}

impl ResetControl {
    /// Reports the reset to `outcome`.
    pub(crate) fn new(outcome: Arc<Outcome>) -> Self {
        Self { outcome, kept: AtomicU8::new(0) }
    }
}

impl Section for ResetControl {
    const TAG: &'static str = "reset-control";
    const VERSION: u16 = 1;
    /// The register.
    type State = u8;

    fn save(&self) -> Result<u8, SectionError> {
        Ok(self.kept.load(Ordering::Relaxed))
    }

    fn load(&self, kept: u8) -> Result<(), SectionError> {
        self.kept.store(kept & RESET_KEPT, Ordering::Relaxed);
        Ok(())
    }
}

impl BusDevice for ResetControl {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(self.kept.load(Ordering::Relaxed));
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        let &[value] = data else { return };
        self.kept.store(value & RESET_KEPT, Ordering::Relaxed);
        if value & RESET_CPU != 0 {
            self.outcome.report(Exit::Reset);
        }
    }
}

/// System control port A (0x92): fast reset, and an A20 gate that is always open.
pub(crate) struct SystemControlA {
    outcome: Arc<Outcome>,
}

impl SystemControlA {
    /// Reports the reset to `outcome`.
    pub(crate) fn new(outcome: Arc<Outcome>) -> Self {
        Self { outcome }
    }
}

impl BusDevice for SystemControlA {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(A20);
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        if let &[value] = data
            && value & FAST_RESET != 0
        {
            self.outcome.report(Exit::Reset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_acpi_and_the_linux_way_of_reset_are_understood() {
        for writes in [&[0x06][..], &[0x02, 0x06], &[0x02, 0x0e]] {
            let outcome = Arc::new(Outcome::default());
            let control = ResetControl::new(outcome.clone());
            for value in writes {
                assert!(!outcome.is_over());
                control.write(0, &[*value]);
            }
            assert!(matches!(outcome.wait(), Exit::Reset), "{writes:x?}");
        }
    }

    #[test]
    fn opening_a20_is_no_reset() {
        let outcome = Arc::new(Outcome::default());
        let port = SystemControlA::new(outcome.clone());
        port.write(0, &[A20]);
        assert!(!outcome.is_over());
        port.write(0, &[A20 | FAST_RESET]);
        assert!(outcome.is_over());
    }
}
