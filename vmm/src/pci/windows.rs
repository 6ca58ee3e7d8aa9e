use std::sync::{Mutex, PoisonError};

use vm_allocator::{AddressAllocator, AllocPolicy};

use super::{BarKind, RootError};
use crate::bus::BusRange;
use crate::layout;
use crate::memory::RamRange;

/// The first port a BAR may answer at: below are the devices of the VM itself, some of them in the kernel.
const FIRST_IO: u64 = 0x1000;
/// One more than the last port.
const IO_END: u64 = 0x1_0000;
/// One more than the highest physical address of the architecture.
const MEMORY_END: u64 = 1 << 52;

/// Where BARs get their addresses from before the guest runs, and where the guest may move them.
pub(super) struct Windows {
    low: Window,
    high: Window,
    ports: Window,
    allowed: Allowed,
}

struct Window {
    range: BusRange,
    free: Mutex<AddressAllocator>,
}

/// The addresses where a BAR may answer: those that neither RAM nor the VM itself (IOAPIC, local APICs, flash,
/// KVM's own pages, the ports of the VM) takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    below_4g: Option<BusRange>,
    above_4g: Option<BusRange>,
    ports: Option<BusRange>,
}

impl Windows {
    /// For a VM with this RAM; the 64-bit window begins at the next 4 GiB above it.
    pub(super) fn new(ram: &[RamRange]) -> Result<Self, RootError> {
        let end = |range: &RamRange| range.start.saturating_add(range.len);
        let low_end = ram.iter().filter(|range| range.start < layout::RAM_ABOVE_4G).map(end).max();
        let low_end = low_end.unwrap_or(0);
        let ram_end = ram.iter().map(end).max().unwrap_or(0).max(layout::RAM_ABOVE_4G);
        let start = ram_end.checked_next_multiple_of(layout::PCI64_ALIGN);
        let start = start.ok_or(RootError::Window(ram_end))?;
        let allowed = Allowed {
            below_4g: between(low_end, layout::PCI32_START + layout::PCI32_SIZE),
            above_4g: between(ram_end, MEMORY_END),
            ports: between(FIRST_IO, IO_END),
        };
        let window = |start, len| Window::new(start, len).ok_or(RootError::Window(ram_end));
        Ok(Self {
            low: window(layout::PCI32_START, layout::PCI32_SIZE)?,
            high: window(start, layout::PCI64_SIZE)?,
            ports: window(layout::PCI_IO_START.into(), layout::PCI_IO_SIZE.into())?,
            allowed,
        })
    }

    /// An address for a BAR of `size` bytes, a multiple of it.
    pub(super) fn allocate(&self, kind: BarKind, size: u64) -> Result<u64, RootError> {
        let window = match kind {
            BarKind::Memory32 { .. } | BarKind::Rom => &self.low,
            BarKind::Memory64 { .. } => &self.high,
            BarKind::Io => &self.ports,
        };
        let mut free = window.free.lock().unwrap_or_else(PoisonError::into_inner);
        let range =
            free.allocate(size, size, AllocPolicy::FirstMatch).map_err(|_| RootError::NoRoom(size))?;
        Ok(range.start())
    }

    pub(super) fn allowed(&self) -> Allowed {
        self.allowed
    }

    /// The window of 64-bit BARs.
    pub(super) fn high(&self) -> BusRange {
        self.high.range
    }
}

impl Window {
    fn new(start: u64, len: u64) -> Option<Self> {
        let free = Mutex::new(AddressAllocator::new(start, len).ok()?);
        Some(Self { range: BusRange::new(start, len)?, free })
    }
}

impl Allowed {
    /// Nothing: for a function that is on no bus yet.
    pub(super) const NONE: Self = Self { below_4g: None, above_4g: None, ports: None };

    /// The range, if a BAR of this kind may answer there.
    pub(super) fn range(self, kind: BarKind, address: u64, size: u64) -> Option<BusRange> {
        let range = BusRange::new(address, size)?;
        let holes = match kind {
            BarKind::Memory32 { .. } | BarKind::Memory64 { .. } | BarKind::Rom => {
                [self.below_4g, self.above_4g]
            }
            BarKind::Io => [self.ports, None],
        };
        let inside = |hole: &BusRange| hole.start() <= range.start() && range.last() <= hole.last();
        holes.iter().flatten().any(inside).then_some(range)
    }
}

fn between(start: u64, end: u64) -> Option<BusRange> {
    BusRange::new(start, end.checked_sub(start)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: BarKind = BarKind::Memory64 { prefetchable: false };

    #[test]
    fn a_bar_answers_only_outside_platform_ranges() {
        let gib = 1 << 30;
        let ram = [RamRange { start: 0, len: 2 * gib }, RamRange { start: 4 * gib, len: 3 * gib }];
        let allowed = Windows::new(&ram).unwrap().allowed();
        for (kind, address, good) in [
            (MEMORY, 0, false),
            (MEMORY, 2 * gib - 0x1000, false),
            (MEMORY, 2 * gib, true),
            (MEMORY, 0xfebf_f000, true),
            (MEMORY, layout::IOAPIC_START, false),
            (MEMORY, layout::LAPIC_START, false),
            (MEMORY, layout::TSS_START, false),
            (MEMORY, 0xff00_0000, false),
            (MEMORY, 4 * gib - 0x1000, false),
            (MEMORY, 7 * gib - 0x1000, false),
            (MEMORY, 7 * gib, true),
            (MEMORY, MEMORY_END, false),
            (MEMORY, u64::MAX - 0xfff, false),
            (BarKind::Io, 0x20, false),
            (BarKind::Io, 0xc000, true),
            (BarKind::Io, 0xf000, true),
            (BarKind::Io, 0x1_0000, false),
        ] {
            assert_eq!(allowed.range(kind, address, 0x1000).is_some(), good, "{kind:?} {address:#x}");
        }
        assert!(allowed.range(MEMORY, 0xfeb0_0000, 0x20_0000).is_none(), "it reaches into the IOAPIC");
        assert!(Allowed::NONE.range(MEMORY, 2 * gib, 0x1000).is_none());
    }

    #[test]
    fn each_kind_has_a_window() {
        let windows = Windows::new(&[RamRange { start: 0, len: 1 << 20 }]).unwrap();
        let allocate = |kind, size| windows.allocate(kind, size).unwrap();
        assert_eq!(allocate(BarKind::Memory32 { prefetchable: true }, 1 << 24), 0xc000_0000);
        assert_eq!(allocate(BarKind::Rom, 1 << 16), 0xc100_0000);
        assert_eq!(allocate(BarKind::Memory32 { prefetchable: false }, 1 << 12), 0xc101_0000);
        assert_eq!(allocate(MEMORY, 1 << 15), 1 << 32);
        assert_eq!((allocate(BarKind::Io, 32), allocate(BarKind::Io, 8)), (0xc000, 0xc020));
        assert!(matches!(windows.allocate(BarKind::Io, 1 << 15), Err(RootError::NoRoom(_))));
    }
}
