use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Talk;
use crate::bus::BusDevice;
use crate::config::{Notice, Notices};
use crate::serial::SerialOutput;

/// What a read tells: there is such a port.
const PRESENT: u8 = 0xe9;

/// Tells once, whoever finds out, that there is nothing to start.
#[derive(Clone)]
pub(crate) struct NothingToStart {
    notices: Notices,
    told: Arc<AtomicBool>,
}

impl NothingToStart {
    /// Tells `notices`.
    pub(crate) fn new(notices: Notices) -> Self {
        Self { notices, told: Arc::default() }
    }

    fn tell(&self) {
        if !self.told.swap(true, Ordering::Relaxed) {
            self.notices.tell(Notice::NoBootDevice);
        }
    }
}

/// Port 0x402, where firmware writes what it does: goes to the log, line by line.
pub(crate) struct DebugConsole {
    talk: Mutex<Talk>,
    nothing: NothingToStart,
}

impl DebugConsole {
    /// Tells when firmware has nothing to start.
    pub(crate) fn new(nothing: NothingToStart) -> Self {
        Self { talk: Mutex::default(), nothing }
    }
}

impl BusDevice for DebugConsole {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(PRESENT);
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        let mut talk = self.talk.lock().unwrap_or_else(PoisonError::into_inner);
        if talk.hear_lines(data, |line| tracing::debug!(target: "vmm::firmware", "{line}")) {
            self.nothing.tell();
        }
    }
}

/// A console's output, with an ear for firmware that has nothing to start.
pub(crate) struct Overheard {
    output: Box<dyn SerialOutput>,
    talk: Talk,
    nothing: NothingToStart,
}

impl Overheard {
    /// Passes everything on to `output`.
    pub(crate) fn new(output: Box<dyn SerialOutput>, nothing: NothingToStart) -> Self {
        Self { output, talk: Talk::default(), nothing }
    }
}

impl SerialOutput for Overheard {
    fn write(&mut self, bytes: &[u8]) {
        self.output.write(bytes);
        if self.talk.hear(bytes) {
            self.nothing.tell();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_and_the_console_shows_all() {
        let told = Arc::new(Mutex::new(0));
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (count, screen) = (told.clone(), shown.clone());
        let nothing = NothingToStart::new(Notices::new(move |notice| {
            assert_eq!(notice, Notice::NoBootDevice);
            *count.lock().unwrap() += 1;
        }));
        let port = DebugConsole::new(nothing.clone());
        let output = move |bytes: &[u8]| screen.lock().unwrap().extend_from_slice(bytes);
        let mut console = Overheard::new(Box::new(output), nothing);
        for _ in 0..2 {
            console.write(b"No bootable device.\n");
            b"No bootable device.\n".iter().for_each(|byte| port.write(0, &[*byte]));
        }
        assert_eq!(*told.lock().unwrap(), 1);
        assert_eq!(shown.lock().unwrap().len(), 40);
    }
}
