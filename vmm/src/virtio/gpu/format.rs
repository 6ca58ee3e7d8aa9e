/// How a pixel's four bytes are laid out (section 5.7.6.8, RESOURCE_CREATE_2D).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Format {
    /// As drivers write it.
    pub(super) number: u32,
    /// Where red, green and blue are.
    red: usize,
    green: usize,
    blue: usize,
    /// The shift of alpha; absent for opaque formats.
    alpha: Option<usize>,
}

impl Format {
    /// By the number that drivers write; `None` if no format has it.
    pub(super) fn new(number: u32) -> Option<Self> {
        let (red, green, blue, alpha) = match number {
            1 => (2, 1, 0, Some(3)),
            2 => (2, 1, 0, None),
            3 => (1, 2, 3, Some(0)),
            4 => (1, 2, 3, None),
            67 => (0, 1, 2, Some(3)),
            68 => (3, 2, 1, None),
            121 => (3, 2, 1, Some(0)),
            134 => (0, 1, 2, None),
            _ => return None,
        };
        Some(Self { number, red, green, blue, alpha })
    }

    /// A pixel as `0xAARRGGBB`.
    pub(super) fn argb(self, pixel: [u8; 4]) -> u32 {
        let channel = |at: usize| pixel.get(at).copied().unwrap_or(0);
        let alpha = self.alpha.map_or(0xff, channel);
        u32::from_be_bytes([alpha, channel(self.red), channel(self.green), channel(self.blue)])
    }

    /// A pixel as `0x00RRGGBB`.
    pub(super) fn rgb(self, pixel: [u8; 4]) -> u32 {
        self.argb(pixel) & 0xff_ffff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_where_each_format_has_them() {
        for (number, bytes) in [
            (1, [0x33, 0x22, 0x11, 0x44]),
            (3, [0x44, 0x11, 0x22, 0x33]),
            (67, [0x11, 0x22, 0x33, 0x44]),
            (121, [0x44, 0x33, 0x22, 0x11]),
        ] {
            assert_eq!(Format::new(number).unwrap().argb(bytes), 0x4411_2233, "{number}");
        }
        for (number, bytes) in [(2, [3, 2, 1, 9]), (4, [9, 1, 2, 3]), (68, [9, 3, 2, 1]), (134, [1, 2, 3, 9])]
        {
            assert_eq!(Format::new(number).unwrap().argb(bytes), 0xff01_0203, "{number}");
        }
        for number in [0, 5, 66, 69, 120, 135, u32::MAX] {
            assert_eq!(Format::new(number), None);
        }
    }
}
