use vm_memory::{Address, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::layout::{ECAM_SIZE, ECAM_START};

/// Where the BIOS area begins on a PC: no RAM is reported from here to 1 MiB, and the ACPI tables are in it.
const BIOS_START: u64 = 0x9_FC00;
/// Where RAM continues above the hole, and the lowest address for a kernel.
pub(super) const HIGH_START: u64 = 0x10_0000;

/// What a range of the memory map is; the numbers are those of e820 and of PVH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Ram = 1,
    Reserved = 2,
}

/// One line of the memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapEntry {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) usage: Use,
}

/// The VM's RAM: one range at zero, perhaps others above.
pub(super) struct Ram {
    /// (start, size), ascending.
    ranges: Vec<(u64, u64)>,
}

impl Ram {
    pub(super) fn of(memory: &GuestMemoryMmap) -> Self {
        Self { ranges: memory.iter().map(|region| (region.start_addr().raw_value(), region.len())).collect() }
    }

    /// The end of the RAM that starts at zero.
    pub(super) fn low_end(&self) -> u64 {
        match self.ranges.first() {
            Some(&(0, size)) => size,
            Some(_) | None => 0,
        }
    }

    /// The map a PC's firmware would report.
    pub(super) fn map(&self) -> Vec<MapEntry> {
        let entry = |start: u64, end: u64, usage| MapEntry { start, size: end - start, usage };
        let mut map = Vec::with_capacity(self.ranges.len() + 3);
        for &(start, size) in &self.ranges {
            let end = start.saturating_add(size);
            if start == 0 && end > HIGH_START {
                map.push(entry(0, BIOS_START, Use::Ram));
                map.push(entry(BIOS_START, HIGH_START, Use::Reserved));
                map.push(entry(HIGH_START, end, Use::Ram));
            } else {
                map.push(entry(start, end, Use::Ram));
            }
        }
        map.push(entry(ECAM_START, ECAM_START + ECAM_SIZE, Use::Reserved));
        map.sort_by_key(|entry| entry.start);
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_leaves_out_the_bios_area_and_reserves_ecam() {
        let ram = Ram { ranges: vec![(0, 0x8000_0000), (0x1_0000_0000, 0x4000_0000)] };
        let rows: Vec<_> = ram.map().iter().map(|e| (e.start, e.start + e.size, e.usage)).collect();
        assert_eq!(
            rows,
            [
                (0, 0x9_FC00, Use::Ram),
                (0x9_FC00, 0x10_0000, Use::Reserved),
                (0x10_0000, 0x8000_0000, Use::Ram),
                (0xB000_0000, 0xC000_0000, Use::Reserved),
                (0x1_0000_0000, 0x1_4000_0000, Use::Ram),
            ]
        );
        assert_eq!(ram.low_end(), 0x8000_0000);
    }
}
