//! EDID of the virtual monitor: VESA Enhanced EDID, release A, revision 2 (structure 1.4), one block.

/// Bytes of a block.
pub(super) const SIZE: usize = 128;
/// The largest side of a detailed timing.
pub(super) const MAX_SIDE: u16 = 4095;
/// Pixels per centimetre, at 96 per inch.
const DENSITY: f64 = 96.0 / 2.54;
/// Blanking as in CVT's reduced version 2: so many columns, and lines.
const BLANK: (u32, u32) = (80, 40);
/// A second's frames.
const RATE: u32 = 60;
/// The fastest clock of a detailed timing, in units of 10 kHz.
const MAX_CLOCK: u32 = u16::MAX as u32;

/// The block of a monitor whose best size is `width` by `height`, neither larger than [`MAX_SIDE`].
pub(super) fn block(width: u16, height: u16) -> [u8; SIZE] {
    let mut block = [0; SIZE];
    let parts: [(usize, &[u8]); 12] = [
        (0, &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]),
        // "VIR", five bits a letter; product 1, no serial number, made in 2026.
        (8, &[0x59, 0x32, 1, 0, 0, 0, 0, 0, 0, 36]),
        (18, &[1, 4]),
        // Digital, 8 bits a colour; its size; gamma 2.2.
        (20, &[0b1010_0000, centimetres(width), centimetres(height), 120]),
        // RGB, sRGB is the default, the first timing is the best.
        (24, &[0b0000_0110]),
        // sRGB's chromaticities.
        (25, &[0xee, 0x91, 0xa3, 0x54, 0x4c, 0x99, 0x26, 0x0f, 0x50, 0x54]),
        // 640x480, 800x600, 1024x768, all at 60 Hz.
        (35, &[0b0010_0001, 0b0000_1000, 0]),
        // No standard timings.
        (38, &[1; 16]),
        (54, &timing(width, height)),
        // Its name, and two descriptors of nothing.
        (72, b"\0\0\0\xfc\0Vireo\n       "),
        (90, &[0, 0, 0, 0x10]),
        (108, &[0, 0, 0, 0x10]),
    ];
    for (at, part) in parts {
        if let Some(bytes) = block.get_mut(at..at + part.len()) {
            bytes.copy_from_slice(part);
        }
    }
    let sum = block.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    let [.., last] = &mut block;
    *last = sum.wrapping_neg();
    block
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what a byte holds")]
fn centimetres(pixels: u16) -> u8 {
    (f64::from(pixels) / DENSITY).round().clamp(1.0, 255.0) as u8
}

/// A detailed timing descriptor.
fn timing(width: u16, height: u16) -> [u8; 18] {
    let (width, height) = (width.clamp(1, MAX_SIDE), height.clamp(1, MAX_SIDE));
    let total = (u32::from(width) + BLANK.0) * (u32::from(height) + BLANK.1);
    let clock = (total / 10_000 * RATE).clamp(1, MAX_CLOCK);
    let [clock_low, clock_high, ..] = clock.to_le_bytes();
    let ([w, w_high], [h, h_high]) = (width.to_le_bytes(), height.to_le_bytes());
    let ([blank_w, ..], [blank_h, ..]) = (BLANK.0.to_le_bytes(), BLANK.1.to_le_bytes());
    let mm = |pixels: u16| (u16::from(centimetres(pixels)) * 10).to_le_bytes();
    let ([mm_w, mm_w_high], [mm_h, mm_h_high]) = (mm(width), mm(height));
    // Sync begins 8 columns and 3 lines into the blanking, and is 32 columns and 8 lines long.
    let sync = [8, 32, 3 << 4 | 8, 0];
    [
        clock_low,
        clock_high,
        w,
        blank_w,
        w_high << 4,
        h,
        blank_h,
        h_high << 4,
        sync[0],
        sync[1],
        sync[2],
        sync[3],
        mm_w,
        mm_h,
        mm_w_high << 4 | mm_h_high,
        0,
        0,
        // Digital separate sync: positive horizontal, negative vertical.
        0b0001_1010,
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_identifies_the_display() {
        let block = block(1920, 1080);
        assert_eq!(block[..8], [0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]);
        assert_eq!(block[18..20], [1, 4]);
        assert_eq!((block[21], block[22]), (51, 29));
        assert_eq!(&block[77..82], b"Vireo");
        // (1920 + 80) * (1080 + 40) * 60 is 134.4 MHz.
        assert_eq!(u16::from_le_bytes([block[54], block[55]]), 13_440);
    }

    proptest! {
        #[test]
        fn the_best_timing_is_the_size(width in 1_u16..=MAX_SIDE, height in 1_u16..=MAX_SIDE) {
            let block = block(width, height);
            prop_assert_eq!(block.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0);
            let side = |low: usize| u16::from(block[low]) | u16::from(block[low + 2] >> 4) << 8;
            prop_assert_eq!((side(56), side(59)), (width, height));
            prop_assert!(u16::from_le_bytes([block[54], block[55]]) > 0);
        }
    }
}
