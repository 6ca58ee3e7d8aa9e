use flate2::{Compress, Compression, FlushCompress};

use super::format::{Converter, PixelFormat};
use super::tight::{TIGHT, Tight};
use super::zrle;
use crate::display::{Area, Cursor};

/// Encodings (RFC 6143, section 7.7, and `rfbproto`).
const RAW: i32 = 0;
const ZLIB: i32 = 6;
const ZRLE: i32 = 16;
/// Pseudo-encodings.
const LAST_RECT: i32 = -224;
pub(super) const CURSOR: i32 = -239;
/// Lines of one rectangle: what is encoded at a time stays small, and whole tiles of ZRLE.
pub(super) const BAND: u16 = 64;
/// Columns of one rectangle: what Tight allows.
pub(super) const MAX_WIDTH: u16 = 2048;
/// Displays are mostly flat areas: a higher level hardly compresses them better.
const EFFORT: u32 = 3;
/// From where on a pixel of a cursor is seen, as viewers know no shades of it.
const OPAQUE: u8 = 0x80;

/// How a viewer is sent pixels.
pub(super) struct Encoder {
    converter: Converter,
    encoding: i32,
    /// The viewer accepts an update without a count of rectangles.
    last_rect: bool,
    tight: Tight,
    /// One stream for as long as the viewer is there. Made when it is first needed: it is the largest thing here.
    zlib: Option<Compress>,
    plain: Vec<u8>,
}

impl Encoder {
    pub(super) fn new() -> Self {
        let converter = Converter::new(PixelFormat::default());
        Self {
            converter,
            encoding: RAW,
            last_rect: false,
            tight: Tight::default(),
            zlib: None,
            plain: Vec::new(),
        }
    }

    /// Uses the first of `known` that is spoken here, as the viewer prefers it.
    pub(super) fn choose(&mut self, known: &[i32]) {
        let spoken = known.iter().find(|known| matches!(**known, RAW | ZLIB | TIGHT | ZRLE));
        self.encoding = spoken.copied().unwrap_or(RAW);
        self.last_rect = known.contains(&LAST_RECT);
    }

    pub(super) fn set_format(&mut self, format: PixelFormat) {
        if self.converter.format() != format {
            self.converter = Converter::new(format);
        }
    }

    /// Whether updates have as many rectangles as come before [`Self::end`].
    pub(super) fn marks_end(&self) -> bool {
        self.last_rect && self.encoding == TIGHT
    }

    /// Appends the mark of an update's end.
    pub(super) fn end(&self, out: &mut Vec<u8>) {
        header(out, Area::default(), LAST_RECT);
    }

    /// Appends what the pointer looks like: its pixels, and a bit for each that is seen.
    pub(super) fn cursor(&self, out: &mut Vec<u8>, cursor: &Cursor) {
        let (width, height) = (cursor.width, cursor.height);
        header(out, Area { x: cursor.hot.0, y: cursor.hot.1, width, height }, CURSOR);
        cursor.pixels.iter().for_each(|pixel| self.converter.push(out, *pixel));
        let seen = |pixel: &u32| pixel.to_be_bytes()[0] >= OPAQUE;
        for line in cursor.pixels.chunks(usize::from(width).max(1)) {
            out.extend(line.chunks(8).map(|group| {
                let bits = group.iter().zip((0..8).rev());
                bits.fold(0, |byte, (pixel, bit)| byte | u8::from(seen(pixel)) << bit)
            }));
        }
    }

    /// Appends `area` with `pixels`: as one rectangle, unless the update's end is marked.
    pub(super) fn rectangles(&mut self, out: &mut Vec<u8>, area: Area, pixels: &[u32]) {
        if self.encoding == TIGHT {
            let split = self.last_rect;
            self.tight.rectangles(out, &self.converter, (area, pixels), split);
        } else {
            self.rectangle(out, area, pixels);
        }
    }

    fn rectangle(&mut self, out: &mut Vec<u8>, area: Area, pixels: &[u32]) {
        header(out, area, self.encoding);
        let converter = &self.converter;
        match self.encoding {
            ZRLE => {
                self.plain.clear();
                zrle::tiles(&mut self.plain, converter, pixels, area.width.into());
            }
            ZLIB => {
                self.plain.clear();
                pixels.iter().for_each(|pixel| converter.push(&mut self.plain, *pixel));
            }
            _ => return pixels.iter().for_each(|pixel| converter.push(out, *pixel)),
        }
        let zlib = self.zlib.get_or_insert_with(compressor);
        let start = out.len();
        out.extend([0; 4]);
        deflate(zlib, out, &self.plain);
        let len = u32::try_from(out.len() - start - 4).unwrap_or(u32::MAX);
        if let Some(field) = out.get_mut(start..start + 4) {
            field.copy_from_slice(&len.to_be_bytes());
        }
    }
}

/// Appends what begins every rectangle.
pub(super) fn header(out: &mut Vec<u8>, area: Area, encoding: i32) {
    for value in [area.x, area.y, area.width, area.height] {
        out.extend(value.to_be_bytes());
    }
    out.extend(encoding.to_be_bytes());
}

/// A new stream.
pub(super) fn compressor() -> Compress {
    Compress::new(Compression::new(EFFORT), true)
}

/// Appends `bytes`, compressed and flushed, so that the other side can read all of them.
pub(super) fn deflate(zlib: &mut Compress, out: &mut Vec<u8>, mut bytes: &[u8]) {
    loop {
        out.reserve((bytes.len() / 4).max(256));
        let before = zlib.total_in();
        // The one error there is means that no progress was possible: there is room, so there was no input left.
        let _ended = zlib.compress_vec(bytes, out, FlushCompress::Sync);
        let taken = usize::try_from(zlib.total_in() - before).unwrap_or(bytes.len());
        bytes = bytes.get(taken..).unwrap_or_default();
        if bytes.is_empty() && out.len() < out.capacity() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use flate2::{Decompress, FlushDecompress};

    use super::*;

    fn pixels(count: u32) -> Vec<u32> {
        (0..count).map(|at| at.wrapping_mul(0x9e37_79b1) >> 8).collect()
    }

    fn header_of(bytes: &[u8]) -> (Area, i32) {
        let value = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let area = Area { x: value(0), y: value(2), width: value(4), height: value(6) };
        (area, i32::from_be_bytes(bytes[8..12].try_into().unwrap()))
    }

    fn inflate(zlib: &mut Decompress, bytes: &[u8], size: usize) -> Vec<u8> {
        let len = u32::from_be_bytes(bytes[12..16].try_into().unwrap());
        assert_eq!(usize::try_from(len).unwrap(), bytes.len() - 16);
        let mut plain = Vec::with_capacity(size + 1);
        zlib.decompress_vec(&bytes[16..], &mut plain, FlushDecompress::Sync).unwrap();
        plain
    }

    #[test]
    fn raw_pixels_follow_their_header() {
        let area = Area { x: 1, y: 2, width: 2, height: 1 };
        let mut out = Vec::new();
        Encoder::new().rectangle(&mut out, area, &[0x11_2233, 0x44_5566]);
        assert_eq!(header_of(&out), (area, RAW));
        assert_eq!(out[12..], [0x33, 0x22, 0x11, 0, 0x66, 0x55, 0x44, 0]);
    }

    #[test]
    fn one_stream_carries_all_rectangles() {
        for encoding in [ZRLE, ZLIB] {
            let (mut encoder, mut zlib) = (Encoder::new(), Decompress::new(true));
            encoder.choose(&[5, encoding, RAW]);
            for (width, height) in [(64, 64), (300, 64), (5, 3), (1, 1), (8192, 64)] {
                let area = Area::sized(width, height);
                let pixels = pixels(u32::from(width) * u32::from(height));
                let mut out = Vec::new();
                encoder.rectangle(&mut out, area, &pixels);
                assert_eq!(header_of(&out), (area, encoding));
                let plain = inflate(&mut zlib, &out, pixels.len() * 5);
                let got = match encoding {
                    ZRLE => zrle::tests::decode(&plain, width.into(), height.into()),
                    _ => plain.chunks(4).map(|p| u32::from_le_bytes(p.try_into().unwrap())).collect(),
                };
                assert_eq!(got, pixels);
            }
        }
    }

    #[test]
    fn a_cursor_has_pixels_and_a_mask() {
        let pixels = vec![0xff11_2233, 0x7f00_0001, 0x8000_0002];
        let cursor = Cursor { width: 3, height: 1, hot: (2, 0), pixels };
        let mut out = Vec::new();
        Encoder::new().cursor(&mut out, &cursor);
        assert_eq!(header_of(&out), (Area { x: 2, y: 0, width: 3, height: 1 }, CURSOR));
        assert_eq!(out[12..], [0x33, 0x22, 0x11, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0b1010_0000]);
        let mut hidden = Vec::new();
        Encoder::new().cursor(&mut hidden, &Cursor::default());
        assert_eq!(hidden.len(), 12);
    }

    #[test]
    fn only_tight_marks_the_end() {
        let mut encoder = Encoder::new();
        for (known, marks) in
            [(&[TIGHT, LAST_RECT][..], true), (&[ZRLE, LAST_RECT], false), (&[TIGHT], false)]
        {
            encoder.choose(known);
            assert_eq!(encoder.marks_end(), marks);
        }
        let mut out = Vec::new();
        encoder.end(&mut out);
        assert_eq!(header_of(&out), (Area::default(), LAST_RECT));
    }

    #[test]
    fn a_viewer_that_names_nothing_known_gets_raw_pixels() {
        let mut encoder = Encoder::new();
        encoder.choose(&[ZRLE]);
        encoder.choose(&[4, 5, -239]);
        assert_eq!(encoder.encoding, RAW);
    }
}
