//! The fonts that firmware, boot loaders and kernels draw with, taken from where they have them.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::image::Image;

/// Lines of a glyph; each is a byte of eight pixels, the leftmost highest.
pub const HEIGHT: usize = 16;
/// Columns of a glyph.
pub const WIDTH: usize = 8;
/// SeaBIOS' for VGA adapters: what a BIOS and a VGA text console show (`seabios`).
const VIDEO_BIOS: &str = "/usr/share/seabios/vgabios-stdvga.bin";
/// What GRUB's graphical terminal has (`grub-common`).
const UNIFONT: &str = "/usr/share/grub/unicode.pf2";
/// What is read: no frames of menus, no arrows.
const LETTERS: std::ops::RangeInclusive<char> = '!'..='~';

/// The pixels of a character.
pub type Glyph = [u8; HEIGHT];

/// A font of 8 by 16 pixels.
#[derive(Clone, Debug)]
pub struct Font {
    glyphs: HashMap<Glyph, char>,
}

impl Font {
    /// The fonts that are used on displays.
    pub fn all() -> io::Result<Vec<Self>> {
        let kernel = Image::get().map_err(io::Error::other)?;
        Ok(vec![
            Self::vga(&fs::read(VIDEO_BIOS)?).ok_or_else(|| absent(VIDEO_BIOS.as_ref()))?,
            Self::vga(&fs::read(kernel.host_kernel())?).ok_or_else(|| absent(kernel.host_kernel()))?,
            Self::pf2(&fs::read(UNIFONT)?).ok_or_else(|| absent(UNIFONT.as_ref()))?,
        ])
    }

    /// The character with these pixels.
    pub fn character(&self, glyph: &Glyph) -> Option<char> {
        self.glyphs.get(glyph).copied()
    }

    /// The pixels of a character.
    #[cfg(test)]
    pub(crate) fn glyph(&self, character: char) -> Option<Glyph> {
        self.glyphs.iter().find(|(_, known)| **known == character).map(|(glyph, _)| *glyph)
    }

    fn of(glyphs: impl IntoIterator<Item = (Glyph, char)>) -> Self {
        Self { glyphs: glyphs.into_iter().filter(|(_, character)| LETTERS.contains(character)).collect() }
    }

    /// The fonts that need no image of a host.
    #[cfg(test)]
    pub(crate) fn of_packages() -> Vec<Self> {
        let files = [VIDEO_BIOS, UNIFONT].map(|path| fs::read(path).unwrap());
        vec![Self::vga(&files[0]).unwrap(), Self::pf2(&files[1]).unwrap()]
    }

    /// The 256 glyphs of code page 437 somewhere in a program: found by its blanks and its blocks.
    fn vga(program: &[u8]) -> Option<Self> {
        let glyph = |font: &[u8], code: usize| -> Option<Glyph> {
            font.get(code * HEIGHT..(code + 1) * HEIGHT)?.try_into().ok()
        };
        let is_font = |font: &[u8]| {
            [(0, 0), (0x20, 0), (0xdb, 0xff)]
                .iter()
                .all(|(code, row)| glyph(font, *code).is_some_and(|glyph| glyph == [*row; HEIGHT]))
                && glyph(font, 0xdc).is_some_and(|half| half.starts_with(&[0]) && half.ends_with(&[0xff]))
        };
        let font =
            program.windows(256 * HEIGHT).find(|font| font.starts_with(&[0; HEIGHT]) && is_font(font))?;
        let letters = (0x20..0x7f_u8).filter_map(|code| Some((glyph(font, code.into())?, code.into())));
        Some(Self::of(letters))
    }

    /// A font of GRUB (its `util/grub-mkfont.c`): sections, of which CHIX has the offset of each character.
    fn pf2(file: &[u8]) -> Option<Self> {
        let (mut ascent, mut index, mut at) = (None, None, 0);
        while let Some(length) = big_endian(file, at + 4, 4) {
            let body = file.get(at + 8..)?;
            match file.get(at..at + 4)? {
                b"ASCE" => ascent = big_endian(body, 0, 2),
                b"CHIX" => index = body.get(..length),
                b"DATA" => break,
                _ => {}
            }
            at += 8 + length;
        }
        let ascent = ascent?;
        let glyph = |entry: &[u8]| {
            let character = char::from_u32(big_endian(entry, 0, 4)?.try_into().ok()?)?;
            let place = big_endian(entry, 5, 4).filter(|_| LETTERS.contains(&character))?;
            Some((bitmap(file.get(place..)?, ascent)?, character))
        };
        Some(Self::of(index?.chunks_exact(9).filter_map(glyph)))
    }
}

fn absent(path: &Path) -> io::Error {
    io::Error::other(format!("{}: no font of 16 lines in it", path.display()))
}

fn big_endian(bytes: &[u8], at: usize, count: usize) -> Option<usize> {
    let bytes = bytes.get(at..at + count)?;
    Some(bytes.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

/// A glyph in its cell: width, height, offsets from the left and up from the base line, then bits, first pixel first.
fn bitmap(data: &[u8], ascent: usize) -> Option<Glyph> {
    let signed = |at| Some(i64::from(i16::from_be_bytes(data.get(at..at + 2)?.try_into().ok()?)));
    let (width, height) = (big_endian(data, 0, 2)?, big_endian(data, 2, 2)?);
    let left = usize::try_from(signed(4)?).ok()?;
    let above = i64::try_from(ascent).ok()? - signed(6)? - i64::try_from(height).ok()?;
    let top = usize::try_from(above).ok()?;
    let mut glyph = [0; HEIGHT];
    for bit in 0..width * height {
        let byte = data.get(10 + bit / 8)?;
        let (x, y) = (left + bit % width, top + bit / width);
        if byte >> (7 - bit % 8) & 1 != 0 {
            *glyph.get_mut(y)? |= 0x80_u8.checked_shr(u32::try_from(x).ok()?)?;
        }
    }
    Some(glyph)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_font_is_found_in_a_program() {
        let mut program = vec![0x90; 1000];
        program.extend((0..=255).flat_map(|code: u8| match code {
            0 | 0x20 => [0; HEIGHT],
            0xdb => [0xff; HEIGHT],
            0xdc => std::array::from_fn(|line| if line < 8 { 0 } else { 0xff }),
            other => [other; HEIGHT],
        }));
        program.extend([0xcc; 1000]);
        let font = Font::vga(&program).unwrap();
        assert_eq!(font.character(&[b'A'; HEIGHT]), Some('A'));
        assert_eq!(font.glyphs.len(), LETTERS.count());
        assert!(Font::vga(&program[..5000]).is_none());
    }

    #[test]
    fn a_font_of_grub_places_its_glyphs() {
        // Two columns and three lines, one from the left, one above the base line: lines 10 to 12 of 14.
        let glyph = [0, 2, 0, 3, 0, 1, 0, 1, 0, 8, 0b1001_1100];
        let mut file = b"FILE\0\0\0\x04PFF2ASCE\0\0\0\x02\0\x0eCHIX\0\0\0\x09\0\0\0\x41\0\0\0\0\x37".to_vec();
        file.extend(b"DATA\xff\xff\xff\xff");
        file.resize(0x37, 0);
        file.extend(glyph);
        let mut cell = [0; HEIGHT];
        cell[10] = 0b0100_0000;
        cell[11] = 0b0010_0000;
        cell[12] = 0b0110_0000;
        assert_eq!(Font::pf2(&file).unwrap().character(&cell), Some('A'));
    }
}
