use std::sync::Arc;

use crate::bus::BusDevice;
use crate::exit::{Exit, Outcome};

/// Offset of the status and command register from port 0x60.
const COMMAND: u64 = 4;
/// Pulses the output port's line 0, which is wired to the reset of the VM.
const PULSE_RESET: u8 = 0xfe;

/// Where a PC has its keyboard controller: the reset line works, which every kernel knows. There is no controller and
/// no keyboard.
///
/// Reads give ones, as where nothing answers. Firmware and boot loaders take that for what it is; of a status of
/// zero, they would wait for answers that never come.
pub(crate) struct I8042 {
    outcome: Arc<Outcome>,
}

impl I8042 {
    /// Reports the reset to `outcome`.
    pub(crate) fn new(outcome: Arc<Outcome>) -> Self {
        Self { outcome }
    }
}

impl BusDevice for I8042 {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        if (offset, data) == (COMMAND, &[PULSE_RESET]) {
            self.outcome.report(Exit::Reset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reset_command_resets() {
        let outcome = Arc::new(Outcome::default());
        let i8042 = I8042::new(outcome.clone());
        i8042.write(0, &[PULSE_RESET]);
        i8042.write(COMMAND, &[0xaa]);
        i8042.write(COMMAND, &[PULSE_RESET, 0]);
        assert!(!outcome.is_over());
        for port in [0, COMMAND] {
            let mut read = [0];
            i8042.read(port, &mut read);
            assert_eq!(read, [0xff], "no device answers");
        }
        i8042.write(COMMAND, &[PULSE_RESET]);
        assert!(matches!(outcome.wait(), Exit::Reset));
    }
}
