use crate::bus::BusRange;
use crate::layout;

const GIB: u64 = 1 << 30;
/// The smallest size that is reported for a window chosen by firmware.
const LEAST: u64 = 32 * GIB;
const LIMIT_32: u64 = layout::PCI32_START + layout::PCI32_SIZE;

const CONFIG: BusRange = constant(layout::ECAM_START, layout::ECAM_SIZE);
const MEMORY32: BusRange = constant(layout::PCI32_START, layout::PCI32_SIZE);
const MEMORY64: BusRange = constant(layout::RAM_ABOVE_4G, layout::PCI64_SIZE);

/// The address ranges of PCI: its configuration space, and the windows of BARs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    config: BusRange,
    memory32: Vec<BusRange>,
    memory64: BusRange,
}

impl Windows {
    /// Where there is no firmware, for a VM whose RAM ends at `memory_end`.
    pub(crate) fn above(memory_end: u64) -> Self {
        Self { config: CONFIG, memory32: vec![MEMORY32], memory64: window64(memory_end) }
    }

    /// Where firmware has put configuration space at `config` (the default, if that range is not usable)
    /// and BARs above 4 GiB at `high_bars`. `low_end` and `memory_end` are where RAM ends, below and above 4 GiB.
    pub(crate) fn chosen(low_end: u64, memory_end: u64, config: Option<BusRange>, high_bars: &[u64]) -> Self {
        let start = low_end.max(layout::RAM_BELOW_4G_SPLIT);
        let config = config.filter(|config| config.start() >= start && config.last() < LIMIT_32);
        let config = config.unwrap_or(CONFIG);
        let sides = [(start, config.start()), (config.last() + 1, LIMIT_32)];
        let side = |(start, end): (u64, u64)| BusRange::new(start, end.checked_sub(start)?);
        Self {
            config,
            memory32: sides.into_iter().filter_map(side).collect(),
            memory64: around(window64(memory_end), high_bars),
        }
    }

    /// Configuration space.
    pub(crate) fn config(&self) -> BusRange {
        self.config
    }

    /// For 32-bit BARs, in order.
    pub(crate) fn memory32(&self) -> &[BusRange] {
        &self.memory32
    }

    /// For 64-bit BARs.
    pub(crate) fn memory64(&self) -> BusRange {
        self.memory64
    }
}

fn window64(memory_end: u64) -> BusRange {
    let start = memory_end.max(layout::RAM_ABOVE_4G).next_multiple_of(layout::PCI64_ALIGN);
    // The PCI bus is not made where this does not fit.
    BusRange::new(start, layout::PCI64_SIZE).unwrap_or(MEMORY64)
}

/// `usual`, or what holds all of `bars` if that does not.
fn around(usual: BusRange, bars: &[u64]) -> BusRange {
    let (Some(first), Some(last)) = (bars.iter().min(), bars.iter().max()) else { return usual };
    if *first >= usual.start() && *last <= usual.last() {
        return usual;
    }
    let start = first / GIB * GIB;
    let end = (last / GIB).saturating_add(1).saturating_mul(GIB).max(start.saturating_add(LEAST));
    BusRange::new(start, end - start).unwrap_or(usual)
}

const fn constant(start: u64, len: u64) -> BusRange {
    match BusRange::new(start, len) {
        Some(range) => range,
        None => panic!("the layout's ranges are not empty and do not wrap"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> BusRange {
        BusRange::new(start, end - start).unwrap()
    }

    #[test]
    fn the_64_bit_window_is_above_all_ram() {
        for (end, start) in
            [(1 << 30, 4 << 30), (0x1_0000_0000, 4 << 30), (0x1_0000_1000, 8 << 30), (66 << 30, 68 << 30)]
        {
            assert_eq!(Windows::above(end).memory64().start(), start, "{end:#x}");
        }
    }

    #[test]
    fn configuration_space_parts_the_32_bit_window() {
        let seabios = Windows::chosen(1 << 30, 1 << 30, Some(range(0xb000_0000, 0xc000_0000)), &[]);
        assert_eq!(seabios.memory32(), [range(0x8000_0000, 0xb000_0000), range(0xc000_0000, 0xfec0_0000)]);
        let low = 0xb000_0000;
        let newer = Windows::chosen(low, low, Some(range(0xe000_0000, 0xf000_0000)), &[]);
        assert_eq!(newer.memory32(), [range(low, 0xe000_0000), range(0xf000_0000, 0xfec0_0000)]);
        assert_eq!(newer.config().start(), 0xe000_0000);
        let at_ram = Windows::chosen(low, low, Some(range(0xb000_0000, 0xc000_0000)), &[]);
        assert_eq!(at_ram.memory32(), [range(0xc000_0000, 0xfec0_0000)]);
    }

    #[test]
    fn unusable_configuration_space_is_ignored() {
        for unusable in [None, Some(range(0x4000_0000, 0x5000_0000)), Some(range(1 << 40, (1 << 40) + 1))] {
            assert_eq!(Windows::chosen(1 << 30, 1 << 30, unusable, &[]).config().start(), 0xb000_0000);
        }
    }

    #[test]
    fn the_64_bit_window_follows_the_bars() {
        let of = |bars: &[u64]| Windows::chosen(1 << 30, 1 << 30, None, bars).memory64();
        assert_eq!(of(&[4 << 30, 5 << 30]), of(&[]));
        let far = of(&[0x38_0000_4000, 0x3fff_ffff_0000]);
        assert_eq!((far.start(), far.last()), (0x38_0000_0000, 0x3fff_ffff_ffff));
        let one = of(&[0x3800_0000_4000]);
        assert_eq!((one.start(), one.last()), (0x3800_0000_0000, 0x3807_ffff_ffff));
        assert_eq!(of(&[u64::MAX]).last(), u64::MAX - 1);
    }
}
