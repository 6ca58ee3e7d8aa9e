use std::sync::{Arc, Weak};

use crate::bus::{Bus, BusDevice, BusRange};

/// The address space of a base address register (PCI 3.0, section 6.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    /// Memory below 4 GiB.
    Memory32 {
        /// Reads have no side effects and writes may be merged.
        prefetchable: bool,
    },
    /// Memory anywhere; takes this register and the next.
    Memory64 {
        /// Reads have no side effects and writes may be merged.
        prefetchable: bool,
    },
    /// Ports.
    Io,
    /// The expansion ROM: memory below 4 GiB with an enable bit of its own (section 6.2.5.2).
    Rom,
}

/// Follows a BAR: something outside of the bus that answers, or listens, at the same addresses (a memory slot,
/// doorbells).
pub trait BarListener: Send {
    /// The BAR answers at `address` now, or is unmapped.
    fn follow(&mut self, address: Option<u64>);
}

/// A BAR and where on its bus it answers now.
///
/// The guest may point a BAR anywhere. Where something else answers already, it is unmapped until that is gone
/// or it is moved again.
pub(super) struct Bar {
    bus: Weak<Bus>,
    device: Weak<dyn BusDevice>,
    listener: Option<Box<dyn BarListener>>,
    size: u64,
    wanted: Option<BusRange>,
    mapped: Option<BusRange>,
}

impl Bar {
    /// A BAR of `size` bytes that is unmapped; accesses go to `device`.
    pub(super) fn new(
        size: u64,
        device: Weak<dyn BusDevice>,
        listener: Option<Box<dyn BarListener>>,
    ) -> Self {
        Self { bus: Weak::new(), device, listener, size, wanted: None, mapped: None }
    }

    /// In bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Names the bus.
    pub(super) fn attach(&mut self, bus: Weak<Bus>) {
        self.bus = bus;
    }

    /// Maps it at the range, or unmaps it; returns whether that changed anything.
    pub(super) fn map(&mut self, wanted: Option<BusRange>) -> bool {
        let changed = wanted != self.wanted;
        self.wanted = wanted;
        self.settle(changed)
    }

    /// Tries again where the last placement was rejected; whether that changed anything.
    pub(super) fn retry(&mut self) -> bool {
        self.settle(false)
    }

    fn settle(&mut self, report: bool) -> bool {
        let from = self.mapped;
        if from != self.wanted
            && let (Some(bus), Some(device)) = (self.bus.upgrade(), self.device.upgrade())
        {
            self.mapped = move_range(&bus, device, from, self.wanted, report);
        }
        let moved = self.mapped != from;
        if moved && let Some(listener) = &mut self.listener {
            listener.follow(self.mapped.map(BusRange::start));
        }
        moved
    }
}

fn move_range(
    bus: &Bus,
    device: Arc<dyn BusDevice>,
    from: Option<BusRange>,
    to: Option<BusRange>,
    report: bool,
) -> Option<BusRange> {
    if let Some(to) = to {
        match bus.replace(from, to, device) {
            Ok(()) => return Some(to),
            Err(error) if report => tracing::debug!(%error, "the guest moved a BAR onto something else"),
            Err(_) => {}
        }
    }
    if let Some(from) = from
        && let Err(error) = bus.remove(from)
    {
        tracing::error!(%error, "a BAR was not where it was put");
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    struct Silent;
    impl BusDevice for Silent {
        fn read(&self, _offset: u64, data: &mut [u8]) {
            data.fill(0);
        }
        fn write(&self, _offset: u64, _data: &[u8]) {}
    }

    struct Log(Arc<Mutex<Vec<Option<u64>>>>);
    impl BarListener for Log {
        fn follow(&mut self, address: Option<u64>) {
            self.0.lock().unwrap().push(address);
        }
    }

    #[test]
    fn a_conflicting_bar_is_unmapped_until_the_range_is_free() {
        let bus = Arc::new(Bus::default());
        let device: Arc<dyn BusDevice> = Arc::new(Silent);
        let range = |start| BusRange::new(start, 0x1000);
        let other = range(0x8000).unwrap();
        bus.insert(other, Arc::new(Silent)).unwrap();
        let followed = Arc::new(Mutex::new(Vec::new()));
        let listener = Box::new(Log(followed.clone()));
        let mut bar = Bar::new(0x1000, Arc::downgrade(&device), Some(listener));
        bar.attach(Arc::downgrade(&bus));

        assert!(bar.map(range(0x4000)));
        assert!(bus.read(0x4000, &mut [0]));
        assert!(bar.map(range(0x8000)), "rejected, and gone from where it was");
        assert!(!bus.read(0x4000, &mut [0]));
        assert!(!bar.retry());
        bus.remove(other).unwrap();
        assert!(bar.retry());
        assert!(bus.read(0x8000, &mut [0]));
        assert!(bar.map(None));
        assert!(!bar.map(None));
        assert_eq!(*followed.lock().unwrap(), [Some(0x4000), None, Some(0x8000), None]);
    }
}
