use crate::config::MemorySize;
use crate::layout::{IDENTITY_MAP_START, TSS_START};
use crate::memory::ram_ranges;

const RAM: u32 = 1;
const RESERVED: u32 = 2;
/// The pages that KVM uses for itself: one, and the three behind.
const KVM_PAGES: u64 = TSS_START + 0x3000 - IDENTITY_MAP_START;

/// The file `etc/e820`: address, length and kind of each range, packed. Firmware takes its own parts away from RAM.
pub(crate) fn e820(memory: MemorySize) -> Vec<u8> {
    let ram = ram_ranges(memory).into_iter().map(|range| (range.start, range.len, RAM));
    let ranges = ram.chain([(IDENTITY_MAP_START, KVM_PAGES, RESERVED)]);
    ranges
        .flat_map(|(start, len, kind)| {
            start.to_le_bytes().into_iter().chain(len.to_le_bytes()).chain(kind.to_le_bytes())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ram_is_listed() {
        let bytes = e820(MemorySize::from_bytes(6 << 30).unwrap());
        let entries: Vec<_> = bytes.as_chunks::<20>().0.iter().collect();
        assert_eq!(entries.len(), 3);
        assert_eq!(entries[1][..8], (4_u64 << 30).to_le_bytes());
        assert_eq!(entries[1][8..], [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(entries[2][16], 2);
    }
}
