use std::sync::{Mutex, PoisonError};

use crate::bus::BusDevice;
use crate::config::{Notice, Notices};

/// What a read tells: there is such a port.
const PRESENT: u8 = 0xe9;
/// Longer lines are cut.
const LINE: usize = 200;
/// What SeaBIOS says before it gives up or tries again.
const NO_BOOT_DEVICE: &str = "No bootable device";

/// Port 0x402, where firmware writes what it does: goes to the log, line by line.
pub(crate) struct DebugConsole {
    line: Mutex<String>,
    notices: Notices,
}

impl DebugConsole {
    /// Tells `notices` when firmware has nothing to start.
    pub(crate) fn new(notices: Notices) -> Self {
        Self { line: Mutex::default(), notices }
    }
}

impl BusDevice for DebugConsole {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(PRESENT);
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        for byte in data {
            match byte {
                b'\n' => {
                    tracing::debug!(target: "vmm::firmware", "{line}");
                    if line.starts_with(NO_BOOT_DEVICE) {
                        self.notices.tell(Notice::NoBootDevice);
                    }
                    line.clear();
                }
                b' '..=b'~' if line.len() < LINE => line.push(char::from(*byte)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn only_a_whole_line_of_the_firmware_is_a_notice() {
        let told = Arc::new(Mutex::new(0));
        let count = told.clone();
        let notices = Notices::new(move |notice| {
            assert_eq!(notice, Notice::NoBootDevice);
            *count.lock().unwrap() += 1;
        });
        let port = DebugConsole::new(notices);
        let say = |text: &str| text.bytes().for_each(|byte| port.write(0, &[byte]));
        say("Booting from Hard Disk...\r\nNo bootable device");
        assert_eq!(*told.lock().unwrap(), 0);
        say(".  Retrying in 60 seconds.\n");
        say("echo No bootable device\n");
        say(&"x".repeat(10_000));
        say("\nNo bootable device.\n");
        assert_eq!(*told.lock().unwrap(), 2);
    }
}
