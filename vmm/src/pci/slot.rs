use std::sync::{Arc, Weak};

use super::intx::Pirqs;
use super::windows::Windows;
use super::{Address, Intx};
use crate::bus::Bus;

/// What a function gets of the bus it is put on.
pub struct Slot {
    address: Address,
    mmio: Weak<Bus>,
    pio: Weak<Bus>,
    windows: Arc<Windows>,
    pirqs: Arc<Pirqs>,
    is_hot: bool,
}

impl Slot {
    pub(super) fn new(
        address: Address,
        (mmio, pio): (Weak<Bus>, Weak<Bus>),
        windows: Arc<Windows>,
        pirqs: Arc<Pirqs>,
    ) -> Self {
        Self { address, mmio, pio, windows, pirqs, is_hot: false }
    }

    /// The guest runs: it is the guest that assigns addresses to BARs.
    pub(super) fn hot(mut self) -> Self {
        self.is_hot = true;
        self
    }

    pub(super) fn is_hot(&self) -> bool {
        self.is_hot
    }

    /// Connects the function's interrupt line. Its interrupt pin register reads INTA#
    /// ([`super::ConfigSpace::set_interrupt_pin`]).
    pub fn connect(&self, intx: &Intx) {
        intx.connect(self.pirqs.clone(), self.address);
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
