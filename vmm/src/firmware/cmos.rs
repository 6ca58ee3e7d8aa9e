use crate::config::MemorySize;
use crate::layout::RAM_ABOVE_4G;
use crate::memory::{RamRange, ram_ranges};

/// CMOS memory by index, beside the clock: for firmware that does not use `fw_cfg`.
pub(crate) fn cmos(memory: MemorySize, cpus: u8) -> Vec<(u8, u8)> {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let ranges = ram_ranges(memory);
    let end_of = |high: bool| {
        let range = ranges.iter().find(|range| (range.start >= RAM_ABOVE_4G) == high);
        range.map_or(0, |RamRange { start, len }| start + len)
    };
    let low = end_of(false);
    let word = |value: u64| u16::try_from(value).unwrap_or(u16::MAX).to_le_bytes();
    let [base0, base1] = word(640);
    let [extended0, extended1] = word(low.saturating_sub(MIB) / KIB);
    let [above16m0, above16m1] = word(low.saturating_sub(16 * MIB) / (64 * KIB));
    let [high0, high1, high2, ..] = (end_of(true).saturating_sub(RAM_ABOVE_4G) / (64 * KIB)).to_le_bytes();
    vec![
        // No floppies; a floating-point unit.
        (0x10, 0),
        (0x14, 1 << 1),
        (0x15, base0),
        (0x16, base1),
        (0x17, extended0),
        (0x18, extended1),
        (0x30, extended0),
        (0x31, extended1),
        (0x34, above16m0),
        (0x35, above16m1),
        // Start from the first disk, and do not look at floppies' signatures.
        (0x38, 1),
        (0x3d, 2),
        (0x5b, high0),
        (0x5c, high1),
        (0x5d, high2),
        // vCPUs beside the first.
        (0x5f, cpus.saturating_sub(1)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[(u8, u8)], low: u8, count: u8) -> u32 {
        (low..low + count).rev().fold(0, |value, index| {
            value << 8 | u32::from(bytes.iter().find(|(at, _)| *at == index).unwrap().1)
        })
    }

    #[test]
    fn memory_is_described_in_the_units_of_each_field() {
        let bytes = cmos(MemorySize::from_bytes(512 << 20).unwrap(), 4);
        assert_eq!((word(&bytes, 0x17, 2), word(&bytes, 0x34, 2)), (0xffff, 496 * 16));
        assert_eq!((word(&bytes, 0x5b, 3), word(&bytes, 0x5f, 1)), (0, 3));
        let bytes = cmos(MemorySize::from_bytes(6 << 30).unwrap(), 1);
        assert_eq!((word(&bytes, 0x34, 2), word(&bytes, 0x5b, 3)), (2032 * 16, 4096 * 16));
        let bytes = cmos(MemorySize::from_bytes(16 << 20).unwrap(), 1);
        assert_eq!((word(&bytes, 0x30, 2), word(&bytes, 0x34, 2)), (15 << 10, 0));
    }
}
