/// How a viewer wants its pixels (RFC 6143, section 7.4). Always in true colour: a viewer that asks for a colour map
/// is given one that amounts to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PixelFormat {
    bits: u8,
    depth: u8,
    big_endian: bool,
    /// Red, green, blue: the largest value, and where it is.
    channels: [(u16, u8); 3],
    mapped: bool,
}

/// A format that no pixel can have.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("a pixel format that makes no sense")]
pub(super) struct BadFormat;

impl Default for PixelFormat {
    /// As displays have it: 32 bits, blue in the lowest byte, little-endian.
    fn default() -> Self {
        let channels = [(0xff, 16), (0xff, 8), (0xff, 0)];
        Self { bits: 32, depth: 24, big_endian: false, channels, mapped: false }
    }
}

impl PixelFormat {
    /// The 16 bytes of a `PIXEL_FORMAT`.
    pub(super) fn parse(bytes: [u8; 16]) -> Result<Self, BadFormat> {
        let [bits, depth, big_endian, true_colour, r0, r1, g0, g1, b0, b1, rs, gs, bs, ..] = bytes;
        if !matches!(bits, 8 | 16 | 32) || depth == 0 || depth > bits {
            return Err(BadFormat);
        }
        if true_colour == 0 {
            let channels = [(7, 5), (7, 2), (3, 0)];
            let mapped = Self { bits, depth: 8, big_endian: big_endian != 0, channels, mapped: true };
            return if bits == 8 { Ok(mapped) } else { Err(BadFormat) };
        }
        let channels = [([r0, r1], rs), ([g0, g1], gs), ([b0, b1], bs)];
        let channels = channels.map(|(max, shift)| (u16::from_be_bytes(max), shift));
        for (max, shift) in channels {
            let width = 16 - max.leading_zeros();
            if max.count_ones() != width || u32::from(shift) + width > u32::from(bits) {
                return Err(BadFormat);
            }
        }
        Ok(Self { bits, depth, big_endian: big_endian != 0, channels, mapped: false })
    }

    /// The 16 bytes of a `PIXEL_FORMAT`.
    pub(super) fn to_bytes(self) -> [u8; 16] {
        let [(r, rs), (g, gs), (b, bs)] = self.channels;
        let ([r0, r1], [g0, g1], [b0, b1]) = (r.to_be_bytes(), g.to_be_bytes(), b.to_be_bytes());
        let (big, colour) = (u8::from(self.big_endian), u8::from(!self.mapped));
        [self.bits, self.depth, big, colour, r0, r1, g0, g1, b0, b1, rs, gs, bs, 0, 0, 0]
    }

    /// The message that sets the colour map, for a viewer that requested one (RFC 6143, section 7.6.2).
    pub(super) fn colour_map(self) -> Option<Vec<u8>> {
        if !self.mapped {
            return None;
        }
        let mut message = vec![1, 0, 0, 0, 1, 0];
        for index in 0..256_u32 {
            for (max, shift) in self.channels {
                let value = (index >> shift) & u32::from(max);
                let scaled = u16::try_from(value * 0xffff / u32::from(max)).unwrap_or(u16::MAX);
                message.extend(scaled.to_be_bytes());
            }
        }
        Some(message)
    }

    /// Whether it is 24 bits of colour in 32, for which Tight has an order of its own.
    fn is_rgb(self) -> bool {
        self.bits == 32 && self.depth == 24 && self.channels.iter().all(|(max, _)| *max == 0xff)
    }

    /// Which of a pixel's bytes are sent where it is compressed (RFC 6143, section 7.7.5): three of four, if all
    /// colours are in them.
    fn compact(self) -> std::ops::Range<usize> {
        let used = self.channels.iter().fold(0_u32, |used, (max, shift)| used | u32::from(*max) << shift);
        let bytes = usize::from(self.bits / 8);
        if self.bits != 32 || self.depth > 24 {
            return 0..bytes;
        }
        let (low, high) = (used & 0xff00_0000 == 0, used & 0xff == 0);
        match (low, high, self.big_endian) {
            (true, _, false) | (false, true, true) => 0..3,
            (true, _, true) | (false, true, false) => 1..4,
            (false, false, _) => 0..4,
        }
    }
}

/// Turns pixels of the canvas into a viewer's.
pub(super) struct Converter {
    format: PixelFormat,
    tables: Box<[[u32; 256]; 3]>,
    whole: std::ops::Range<usize>,
    compact: std::ops::Range<usize>,
}

impl Converter {
    pub(super) fn new(format: PixelFormat) -> Self {
        let mut tables = Box::new([[0; 256]; 3]);
        for (table, (max, shift)) in tables.iter_mut().zip(format.channels) {
            for (value, entry) in (0_u32..).zip(table.iter_mut()) {
                *entry = ((value * u32::from(max) + 127) / 255) << shift;
            }
        }
        Self { format, tables, whole: 0..usize::from(format.bits / 8), compact: format.compact() }
    }

    pub(super) fn format(&self) -> PixelFormat {
        self.format
    }

    /// Appends `pixel` as the format has it.
    pub(super) fn push(&self, out: &mut Vec<u8>, pixel: u32) {
        self.append(out, pixel, &self.whole);
    }

    /// Appends `pixel` without the byte that no colour is in.
    pub(super) fn push_compact(&self, out: &mut Vec<u8>, pixel: u32) {
        self.append(out, pixel, &self.compact);
    }

    /// Appends `pixel` as Tight has it: red, green and blue, if these are all of a pixel.
    pub(super) fn push_tight(&self, out: &mut Vec<u8>, pixel: u32) {
        if self.format.is_rgb() {
            out.extend_from_slice(pixel.to_be_bytes().get(1..).unwrap_or_default());
        } else {
            self.push(out, pixel);
        }
    }

    /// Bytes of a pixel as Tight has it.
    pub(super) fn tight_size(&self) -> usize {
        if self.format.is_rgb() { 3 } else { self.whole.len() }
    }

    /// Bytes of a compact pixel.
    pub(super) fn compact_size(&self) -> usize {
        self.compact.len()
    }

    fn append(&self, out: &mut Vec<u8>, pixel: u32, part: &std::ops::Range<usize>) {
        let [blue, green, red, _] = pixel.to_le_bytes();
        let [reds, greens, blues] = &*self.tables;
        let value =
            [(reds, red), (greens, green), (blues, blue)].iter().fold(0, |value, (table, channel)| {
                value | table.get(usize::from(*channel)).copied().unwrap_or(0)
            });
        let bytes = if self.format.big_endian {
            (value << (32 - u32::from(self.format.bits))).to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        out.extend_from_slice(bytes.get(part.clone()).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn format(bits: u8, depth: u8, big: u8, channels: [(u16, u8); 3]) -> PixelFormat {
        let [r, g, b] = channels.map(|(max, _)| max.to_be_bytes());
        let [rs, gs, bs] = channels.map(|(_, shift)| shift);
        let bytes = [bits, depth, big, 1, r[0], r[1], g[0], g[1], b[0], b[1], rs, gs, bs, 0, 0, 0];
        PixelFormat::parse(bytes).unwrap()
    }

    fn bytes(format: PixelFormat, compact: bool) -> Vec<u8> {
        let (mut out, converter) = (Vec::new(), Converter::new(format));
        if compact {
            converter.push_compact(&mut out, 0x11_80_ff)
        } else {
            converter.push(&mut out, 0x11_80_ff)
        }
        out
    }

    const RGB: [(u16, u8); 3] = [(255, 16), (255, 8), (255, 0)];

    #[test]
    fn pixels_come_as_they_are_asked_for() {
        for (format, whole, compact) in [
            (format(32, 24, 0, RGB), &[0xff, 0x80, 0x11, 0][..], &[0xff, 0x80, 0x11][..]),
            (format(32, 24, 1, RGB), &[0, 0x11, 0x80, 0xff], &[0x11, 0x80, 0xff]),
            (format(32, 32, 0, RGB), &[0xff, 0x80, 0x11, 0], &[0xff, 0x80, 0x11, 0]),
            (
                format(32, 24, 0, [(255, 24), (255, 16), (255, 8)]),
                &[0, 0xff, 0x80, 0x11],
                &[0xff, 0x80, 0x11],
            ),
            (
                format(32, 24, 1, [(255, 24), (255, 16), (255, 8)]),
                &[0x11, 0x80, 0xff, 0],
                &[0x11, 0x80, 0xff],
            ),
            (format(16, 16, 0, [(31, 11), (63, 5), (31, 0)]), &[0x1f, 0x14], &[0x1f, 0x14]),
            (format(16, 16, 1, [(31, 11), (63, 5), (31, 0)]), &[0x14, 0x1f], &[0x14, 0x1f]),
            (format(8, 8, 1, [(7, 0), (7, 3), (3, 6)]), &[0b1110_0000], &[0b1110_0000]),
        ] {
            assert_eq!(bytes(format, false), whole, "{format:?}");
            assert_eq!(bytes(format, true), compact, "{format:?}");
            assert_eq!(Converter::new(format).compact_size(), compact.len());
        }
    }

    #[test]
    fn a_colour_map_amounts_to_true_colour() {
        let format = PixelFormat::parse([8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let map = format.colour_map().unwrap();
        assert_eq!(map.len(), 6 + 256 * 6);
        let index = usize::from(bytes(format, false)[0]);
        assert_eq!(map[6 + index * 6..][..6], [0, 0, 0x92, 0x48, 0xff, 0xff]);
        assert_eq!(PixelFormat::default().colour_map(), None);
    }

    proptest! {
        #[test]
        fn no_format_makes_a_pixel_of_another_size(bytes: [u8; 16], pixel: u32) {
            if let Ok(format) = PixelFormat::parse(bytes) {
                let converter = Converter::new(format);
                let (mut whole, mut compact) = (Vec::new(), Vec::new());
                converter.push(&mut whole, pixel);
                converter.push_compact(&mut compact, pixel);
                prop_assert_eq!(whole.len(), usize::from(bytes[0]) / 8);
                prop_assert_eq!(compact.len(), converter.compact_size());
                if bytes[3] != 0 {
                    prop_assert_eq!(PixelFormat::parse(format.to_bytes()), Ok(format));
                }
            }
        }
    }
}
