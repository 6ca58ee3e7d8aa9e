use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::LogScanner;
use crate::bus::BusDevice;
use crate::config::{Notice, Notices};
use crate::serial::SerialOutput;

/// The value read: the port exists.
const PRESENT: u8 = 0xe9;

/// Sends [`Notice::NoBootDevice`] once, whichever port detects it first.
#[derive(Clone)]
pub(crate) struct NothingToStart {
    notices: Notices,
    reported: Arc<AtomicBool>,
}

impl NothingToStart {
    /// Sends the notice to `notices`.
    pub(crate) fn new(notices: Notices) -> Self {
        Self { notices, reported: Arc::default() }
    }

    fn notify(&self) {
        if !self.reported.swap(true, Ordering::Relaxed) {
            self.notices.notify(Notice::NoBootDevice);
        }
    }
}

/// Port 0x402, where firmware writes what it does: goes to the log, line by line.
pub(crate) struct DebugConsole {
    log_scanner: Mutex<LogScanner>,
    nothing: NothingToStart,
}

impl DebugConsole {
    /// Detects that firmware found no boot device.
    pub(crate) fn new(nothing: NothingToStart) -> Self {
        Self { log_scanner: Mutex::default(), nothing }
    }
}

impl BusDevice for DebugConsole {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(PRESENT);
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        let mut log_scanner = self.log_scanner.lock().unwrap_or_else(PoisonError::into_inner);
        if log_scanner.hear_lines(data, |line| tracing::debug!(target: "vmm::firmware", "{line}")) {
            self.nothing.notify();
        }
    }
}

/// A console's output, scanned for firmware's message that it found no boot device.
pub(crate) struct ScannedOutput {
    output: Box<dyn SerialOutput>,
    log_scanner: LogScanner,
    nothing: NothingToStart,
}

impl ScannedOutput {
    /// Passes everything on to `output`.
    pub(crate) fn new(output: Box<dyn SerialOutput>, nothing: NothingToStart) -> Self {
        Self { output, log_scanner: LogScanner::default(), nothing }
    }
}

impl SerialOutput for ScannedOutput {
    fn write(&mut self, bytes: &[u8]) {
        self.output.write(bytes);
        if self.log_scanner.scan(bytes) {
            self.nothing.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_reported_once_and_the_console_shows_all() {
        let reported = Arc::new(Mutex::new(0));
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (count, console) = (reported.clone(), shown.clone());
        let nothing = NothingToStart::new(Notices::new(move |notice| {
            assert_eq!(notice, Notice::NoBootDevice);
            *count.lock().unwrap() += 1;
        }));
        let port = DebugConsole::new(nothing.clone());
        let output = move |bytes: &[u8]| console.lock().unwrap().extend_from_slice(bytes);
        let mut console = ScannedOutput::new(Box::new(output), nothing);
        for _ in 0..2 {
            console.write(b"No bootable device.\n");
            b"No bootable device.\n".iter().for_each(|byte| port.write(0, &[*byte]));
        }
        assert_eq!(*reported.lock().unwrap(), 1);
        assert_eq!(shown.lock().unwrap().len(), 40);
    }
}
