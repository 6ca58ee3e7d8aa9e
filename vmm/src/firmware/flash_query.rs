use super::flash::{BLOCK, BUFFER};

/// The response of a flash of `size` bytes at `at` (JEDEC 68.01, common flash interface).
pub(super) fn query(size: usize, at: usize) -> u8 {
    const INTEL_EXTENDED: u8 = 1;
    let low = |value: usize| value.to_le_bytes();
    let blocks = low((size / BLOCK).saturating_sub(1));
    let block = low(BLOCK / 256);
    let exponent = |value: usize| u8::try_from(value.checked_ilog2().unwrap_or(0)).unwrap_or(0);
    match at {
        0x10 => b'Q',
        0x11 => b'R',
        0x12 => b'Y',
        0x13 => INTEL_EXTENDED,
        // 4.5 to 5.5 volts.
        0x1b => 0x45,
        0x1c => 0x55,
        // Typical times of a write, a buffered write and an erasure, as powers of two.
        0x1f | 0x20 => 7,
        0x21 => 10,
        // The size is reported as the next power of two; the erase blocks report it exactly.
        0x27 => exponent(size.next_power_of_two()),
        0x2a => exponent(BUFFER),
        // One region of equal blocks.
        0x2c => 1,
        0x2d => blocks[0],
        0x2e => blocks[1],
        0x2f => block[0],
        0x30 => block[1],
        _ => 0,
    }
}
