//! Tight (`rfbproto`, encoding 7): flat areas as one colour, few colours as indices, anything else as it is; each kind
//! compressed in a stream of its own. No JPEG: what is sent is what is on the display.

use flate2::Compress;

use super::encode;
use super::format::Converter;
use crate::display::Area;

pub(super) const TIGHT: i32 = 7;
/// Where an area is cut to find its flat parts.
const COLUMNS: u16 = 64;
const PALETTE: usize = 256;
/// Of pixels of one byte a larger palette is none the smaller.
const SMALL_PALETTE: usize = 2;
/// Shorter data is sent as it is, without its length.
const SHORT: usize = 12;
// The first byte of a rectangle, and the filter behind it.
const FILL: u8 = 8 << 4;
const WITH_FILTER: u8 = 4 << 4;
const FILTER_PALETTE: u8 = 1;
/// Which stream carries what.
const WHOLE: usize = 0;
const TWO_COLOURS: usize = 1;
const INDICES: usize = 2;

/// The streams, which live as long as the viewer. Made when they are first needed.
#[derive(Default)]
pub(super) struct Tight {
    streams: [Option<Compress>; 3],
    plain: Vec<u8>,
    packed: Vec<u8>,
}

impl Tight {
    /// Appends `area` with `pixels` as one rectangle or, with `split`, as many as it has flat parts and others; says
    /// how many.
    pub(super) fn rectangles(
        &mut self,
        out: &mut Vec<u8>,
        converter: &Converter,
        (area, pixels): (Area, &[u32]),
        split: bool,
    ) -> u16 {
        let parts = if split { parts(area, pixels) } else { vec![area] };
        let mut count = 0;
        for part in parts {
            encode::header(out, part, TIGHT);
            if part == area {
                self.rectangle(out, converter, pixels, part.width.into());
            } else {
                let inside = columns(part.x - area.x, part.width);
                let lines = pixels.chunks(usize::from(area.width).max(1));
                let cut: Vec<u32> =
                    lines.flat_map(|line| line.get(inside.clone()).unwrap_or_default()).copied().collect();
                self.rectangle(out, converter, &cut, part.width.into());
            }
            count += 1;
        }
        count
    }

    fn rectangle(&mut self, out: &mut Vec<u8>, converter: &Converter, pixels: &[u32], width: usize) {
        let size = converter.tight_size();
        let most = if size == 1 { SMALL_PALETTE } else { PALETTE };
        let palette = palette(pixels, most);
        self.plain.clear();
        match palette.as_deref() {
            Some([colour]) => {
                out.push(FILL);
                converter.push_tight(out, *colour);
            }
            Some(colours @ [first, second]) => {
                with_palette(out, converter, TWO_COLOURS, colours);
                let (first, second) = (*first, *second);
                debug_assert!(pixels.iter().all(|pixel| [first, second].contains(pixel)));
                for line in pixels.chunks(width.max(1)) {
                    self.plain.extend(line.chunks(8).map(|group| {
                        let bits = group.iter().zip((0..8).rev());
                        bits.fold(0, |byte, (pixel, bit)| byte | u8::from(*pixel == second) << bit)
                    }));
                }
                self.send(out, TWO_COLOURS);
            }
            Some(colours) if colours.len() * size + pixels.len() < pixels.len() * size => {
                with_palette(out, converter, INDICES, colours);
                let index =
                    |pixel: &u32| u8::try_from(colours.binary_search(pixel).unwrap_or(0)).unwrap_or(0);
                self.plain.extend(pixels.iter().map(index));
                self.send(out, INDICES);
            }
            Some(_) | None => {
                out.push(control(WHOLE));
                pixels.iter().for_each(|pixel| converter.push_tight(&mut self.plain, *pixel));
                self.send(out, WHOLE);
            }
        }
    }

    fn send(&mut self, out: &mut Vec<u8>, stream: usize) {
        if self.plain.len() < SHORT {
            return out.extend(&self.plain);
        }
        let Some(zlib) = self.streams.get_mut(stream) else { return };
        let zlib = zlib.get_or_insert_with(encode::compressor);
        self.packed.clear();
        encode::deflate(zlib, &mut self.packed, &self.plain);
        push_length(out, self.packed.len());
        out.extend(&self.packed);
    }
}

fn control(stream: usize) -> u8 {
    u8::try_from(stream << 4).unwrap_or(0)
}

fn with_palette(out: &mut Vec<u8>, converter: &Converter, stream: usize, colours: &[u32]) {
    let last = u8::try_from(colours.len().saturating_sub(1)).unwrap_or(u8::MAX);
    out.extend([control(stream) | WITH_FILTER, FILTER_PALETTE, last]);
    colours.iter().for_each(|colour| converter.push_tight(out, *colour));
}

/// The colours, sorted, if there are no more than `most`.
fn palette(pixels: &[u32], most: usize) -> Option<Vec<u32>> {
    let (mut known, mut last): (Vec<u32>, _) = (Vec::new(), None);
    for pixel in pixels {
        if last == Some(*pixel) {
            continue;
        }
        last = Some(*pixel);
        if let Err(at) = known.binary_search(pixel) {
            if known.len() == most {
                return None;
            }
            known.insert(at, *pixel);
        }
    }
    Some(known)
}

/// Seven bits a byte, lowest first; the last of three has eight.
fn push_length(out: &mut Vec<u8>, len: usize) {
    let [a, b, c, ..] = len.to_le_bytes();
    let (low, middle, high) = (a & 0x7f, a >> 7 | (b & 0x3f) << 1, b >> 6 | c << 2);
    match (middle, high) {
        (0, 0) => out.push(low),
        (_, 0) => out.extend([low | 0x80, middle]),
        _ => out.extend([low | 0x80, middle | 0x80, high]),
    }
}

fn columns(x: u16, width: u16) -> std::ops::Range<usize> {
    usize::from(x)..usize::from(x) + usize::from(width)
}

/// Cuts an area into what is of one colour and what is not.
fn parts(area: Area, pixels: &[u32]) -> Vec<Area> {
    let mut parts: Vec<(Option<u32>, Area)> = Vec::new();
    for x in (0..area.width).step_by(COLUMNS.into()) {
        let width = COLUMNS.min(area.width - x);
        let colour = flat(pixels, area.width.into(), columns(x, width));
        match parts.last_mut() {
            Some((before, part)) if *before == colour => part.width += width,
            _ => parts.push((colour, Area { x: area.x + x, width, ..area })),
        }
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

/// The one colour of some columns.
fn flat(pixels: &[u32], width: usize, columns: std::ops::Range<usize>) -> Option<u32> {
    let first = *pixels.get(columns.start)?;
    let mut lines = pixels.chunks(width.max(1)).filter_map(|line| line.get(columns.clone()));
    lines.all(|line| line.iter().all(|pixel| *pixel == first)).then_some(first)
}

#[cfg(test)]
pub(super) mod tests {
    use flate2::{Decompress, FlushDecompress};
    use proptest::prelude::*;

    use super::super::format::PixelFormat;
    use super::*;

    /// The other side, for the format that viewers begin with.
    pub(in super::super) struct Decoder([Decompress; 4]);

    impl Decoder {
        pub(in super::super) fn new() -> Self {
            Self(std::array::from_fn(|_| Decompress::new(true)))
        }

        /// One rectangle behind its header: the pixels, and how many bytes they took.
        pub(in super::super) fn read(
            &mut self,
            bytes: &[u8],
            width: usize,
            height: usize,
        ) -> (Vec<u32>, usize) {
            let mut input = bytes.iter().copied();
            let mut next = || input.next().unwrap();
            let pixel = |next: &mut dyn FnMut() -> u8| u32::from_be_bytes([0, next(), next(), next()]);
            let control = next();
            let count = width * height;
            if control == 0x80 {
                return (vec![pixel(&mut next); count], 4);
            }
            assert_eq!(control & 0x8f, 0);
            let mut colours = Vec::new();
            if control & 0x40 != 0 {
                assert_eq!(next(), 1, "only palettes");
                colours = (0..=next()).map(|_| pixel(&mut next)).collect();
            }
            let size = match colours.len() {
                0 => count * 3,
                2 => width.div_ceil(8) * height,
                _ => count,
            };
            let mut data = Vec::with_capacity(size + 1);
            if size < 12 {
                data.extend((0..size).map(|_| next()));
            } else {
                let mut len = 0;
                for shift in [0, 7, 14] {
                    let byte = usize::from(next());
                    len |= if shift == 14 { byte } else { byte & 0x7f } << shift;
                    if byte & 0x80 == 0 {
                        break;
                    }
                }
                let packed: Vec<u8> = (0..len).map(|_| next()).collect();
                let zlib = &mut self.0[usize::from(control >> 4 & 3)];
                zlib.decompress_vec(&packed, &mut data, FlushDecompress::Sync).unwrap();
            }
            assert_eq!(data.len(), size);
            let pixels: Vec<u32> = match colours.len() {
                0 => data.chunks(3).map(|p| u32::from_be_bytes([0, p[0], p[1], p[2]])).collect(),
                2 => {
                    let line = |line: &[u8]| -> Vec<u32> {
                        (0..width).map(|x| colours[usize::from(line[x / 8] >> (7 - x % 8) & 1)]).collect()
                    };
                    data.chunks(width.div_ceil(8)).flat_map(line).collect()
                }
                _ => data.iter().map(|index| colours[usize::from(*index)]).collect(),
            };
            (pixels, bytes.len() - input.count())
        }
    }

    fn read_all(decoder: &mut Decoder, bytes: &[u8], area: Area, count: u16) -> Vec<u32> {
        let mut pixels = vec![0; usize::from(area.width) * usize::from(area.height)];
        let mut at = 0;
        for _ in 0..count {
            let side = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
            let (x, y, width, height) = (side(at), side(at + 2), side(at + 4), side(at + 6));
            assert_eq!(bytes[at + 8..at + 12], TIGHT.to_be_bytes());
            let (part, len) = decoder.read(&bytes[at + 12..], width, height);
            at += 12 + len;
            for (index, pixel) in part.into_iter().enumerate() {
                let (column, line) =
                    (x - usize::from(area.x) + index % width, y - usize::from(area.y) + index / width);
                pixels[line * usize::from(area.width) + column] = pixel;
            }
        }
        assert_eq!(at, bytes.len(), "something is left");
        pixels
    }

    fn converter() -> Converter {
        Converter::new(PixelFormat::default())
    }

    #[test]
    fn each_kind_is_sent_in_its_form() {
        let (mut tight, mut decoder) = (Tight::default(), Decoder::new());
        let noise: Vec<u32> = (0..4096_u32).map(|at| at.wrapping_mul(0x9e37_79b1) & 0xff_ffff).collect();
        let text: Vec<u32> = (0..4096_u32).map(|at| (((at * at) >> 3) & 1) * 0xff_ffff).collect();
        let some: Vec<u32> = (0..4096_u32).map(|at| at % 200).collect();
        for (pixels, first) in [(vec![5; 4096], 0x80), (text, 0x50), (some, 0x60), (noise, 0)] {
            let mut out = Vec::new();
            tight.rectangle(&mut out, &converter(), &pixels, 64);
            assert_eq!(out[0], first);
            assert_eq!(decoder.read(&out, 64, 64), (pixels, out.len()));
        }
    }

    #[test]
    fn flat_parts_are_cut_out_where_their_number_need_not_be_known() {
        let area = Area { x: 10, y: 20, width: 300, height: 2 };
        let pixels: Vec<u32> = (0..600).map(|at| if at % 300 < 130 { at % 7 } else { 9 }).collect();
        for (split, expected) in [(false, 1), (true, 2)] {
            let (mut tight, mut out) = (Tight::default(), Vec::new());
            let count = tight.rectangles(&mut out, &converter(), (area, &pixels), split);
            assert_eq!(count, expected);
            assert_eq!(read_all(&mut Decoder::new(), &out, area, count), pixels);
        }
    }

    #[test]
    fn lengths_take_one_to_three_bytes() {
        for (len, bytes) in [
            (0, &[0][..]),
            (127, &[127]),
            (128, &[0x80, 1]),
            (10_000, &[0x90, 0x4e]),
            (16_383, &[0xff, 0x7f]),
            (16_384, &[0x80, 0x80, 1]),
            (4_194_303, &[0xff, 0xff, 0xff]),
        ] {
            let mut out = Vec::new();
            push_length(&mut out, len);
            assert_eq!(out, bytes, "{len}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_read_back(
            rounds in prop::collection::vec((1_u16..200, 1_u16..65, 1_u32..600, any::<u32>(), 1_usize..200), 1..5),
            split: bool,
        ) {
            let (mut tight, mut decoder) = (Tight::default(), Decoder::new());
            for (width, height, colours, seed, run) in rounds {
                let mut state = seed | 1;
                let area = Area { x: 3, y: 5, width, height };
                let pixels: Vec<u32> = std::iter::repeat_with(|| {
                    state ^= state << 13;
                    state ^= state >> 17;
                    state ^= state << 5;
                    (state % colours * 0x01_0305) & 0xff_ffff
                })
                .flat_map(|colour| std::iter::repeat_n(colour, run))
                .take(usize::from(width) * usize::from(height))
                .collect();
                let mut out = Vec::new();
                let count = tight.rectangles(&mut out, &converter(), (area, &pixels), split);
                prop_assert_eq!(read_all(&mut decoder, &out, area, count), pixels);
            }
        }
    }
}
