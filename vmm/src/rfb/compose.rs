use std::io::{self, Write};

use super::encode::Encoder;
use super::update::Step;
use crate::display::{Area, Band};

/// So much is encoded before it is sent.
const PACKET: usize = 64 << 10;
/// The number of rectangles of an update whose end is marked by one (`rfbproto`, `LastRect`).
const UNTIL_LAST: u16 = 0xffff;

/// Makes messages for one viewer.
pub(super) struct Composer {
    encoder: Encoder,
    band: Band,
}

impl Composer {
    pub(super) fn new(band: Band) -> Self {
        Self { encoder: Encoder::new(), band }
    }

    /// Sends one `FramebufferUpdate` (RFC 6143, section 7.6.1), whose pixels `copy` copies.
    pub(super) fn send(
        &mut self,
        step: Step,
        copy: impl Fn(Area, &mut Band),
        to: &mut impl Write,
    ) -> io::Result<()> {
        let Self { encoder, band } = self;
        let mut out = Vec::new();
        if let Some(encodings) = step.encodings {
            encoder.choose(&encodings);
        }
        if let Some(format) = step.format {
            encoder.set_format(format);
            out.extend(format.colour_map().unwrap_or_default());
        }
        let count = step.notes.len() + step.areas.len() + usize::from(step.cursor.is_some());
        // There are never so many: a display has less than 2^16 tiles.
        let count = if encoder.marks_end() { UNTIL_LAST } else { u16::try_from(count).unwrap_or(u16::MAX) };
        out.extend([0, 0]);
        out.extend(count.to_be_bytes());
        step.notes.iter().for_each(|note| out.extend(note));
        if let Some(cursor) = step.cursor {
            encoder.cursor(&mut out, &cursor);
        }
        for area in step.areas {
            copy(area, band);
            encoder.rectangles(&mut out, area, band.pixels());
            if out.len() >= PACKET {
                to.write_all(&out)?;
                out.clear();
            }
        }
        if encoder.marks_end() {
            encoder.end(&mut out);
        }
        to.write_all(&out)
    }
}
