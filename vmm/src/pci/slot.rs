use std::sync::{Arc, Weak};

use super::Address;
use super::windows::Windows;
use crate::bus::Bus;

/// What a function gets of the bus it is put on.
pub struct Slot {
    address: Address,
    mmio: Weak<Bus>,
    pio: Weak<Bus>,
    windows: Arc<Windows>,
}

impl Slot {
    pub(super) fn new(address: Address, buses: (Weak<Bus>, Weak<Bus>), windows: Arc<Windows>) -> Self {
        let (mmio, pio) = buses;
        Self { address, mmio, pio, windows }
    }

    /// Where it is.
    pub fn address(&self) -> Address {
        self.address
    }

    pub(super) fn mmio(&self) -> Weak<Bus> {
        self.mmio.clone()
    }

    pub(super) fn pio(&self) -> Weak<Bus> {
        self.pio.clone()
    }

    pub(super) fn windows(&self) -> &Windows {
        &self.windows
    }
}
