use std::time::Instant;

use crate::bus::BusDevice;

/// Port 0x80: what the guest writes there is logged with the time since the VM was built.
pub(crate) struct DebugPort {
    built: Instant,
}

impl DebugPort {
    /// Time counts from now.
    pub(crate) fn new() -> Self {
        Self { built: Instant::now() }
    }
}

impl BusDevice for DebugPort {
    fn read(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn write(&self, _offset: u64, data: &[u8]) {
        if let &[code] = data {
            let microseconds = self.built.elapsed().as_micros();
            tracing::debug!(target: "vmm::debug_port", code, microseconds, "guest milestone");
        }
    }
}
