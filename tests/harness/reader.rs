//! Reads the text on a display, as exactly as it was drawn: a cell is a character if its pixels are.

use std::io;
use std::ops::Range;

use crate::font::{Font, Glyph, HEIGHT, WIDTH};
use crate::picture::Picture;

/// Stands for pixels that match no character.
const UNKNOWN: char = '\u{fffd}';
/// Where the cells begin is looked for in so many lines, from the first that has something.
const SAMPLE: usize = 7 * HEIGHT;

/// Knows the fonts.
#[derive(Clone, Debug)]
pub struct Reader {
    fonts: Vec<Font>,
}

/// Where the cells of a display are.
#[derive(Clone, Copy, Debug)]
struct Grid {
    left: usize,
    top: usize,
    /// From one cell to the next; VGA text has a ninth column between letters.
    step: usize,
}

#[derive(Default)]
struct Page {
    text: String,
    /// Letters and digits, less what could not be read: marks and blanks may be parts of frames.
    score: i32,
}

impl Reader {
    /// With the fonts of the test host's packages.
    pub fn new() -> io::Result<Self> {
        Ok(Self { fonts: Font::all()? })
    }

    /// The lines of text, without what is blank at their ends; the best of all fonts and of all places where the cells
    /// may begin.
    pub fn read(&self, picture: &Picture) -> String {
        let all = 0..picture.height;
        let corner = [WIDTH, WIDTH + 1].map(|step| Grid { left: 0, top: 0, step });
        let (_, page) = self.best(picture, &all, corner);
        if page.score > 0 {
            return page.text;
        }
        // A window in the middle of the display.
        let places = (0..HEIGHT).flat_map(|top| (0..WIDTH).map(move |left| Grid { left, top, step: WIDTH }));
        let first =
            (0..picture.height).find(|y| (0..picture.width).any(|x| picture.at(x, *y) != picture.at(0, 0)));
        let first = first.unwrap_or_default() / HEIGHT * HEIGHT;
        let (grid, _) = self.best(picture, &(first..first + SAMPLE), corner.into_iter().chain(places));
        self.best(picture, &all, [grid]).1.text
    }

    fn best(
        &self,
        picture: &Picture,
        lines: &Range<usize>,
        grids: impl IntoIterator<Item = Grid>,
    ) -> (Grid, Page) {
        let first = (Grid { left: 0, top: 0, step: WIDTH }, Page { text: String::new(), score: i32::MIN });
        grids.into_iter().flat_map(|grid| self.fonts.iter().map(move |font| (grid, font))).fold(
            first,
            |best, (grid, font)| {
                let page = page(picture, lines, font, grid);
                // Of equals the first.
                if page.score > best.1.score { (grid, page) } else { best }
            },
        )
    }
}

fn page(picture: &Picture, lines: &Range<usize>, font: &Font, grid: Grid) -> Page {
    let mut page = Page::default();
    // Cells that are cut off at an edge hold nothing.
    let (right, bottom) =
        (picture.width.saturating_sub(WIDTH - 1), picture.height.saturating_sub(HEIGHT - 1));
    for top in (lines.start + grid.top..lines.end.min(bottom)).step_by(HEIGHT) {
        let mut line = String::new();
        for left in (grid.left..right).step_by(grid.step) {
            let character = cell(picture, left, top).map_or(UNKNOWN, |glyph| look_up(font, &glyph));
            page.score += i32::from(character.is_ascii_alphanumeric()) - i32::from(character == UNKNOWN);
            line.push(character);
        }
        page.text.push_str(line.trim_end());
        page.text.push('\n');
    }
    page
}

/// Which pixels differ from the first; `None` if there are more than two colours.
fn cell(picture: &Picture, left: usize, top: usize) -> Option<Glyph> {
    let paper = picture.at(left, top)?;
    let mut ink = None;
    let mut glyph = [0; HEIGHT];
    for (y, row) in glyph.iter_mut().enumerate() {
        for x in 0..WIDTH {
            let colour = picture.at(left + x, top + y)?;
            if colour != paper {
                if *ink.get_or_insert(colour) != colour {
                    return None;
                }
                *row |= 0x80 >> x;
            }
        }
    }
    Some(glyph)
}

/// The first pixel may be of the letter or of the paper.
fn look_up(font: &Font, glyph: &Glyph) -> char {
    let other_way = || font.character(&glyph.map(|row| !row));
    match glyph {
        [0, rest @ ..] if rest.iter().all(|row| *row == 0) => ' ',
        _ => font.character(glyph).or_else(other_way).unwrap_or(UNKNOWN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader() -> Reader {
        Reader { fonts: Font::of_packages() }
    }

    /// Draws text with a font, upper left at a place, a cell every `step` columns.
    fn draw(text: &str, font: &Font, grid: Grid, colours: ([u8; 3], [u8; 3])) -> Picture {
        let mut picture = Picture::blank(400, 100, [0; 3]);
        for (line, text) in text.lines().enumerate() {
            for (column, character) in text.chars().enumerate() {
                let glyph = font.glyph(character).unwrap_or_default();
                for (y, row) in glyph.iter().enumerate() {
                    for x in 0..WIDTH {
                        let colour = if row >> (7 - x) & 1 != 0 { colours.1 } else { colours.0 };
                        picture.set(grid.left + column * grid.step + x, grid.top + line * HEIGHT + y, colour);
                    }
                }
            }
        }
        picture
    }

    #[test]
    fn what_is_drawn_is_read() {
        let reader = reader();
        let text = "Vireo, a guest\nlogin: O0 l1 |I\n";
        let (grey, black) = ([0xaa; 3], [0; 3]);
        for font in &reader.fonts {
            for grid in [
                Grid { left: 0, top: 0, step: 8 },
                Grid { left: 0, top: 0, step: 9 },
                Grid { left: 5, top: 11, step: 8 },
            ] {
                for colours in [(black, grey), (grey, black)] {
                    let read = reader.read(&draw(text, font, grid, colours));
                    assert!(read.contains("Vireo, a guest"), "{grid:?} {read}");
                    assert!(read.contains("login: O0 l1 |I"), "{grid:?} {read}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_letter_is_not_read() {
        let reader = reader();
        let mut picture =
            draw("login:", &reader.fonts[0], Grid { left: 0, top: 0, step: 8 }, ([0; 3], [9; 3]));
        picture.set(2, 5, [1; 3]);
        assert!(!reader.read(&picture).contains("login:"));
        assert_eq!(reader.read(&Picture::blank(64, 32, [7; 3])).trim(), "");
    }
}
