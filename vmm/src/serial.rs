//! The guest's serial console: its UART, and both ends as the monitor's user holds them.

mod uart;

use std::sync::{Arc, Mutex, PoisonError};

use vmm_sys_util::eventfd::EventFd;

pub(crate) use uart::Uart;

/// Where the guest's console output goes.
pub trait SerialOutput: Send {
    /// Takes what the guest wrote. Called on vCPU threads, mostly a byte at a time: it must not block.
    fn write(&mut self, bytes: &[u8]);
}

impl<F: FnMut(&[u8]) + Send> SerialOutput for F {
    fn write(&mut self, bytes: &[u8]) {
        self(bytes);
    }
}

/// One output for the serial port and the virtio console, whose bytes join in the order they come.
#[derive(Clone)]
pub(crate) struct SharedOutput(Arc<Mutex<Box<dyn SerialOutput>>>);

impl SharedOutput {
    /// Shares `output`.
    pub(crate) fn new(output: Box<dyn SerialOutput>) -> Self {
        Self(Arc::new(Mutex::new(output)))
    }
}

impl SerialOutput for SharedOutput {
    fn write(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes);
    }
}

/// The gate through which keys reach the guest's serial port.
///
/// It takes bytes while the guest reads them and a little more; what it does not take stays with the caller, so a
/// guest that never reads cannot make anything grow.
#[derive(Clone)]
pub struct SerialInput {
    uart: Arc<Uart>,
}

impl SerialInput {
    pub(crate) fn new(uart: Arc<Uart>) -> Self {
        Self { uart }
    }

    /// Offers `bytes` and returns how many were taken, from the front. After fewer than all, wait for room.
    pub fn push(&self, bytes: &[u8]) -> usize {
        self.uart.push(bytes)
    }

    /// Sends a break, behind all that was taken. (In Linux it begins a SysRq.)
    pub fn send_break(&self) {
        self.uart.send_break();
    }

    /// Readable once there is room again after a `push` that could not take everything. For use in an event loop;
    /// the next `push` makes it unreadable again.
    pub fn room(&self) -> &EventFd {
        self.uart.room()
    }

    /// Blocks until there is room after a `push` that could not take everything. Returns at once otherwise, and
    /// when the VM is gone (then `push` takes and discards everything).
    pub fn wait_room(&self) {
        self.uart.wait_room();
    }
}
