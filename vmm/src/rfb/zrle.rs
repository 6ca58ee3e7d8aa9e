//! ZRLE's tiles (RFC 6143, section 7.7.6), before compression.

use super::format::Converter;

/// Side of a tile.
const TILE: usize = 64;
/// The largest palette whose indices are packed into bits, and the largest at all.
const PACKED: usize = 16;
const PALETTE: usize = 127;
/// Subencodings with runs.
const PLAIN_RUNS: u8 = 128;

/// Appends `pixels`, lines of `width`, tile by tile, each in the shortest of its forms.
pub(super) fn tiles(out: &mut Vec<u8>, converter: &Converter, pixels: &[u32], width: usize) {
    let mut tile = Vec::with_capacity(TILE * TILE);
    for band in pixels.chunks(width.max(1) * TILE) {
        for left in (0..width).step_by(TILE) {
            let columns = left..(left + TILE).min(width);
            tile.clear();
            for line in band.chunks(width) {
                tile.extend_from_slice(line.get(columns.clone()).unwrap_or_default());
            }
            append(out, converter, &tile, columns.len());
        }
    }
}

/// What is known of a tile.
struct Shape {
    /// Its colours, if they are few.
    palette: Option<Vec<u32>>,
    /// Its runs of one colour.
    runs: Vec<(u32, usize)>,
}

impl Shape {
    fn of(tile: &[u32]) -> Self {
        let mut runs: Vec<(u32, usize)> = Vec::new();
        for pixel in tile {
            match runs.last_mut() {
                Some((colour, len)) if colour == pixel => *len += 1,
                _ => runs.push((*pixel, 1)),
            }
        }
        let mut palette = Some(Vec::new());
        for (colour, _) in &runs {
            let Some(known) = &mut palette else { break };
            if known.contains(colour) {
                continue;
            }
            if known.len() == PALETTE {
                palette = None;
            } else {
                known.push(*colour);
            }
        }
        Self { palette, runs }
    }
}

/// Bytes that encode the length of a run.
fn length_size(run: usize) -> usize {
    (run - 1) / 255 + 1
}

/// Bits of an index into so few colours.
fn index_bits(colours: usize) -> usize {
    match colours {
        ..=2 => 1,
        3..=4 => 2,
        _ => 4,
    }
}

fn append(out: &mut Vec<u8>, converter: &Converter, tile: &[u32], width: usize) {
    let Shape { palette, runs } = Shape::of(tile);
    let size = converter.compact_size();
    let raw = tile.len() * size;
    let plain = runs.iter().map(|(_, len)| size + length_size(*len)).sum::<usize>();
    let least = raw.min(plain);
    if let Some(palette) = &palette
        && let Ok(colours) = u8::try_from(palette.len())
    {
        let map = palette.len() * size;
        let lines = tile.len() / width.max(1);
        let packed = map + lines * (width * index_bits(palette.len())).div_ceil(8);
        let one = |len: usize| if len == 1 { 1 } else { 1 + length_size(len) };
        let indexed = map + runs.iter().map(|(_, len)| one(*len)).sum::<usize>();
        if colours == 1 {
            out.push(1);
            return palette.iter().for_each(|colour| converter.push_compact(out, *colour));
        }
        if palette.len() <= PACKED && packed <= indexed.min(least) {
            out.push(colours);
            palette.iter().for_each(|colour| converter.push_compact(out, *colour));
            return pack(out, tile, width, palette);
        }
        if indexed < least {
            out.push(PLAIN_RUNS + colours);
            palette.iter().for_each(|colour| converter.push_compact(out, *colour));
            return index_runs(out, &runs, palette);
        }
    }
    if plain < raw {
        out.push(PLAIN_RUNS);
        for (colour, len) in runs {
            converter.push_compact(out, colour);
            push_length(out, len);
        }
    } else {
        out.push(0);
        tile.iter().for_each(|pixel| converter.push_compact(out, *pixel));
    }
}

fn index(palette: &[u32], colour: u32) -> u8 {
    let at = palette.iter().position(|known| *known == colour).unwrap_or(0);
    u8::try_from(at).unwrap_or(0)
}

/// Indices from the highest bits down; each line begins a byte.
fn pack(out: &mut Vec<u8>, tile: &[u32], width: usize, palette: &[u32]) {
    let bits = index_bits(palette.len());
    for line in tile.chunks(width.max(1)) {
        for group in line.chunks(8 / bits) {
            let mut byte = 0;
            for (at, pixel) in group.iter().enumerate() {
                byte |= index(palette, *pixel) << (8 - bits * (at + 1));
            }
            out.push(byte);
        }
    }
}

fn index_runs(out: &mut Vec<u8>, runs: &[(u32, usize)], palette: &[u32]) {
    for (colour, len) in runs {
        let index = index(palette, *colour);
        if *len == 1 {
            out.push(index);
        } else {
            out.push(index | 0x80);
            push_length(out, *len);
        }
    }
}

fn push_length(out: &mut Vec<u8>, run: usize) {
    let rest = run - 1;
    out.extend(std::iter::repeat_n(255, rest / 255));
    out.push(u8::try_from(rest % 255).unwrap_or(0));
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::super::format::PixelFormat;
    use super::*;

    /// The other side: pixels of 3 bytes, in the format a viewer begins with.
    pub(in super::super) fn decode(bytes: &[u8], width: usize, height: usize) -> Vec<u32> {
        let mut input = bytes.iter().copied();
        let mut pixels = vec![0; width * height];
        for top in (0..height).step_by(TILE) {
            for left in (0..width).step_by(TILE) {
                let (w, h) = (TILE.min(width - left), TILE.min(height - top));
                for (at, pixel) in decode_tile(&mut input, w, h).into_iter().enumerate() {
                    pixels[(top + at / w) * width + left + at % w] = pixel;
                }
            }
        }
        assert_eq!(input.next(), None, "something is left");
        pixels
    }

    fn pixel(input: &mut impl Iterator<Item = u8>) -> u32 {
        u32::from_le_bytes([input.next().unwrap(), input.next().unwrap(), input.next().unwrap(), 0])
    }

    fn length(input: &mut impl Iterator<Item = u8>) -> usize {
        let mut len = 1;
        loop {
            let byte = input.next().unwrap();
            len += usize::from(byte);
            if byte != 255 {
                return len;
            }
        }
    }

    fn decode_tile(input: &mut impl Iterator<Item = u8>, w: usize, h: usize) -> Vec<u32> {
        let kind = input.next().unwrap();
        let mut tile = Vec::new();
        match kind {
            0 => (0..w * h).for_each(|_| tile.push(pixel(input))),
            1 => tile = vec![pixel(input); w * h],
            2..=16 => {
                let palette: Vec<_> = (0..kind).map(|_| pixel(input)).collect();
                let bits = index_bits(palette.len());
                for _ in 0..h {
                    let mut line = Vec::new();
                    for _ in 0..(w * bits).div_ceil(8) {
                        let byte = input.next().unwrap();
                        let mask = (1_u16 << bits) - 1;
                        for at in 1..=8 / bits {
                            line.push(usize::from(u16::from(byte) >> (8 - bits * at) & mask));
                        }
                    }
                    tile.extend(line[..w].iter().map(|index| palette[*index]));
                }
            }
            128 => {
                while tile.len() < w * h {
                    let colour = pixel(input);
                    let len = length(input);
                    tile.extend(std::iter::repeat_n(colour, len));
                }
            }
            130.. => {
                let palette: Vec<_> = (128..kind).map(|_| pixel(input)).collect();
                while tile.len() < w * h {
                    let index = input.next().unwrap();
                    let len = if index & 0x80 == 0 { 1 } else { length(input) };
                    tile.extend(std::iter::repeat_n(palette[usize::from(index & 0x7f)], len));
                }
            }
            _ => panic!("subencoding {kind}"),
        }
        assert_eq!(tile.len(), w * h);
        tile
    }

    fn encoded(pixels: &[u32], width: usize) -> Vec<u8> {
        let mut out = Vec::new();
        tiles(&mut out, &Converter::new(PixelFormat::default()), pixels, width);
        out
    }

    #[test]
    fn each_form_is_used_where_it_is_shortest() {
        let noise: Vec<u32> = (0..4096_u32).map(|at| at.wrapping_mul(0x9e37_79b1) & 0xff_ffff).collect();
        let text: Vec<u32> = (0..4096_u32).map(|at| ((at * at) >> 3) & 1).collect();
        let stripes: Vec<u32> = (0..4096_u32).map(|at| at / 16 % 100).collect();
        let bands: Vec<u32> = (0..4096_u32).map(|at| at / 20).collect();
        for (pixels, kind) in
            [(vec![5; 4096], 1), (noise, 0), (text, 2), (stripes, 128 + 100), (bands, PLAIN_RUNS)]
        {
            let bytes = encoded(&pixels, 64);
            assert_eq!(bytes[0], kind);
            assert_eq!(decode(&bytes, 64, 64), pixels);
        }
    }

    #[test]
    fn a_run_of_every_length_is_read_back() {
        for len in [1_u32, 2, 254, 255, 256, 257, 510, 511, 512, 4095] {
            let pixels: Vec<_> = (0..4096).map(|at| if at < len { 1 } else { at * 7 }).collect();
            assert_eq!(decode(&encoded(&pixels, 64), 64, 64), pixels, "{len}");
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_read_back(
            width in 1_usize..150,
            height in 1_usize..150,
            colours in 1_u32..200,
            seed: u32,
            run in 1_usize..40,
        ) {
            let mut state = seed | 1;
            let pixels: Vec<u32> = std::iter::repeat_with(|| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                (state % colours * 0x01_0305) & 0xff_ffff
            })
            .flat_map(|colour| std::iter::repeat_n(colour, run))
            .take(width * height)
            .collect();
            prop_assert_eq!(decode(&encoded(&pixels, width), width, height), pixels);
        }
    }
}
