use std::sync::Weak;

use super::bar::{Bar, BarKind, BarListener};
use super::windows::Allowed;
use super::{ConfigSpace, Decoding, RootError, Slot};
use crate::bus::BusDevice;

/// The BARs of one function, kept in step with its configuration space.
pub struct Bars {
    bars: Vec<(usize, BarKind, Bar)>,
    allowed: Allowed,
}

impl Default for Bars {
    fn default() -> Self {
        Self { bars: Vec::new(), allowed: Allowed::NONE }
    }
}

impl Bars {
    /// Adds a BAR of `size` bytes (a power of two) whose accesses go to `device`. `index` is 0 to 5, and
    /// [`ConfigSpace::ROM`] for the expansion ROM.
    pub fn add(
        &mut self,
        space: &mut ConfigSpace,
        (index, kind): (usize, BarKind),
        size: u64,
        device: Weak<dyn BusDevice>,
    ) {
        self.insert(space, (index, kind), Bar::new(size, device, None));
    }

    /// Like [`Self::add`], for a BAR that something else answers at as well: see [`BarListener`]. With a memory slot
    /// `device` answers only what does not reach the slot.
    pub fn add_followed(
        &mut self,
        space: &mut ConfigSpace,
        (index, kind): (usize, BarKind),
        size: u64,
        (device, listener): (Weak<dyn BusDevice>, Box<dyn BarListener>),
    ) {
        self.insert(space, (index, kind), Bar::new(size, device, Some(listener)));
    }

    fn insert(&mut self, space: &mut ConfigSpace, (index, kind): (usize, BarKind), bar: Bar) {
        space.add_bar(index, kind, bar.size());
        self.bars.push((index, kind, bar));
    }

    /// Programs all of them with addresses from the windows of the bus they are on now, unless the guest runs already. They
    /// answer when the guest enables decoding.
    pub fn attach(&mut self, space: &mut ConfigSpace, slot: &Slot) -> Result<(), RootError> {
        self.allowed = slot.windows().allowed();
        for (index, kind, bar) in &mut self.bars {
            if !slot.is_hot() {
                space.set_bar(*index, *kind, slot.windows().allocate(*kind, bar.size())?);
            }
            bar.attach(match kind {
                BarKind::Memory32 { .. } | BarKind::Memory64 { .. } | BarKind::Rom => slot.mmio(),
                BarKind::Io => slot.pio(),
            });
        }
        Ok(())
    }

    /// Follows the configuration space after a write to it.
    pub fn follow(&mut self, space: &ConfigSpace) -> Decoding {
        let mut outcome = Decoding::Same;
        for (index, kind, bar) in &mut self.bars {
            let address = space.bar(*index, *kind);
            let range = address.and_then(|address| self.allowed.range(*kind, address, bar.size()));
            if bar.map(range) {
                outcome = Decoding::Changed;
            }
        }
        outcome
    }

    /// Unmaps all of them for good: the function is off the bus.
    pub(crate) fn detach(&mut self) {
        self.allowed = Allowed::NONE;
        for (_, _, bar) in &mut self.bars {
            bar.map(None);
        }
    }

    /// Tries again to map the BARs that were rejected because something else answered there.
    pub fn retry(&mut self) {
        for (_, _, bar) in &mut self.bars {
            bar.retry();
        }
    }
}
