use std::ops::Range;

/// No guest draws on less; it is a mode that is being set.
const LEAST_SIDE: u16 = 64;

/// What is on the display: a window into the video memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mode {
    width: u16,
    height: u16,
    format: Format,
    stride: usize,
    offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Five, six and five bits.
    Rgb565,
    /// Three bytes, blue first.
    Rgb888,
    /// Four bytes, blue first.
    Xrgb8888,
}

impl Format {
    fn bytes(self) -> usize {
        match self {
            Self::Rgb565 => 2,
            Self::Rgb888 => 3,
            Self::Xrgb8888 => 4,
        }
    }
}

/// The registers that make a mode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) size: (u16, u16),
    pub(super) bits: u16,
    pub(super) virtual_width: u16,
    pub(super) offset: (u16, u16),
}

impl Mode {
    /// `None` if the mode is invalid, or needs more than its `memory` holds.
    pub(super) fn new(wanted: Wanted, memory: usize) -> Option<Self> {
        let (width, height) = wanted.size;
        let format = match wanted.bits {
            16 => Format::Rgb565,
            24 => Format::Rgb888,
            0 | 32 => Format::Xrgb8888,
            _ => return None,
        };
        if width < LEAST_SIDE || height < LEAST_SIDE {
            return None;
        }
        // Sums of products of 16-bit numbers: they cannot overflow.
        let stride = usize::from(wanted.virtual_width.max(width)) * format.bytes();
        let offset = usize::from(wanted.offset.0) * format.bytes() + usize::from(wanted.offset.1) * stride;
        let end = offset + usize::from(height - 1) * stride + usize::from(width) * format.bytes();
        (end <= memory).then_some(Self { width, height, format, stride, offset })
    }

    pub(super) fn width(&self) -> u16 {
        self.width
    }

    pub(super) fn height(&self) -> u16 {
        self.height
    }

    /// Where each line is in the video memory.
    pub(super) fn lines(self) -> impl Iterator<Item = Range<usize>> {
        let bytes = usize::from(self.width) * self.format.bytes();
        (0..usize::from(self.height)).map(move |y| {
            let start = self.offset + y * self.stride;
            start..start + bytes
        })
    }

    /// Appends the pixels of a line as `0x00RRGGBB`.
    pub(super) fn convert(self, bytes: &[u8], row: &mut Vec<u32>) {
        let pixels = bytes.chunks_exact(self.format.bytes());
        row.extend(pixels.map(|pixel| match *pixel {
            [low, high] => {
                let value = u32::from(u16::from_le_bytes([low, high]));
                let (r, g, b) = (value >> 11, value >> 5 & 0x3f, value & 0x1f);
                (r << 3 | r >> 2) << 16 | (g << 2 | g >> 4) << 8 | (b << 3 | b >> 2)
            }
            [blue, green, red, ..] => u32::from_le_bytes([blue, green, red, 0]),
            _ => 0,
        }));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MEMORY: usize = 16 << 20;

    fn wanted(width: u16, height: u16, bits: u16) -> Wanted {
        Wanted { size: (width, height), bits, ..Wanted::default() }
    }

    #[test]
    fn lines_are_at_the_addresses_of_the_registers() {
        let panned = Wanted { virtual_width: 1000, offset: (10, 20), ..wanted(640, 480, 32) };
        let mode = Mode::new(panned, MEMORY).unwrap();
        let lines: Vec<_> = mode.lines().collect();
        assert_eq!((lines.len(), lines[0].clone()), (480, 80_040..82_600));
        assert_eq!(lines[1].start - lines[0].start, 4000);
    }

    #[test]
    fn what_does_not_fit_is_no_mode() {
        assert!(Mode::new(wanted(2048, 2048, 32), MEMORY).is_some());
        assert!(Mode::new(wanted(2048, 2049, 32), MEMORY).is_none());
        assert!(Mode::new(Wanted { offset: (0, 1), ..wanted(2048, 2048, 32) }, MEMORY).is_none());
        for bits in [1, 4, 8, 15, 33] {
            assert!(Mode::new(wanted(640, 480, bits), MEMORY).is_none(), "{bits}");
        }
        assert!(Mode::new(wanted(0, 480, 32), MEMORY).is_none());
    }

    #[test]
    fn colours_are_read_in_each_format() {
        for (bits, bytes, colour) in [
            (16, &[0x00, 0xf8][..], 0xff_0000),
            (16, &[0xe0, 0x07], 0x00_ff00),
            (16, &[0xff, 0xff], 0xff_ffff),
            (24, &[1, 2, 3], 0x03_0201),
            (32, &[1, 2, 3, 0xff], 0x03_0201),
        ] {
            let mut row = Vec::new();
            Mode::new(wanted(640, 480, bits), MEMORY).unwrap().convert(bytes, &mut row);
            assert_eq!(row, [colour]);
        }
    }

    proptest! {
        #[test]
        fn no_mode_reaches_beyond_the_memory(
            size: (u16, u16), bits in 0_u16..40, virtual_width: u16, offset: (u16, u16), memory in 0_usize..MEMORY,
        ) {
            if let Some(mode) = Mode::new(Wanted { size, bits, virtual_width, offset }, memory) {
                prop_assert!(mode.lines().all(|line| line.end <= memory));
            }
        }
    }
}
