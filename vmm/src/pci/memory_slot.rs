use std::sync::Arc;

use super::BarListener;
use crate::memory::device::MemorySlot;

/// A slot that follows a BAR.
pub struct SlotMapper(pub Arc<dyn MemorySlot>);

impl BarListener for SlotMapper {
    fn follow(&mut self, address: Option<u64>) {
        // Without the slot the bus still answers, slowly.
        if let Err(error) = self.0.map(address) {
            tracing::warn!(%error, ?address, "a device's memory could not be placed before the guest");
        }
    }
}
