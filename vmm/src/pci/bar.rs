use std::sync::{Arc, Weak};

use crate::bus::{Bus, BusDevice, BusRange};

/// A memory BAR and where on the bus it answers now.
///
/// The guest may point a BAR anywhere. Where something else answers already, it answers nowhere until that is gone
/// or it is moved again.
pub struct Bar {
    bus: Weak<Bus>,
    device: Weak<dyn BusDevice>,
    size: u64,
    wanted: Option<BusRange>,
    mapped: Option<BusRange>,
}

/// What [`Bar::place`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The address it answered at before.
    pub from: Option<u64>,
    /// The address it answers at now.
    pub to: Option<u64>,
}

impl Placement {
    /// Whether anything changed.
    pub fn moved(self) -> bool {
        self.from != self.to
    }
}

impl Bar {
    /// A BAR of `size` bytes that answers nowhere; accesses go to `device`.
    pub fn new(size: u64, device: Weak<dyn BusDevice>) -> Self {
        Self { bus: Weak::new(), device, size, wanted: None, mapped: None }
    }

    /// In bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Names the bus.
    pub fn attach(&mut self, bus: Weak<Bus>) {
        self.bus = bus;
    }

    /// Makes it answer at `address`, or nowhere.
    pub fn place(&mut self, address: Option<u64>) -> Placement {
        let wanted = address.and_then(|address| BusRange::new(address, self.size));
        let news = wanted != self.wanted;
        self.wanted = wanted;
        self.settle(news)
    }

    /// Tries again where the last placement was refused.
    pub fn retry(&mut self) -> Placement {
        self.settle(false)
    }

    fn settle(&mut self, report: bool) -> Placement {
        let from = self.mapped;
        if from != self.wanted
            && let (Some(bus), Some(device)) = (self.bus.upgrade(), self.device.upgrade())
        {
            self.mapped = move_range(&bus, device, from, self.wanted, report);
        }
        Placement { from: from.map(BusRange::start), to: self.mapped.map(BusRange::start) }
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
    use super::*;

    struct Silent;
    impl BusDevice for Silent {
        fn read(&self, _offset: u64, data: &mut [u8]) {
            data.fill(0);
        }
        fn write(&self, _offset: u64, _data: &[u8]) {}
    }

    #[test]
    fn a_bar_in_the_way_of_something_answers_nowhere_until_it_may() {
        let bus = Arc::new(Bus::default());
        let device: Arc<dyn BusDevice> = Arc::new(Silent);
        let other = BusRange::new(0x8000, 0x1000).unwrap();
        bus.insert(other, Arc::new(Silent)).unwrap();
        let mut bar = Bar::new(0x1000, Arc::downgrade(&device));
        bar.attach(Arc::downgrade(&bus));

        assert_eq!(bar.place(Some(0x4000)), Placement { from: None, to: Some(0x4000) });
        assert_eq!(bar.place(Some(0x8000)), Placement { from: Some(0x4000), to: None });
        assert!(!bus.read(0x4000, &mut [0]));
        assert!(!bar.retry().moved());
        bus.remove(other).unwrap();
        assert_eq!(bar.retry(), Placement { from: None, to: Some(0x8000) });
        assert_eq!(bar.place(None), Placement { from: Some(0x8000), to: None });
        assert_eq!(bar.place(Some(u64::MAX - 1)), Placement { from: None, to: None }, "past the end");
    }
}
