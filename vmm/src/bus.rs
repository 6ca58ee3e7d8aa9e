//! Address ranges and the devices behind them.
//!
//! A vCPU exit looks its address up here on every access, from every vCPU at once, so the read path has no lock:
//! an immutable sorted table behind an atomic pointer. Changes (device hot-plug, a BAR that moves) build a new table.

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;

/// Something that answers reads and writes in an address range.
///
/// Called on vCPU threads, several at once: a device guards its own state and never blocks. Offsets count from the
/// start of the range the device was inserted with; `data` holds 1 to 8 bytes in guest (little-endian) order and the
/// whole access lies inside the range.
pub trait BusDevice: Send + Sync {
    /// Fills all of `data`. Registers that do not exist read as ones.
    fn read(&self, offset: u64, data: &mut [u8]);
    /// Takes what the guest wrote. A write that makes no sense is ignored.
    fn write(&self, offset: u64, data: &[u8]);
}

/// A non-empty range of addresses that does not wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusRange {
    start: u64,
    last: u64,
}

impl BusRange {
    /// `len` addresses from `start`; `None` if that is empty or runs past the end of the address space.
    pub const fn new(start: u64, len: u64) -> Option<Self> {
        let Some(more) = len.checked_sub(1) else { return None };
        match start.checked_add(more) {
            Some(last) => Some(Self { start, last }),
            None => None,
        }
    }

    /// The first address.
    pub fn start(self) -> u64 {
        self.start
    }

    /// The last address, inclusive.
    pub fn last(self) -> u64 {
        self.last
    }

    fn overlaps(self, other: Self) -> bool {
        self.start <= other.last && other.start <= self.last
    }
}

/// Why a range could not be taken.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BusError {
    /// Another device answers there.
    #[error("range {wanted:x?} overlaps {taken:x?}")]
    Overlap {
        /// The range asked for.
        wanted: BusRange,
        /// The range in the way.
        taken: BusRange,
    },
    /// No device was inserted with exactly this range.
    #[error("no device at range {0:x?}")]
    Absent(BusRange),
}

#[derive(Clone)]
struct Entry {
    range: BusRange,
    device: Arc<dyn BusDevice>,
}

/// One address space (memory or ports).
pub struct Bus {
    table: ArcSwap<Vec<Entry>>,
    /// Serialises writers only.
    change: Mutex<()>,
}

impl Default for Bus {
    fn default() -> Self {
        Self { table: ArcSwap::from_pointee(Vec::new()), change: Mutex::new(()) }
    }
}

impl Bus {
    /// Puts `device` at `range`.
    pub fn insert(&self, range: BusRange, device: Arc<dyn BusDevice>) -> Result<(), BusError> {
        self.replace(None, range, device)
    }

    /// Takes away the device that was inserted with exactly `range`.
    pub fn remove(&self, range: BusRange) -> Result<(), BusError> {
        let _writer = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = Vec::clone(&self.table.load());
        let at = table.iter().position(|entry| entry.range == range).ok_or(BusError::Absent(range))?;
        table.remove(at);
        self.table.store(Arc::new(table));
        Ok(())
    }

    /// Takes every device away.
    pub fn clear(&self) {
        let _writer = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        self.table.store(Arc::default());
    }

    /// Moves a device in one step, so that every access sees it at one of the addresses. `from` of `None` only inserts.
    pub fn replace(
        &self,
        from: Option<BusRange>,
        to: BusRange,
        device: Arc<dyn BusDevice>,
    ) -> Result<(), BusError> {
        let _writer = self.change.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = Vec::clone(&self.table.load());
        if let Some(from) = from {
            let at = table.iter().position(|entry| entry.range == from).ok_or(BusError::Absent(from))?;
            table.remove(at);
        }
        if let Some(taken) = table.iter().find(|entry| entry.range.overlaps(to)) {
            return Err(BusError::Overlap { wanted: to, taken: taken.range });
        }
        let at = table.partition_point(|entry| entry.range.start < to.start);
        table.insert(at, Entry { range: to, device });
        self.table.store(Arc::new(table));
        Ok(())
    }

    /// Reads; where no device answers for the whole access, `data` is filled with ones and the answer is `false`.
    pub fn read(&self, address: u64, data: &mut [u8]) -> bool {
        let table = self.table.load();
        match lookup(&table, address, data.len()) {
            Some(entry) => {
                entry.device.read(address - entry.range.start, data);
                true
            }
            None => {
                data.fill(0xff);
                false
            }
        }
    }

    /// Writes; where no device answers for the whole access it is dropped and the answer is `false`.
    pub fn write(&self, address: u64, data: &[u8]) -> bool {
        let table = self.table.load();
        match lookup(&table, address, data.len()) {
            Some(entry) => {
                entry.device.write(address - entry.range.start, data);
                true
            }
            None => false,
        }
    }
}

fn lookup(table: &[Entry], address: u64, len: usize) -> Option<&Entry> {
    let last = address.checked_add(u64::try_from(len).ok()?.checked_sub(1)?)?;
    let after = table.partition_point(|entry| entry.range.start <= address);
    let entry = table.get(after.checked_sub(1)?)?;
    (last <= entry.range.last).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(u8);
    impl BusDevice for Fixed {
        fn read(&self, offset: u64, data: &mut [u8]) {
            data.fill(self.0.wrapping_add(u8::try_from(offset).unwrap()));
        }
        fn write(&self, _offset: u64, _data: &[u8]) {}
    }

    fn range(start: u64, len: u64) -> BusRange {
        BusRange::new(start, len).unwrap()
    }

    #[test]
    fn an_access_reaches_the_device_whose_range_holds_all_of_it() {
        let bus = Bus::default();
        bus.insert(range(0x10, 0x10), Arc::new(Fixed(1))).unwrap();
        bus.insert(range(0x20, 0x10), Arc::new(Fixed(100))).unwrap();
        let mut byte = [0];
        assert!(bus.read(0x1f, &mut byte));
        assert_eq!(byte, [16]);
        assert!(bus.read(0x20, &mut byte));
        assert_eq!(byte, [100]);
        let mut word = [0; 2];
        assert!(!bus.read(0x1f, &mut word), "an access across two devices reaches neither");
        assert_eq!(word, [0xff; 2]);
        assert!(!bus.read(0xf, &mut byte));
        assert!(!bus.write(u64::MAX, &[0; 8]));
    }

    #[test]
    fn overlaps_and_wrong_removals_are_refused_and_change_nothing() {
        let bus = Bus::default();
        bus.insert(range(0x10, 0x10), Arc::new(Fixed(1))).unwrap();
        let overlap = BusError::Overlap { wanted: range(0x1f, 1), taken: range(0x10, 0x10) };
        assert_eq!(bus.insert(range(0x1f, 1), Arc::new(Fixed(2))), Err(overlap));
        assert_eq!(bus.remove(range(0x10, 1)), Err(BusError::Absent(range(0x10, 1))));
        assert!(bus.read(0x10, &mut [0]));
    }

    #[test]
    fn a_moved_device_answers_at_its_new_address_only() {
        let bus = Bus::default();
        let device = Arc::new(Fixed(7));
        bus.insert(range(0x10, 0x10), device.clone()).unwrap();
        bus.replace(Some(range(0x10, 0x10)), range(0x18, 0x10), device).unwrap();
        assert!(!bus.read(0x10, &mut [0]));
        assert!(bus.read(0x18, &mut [0]));
    }

    #[test]
    fn ranges_never_wrap_and_are_never_empty() {
        assert_eq!(BusRange::new(0, 0), None);
        assert_eq!(BusRange::new(u64::MAX, 2), None);
        assert!(BusRange::new(u64::MAX, 1).is_some());
    }
}
