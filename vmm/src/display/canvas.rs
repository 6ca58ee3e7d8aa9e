use std::ops::Range;
use std::sync::Arc;

use super::Cursor;

/// Changes are noted in tiles of so many pixels.
const TILE_WIDTH: usize = 64;
const TILE_HEIGHT: usize = 16;
/// Limit of the size; a larger source is cut.
const MAX_SIDE: u16 = 8192;
const MAX_PIXELS: usize = 16 << 20;
/// What is shown before anything was drawn.
const BLANK: (u16, u16) = (640, 480);

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// First column.
    pub x: u16,
    /// First line.
    pub y: u16,
    /// Columns.
    pub width: u16,
    /// Lines.
    pub height: u16,
}

impl Area {
    /// From the top left corner.
    pub fn sized(width: u16, height: u16) -> Self {
        Self { x: 0, y: 0, width, height }
    }

    /// Whether it has no pixels.
    pub fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0
    }

    /// What both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (x, width) = overlap((self.x, self.width), (other.x, other.width));
        let (y, height) = overlap((self.y, self.height), (other.y, other.height));
        Self { x, y, width, height }
    }

    /// The least rectangle that holds both.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self.is_empty() {
            return other;
        }
        if other.is_empty() {
            return self;
        }
        let (x, width) = hull((self.x, self.width), (other.x, other.width));
        let (y, height) = hull((self.y, self.height), (other.y, other.height));
        Self { x, y, width, height }
    }
}

fn overlap(a: (u16, u16), b: (u16, u16)) -> (u16, u16) {
    let start = a.0.max(b.0);
    let end = a.0.saturating_add(a.1).min(b.0.saturating_add(b.1));
    (start, end.saturating_sub(start))
}

fn hull(a: (u16, u16), b: (u16, u16)) -> (u16, u16) {
    let start = a.0.min(b.0);
    let end = a.0.saturating_add(a.1).max(b.0.saturating_add(b.1));
    (start, end.saturating_sub(start))
}

/// A frame at rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Columns.
    pub width: u16,
    /// Lines.
    pub height: u16,
    /// `0x00RRGGBB`, line by line.
    pub pixels: Vec<u32>,
}

/// The current frame, and when which part of it last changed.
pub struct Canvas {
    width: u16,
    height: u16,
    pixels: Vec<u32>,
    /// The generation each tile last changed in, line by line.
    stamps: Vec<u64>,
    /// Of the last change.
    generation: u64,
    touched: bool,
    /// The source's pointer, and the generation it last changed in.
    cursor: Option<Arc<Cursor>>,
    cursor_stamp: u64,
}

impl Default for Canvas {
    fn default() -> Self {
        let mut canvas = Self {
            width: 0,
            height: 0,
            pixels: Vec::new(),
            stamps: Vec::new(),
            generation: 1,
            touched: false,
            cursor: None,
            cursor_stamp: 0,
        };
        canvas.resize(BLANK.0, BLANK.1);
        canvas
    }
}

impl Canvas {
    /// Columns.
    pub fn width(&self) -> u16 {
        self.width
    }

    /// Lines.
    pub fn height(&self) -> u16 {
        self.height
    }

    /// Counts changes, from 1.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What is drawn from now on is one change.
    pub(crate) fn begin(&mut self) {
        self.generation += 1;
        self.touched = false;
    }

    /// Whether anything changed since [`Self::begin`]; if not, the generation is again `before`.
    pub(super) fn commit(&mut self, before: u64) -> bool {
        if !self.touched {
            self.generation = before;
        }
        self.touched
    }

    /// Makes it so large, and black if that is a change. Sizes that no display has are cut to what it may have.
    pub fn resize(&mut self, width: u16, height: u16) {
        let width = width.clamp(1, MAX_SIDE);
        let most = u16::try_from(MAX_PIXELS / usize::from(width)).unwrap_or(u16::MAX).min(MAX_SIDE);
        let height = height.clamp(1, most);
        if (width, height) == (self.width, self.height) {
            return;
        }
        (self.width, self.height) = (width, height);
        self.pixels = vec![0; usize::from(width) * usize::from(height)];
        let tiles = self.columns() * usize::from(height).div_ceil(TILE_HEIGHT);
        self.stamps = vec![self.generation; tiles];
        self.touched = true;
    }

    fn columns(&self) -> usize {
        usize::from(self.width).div_ceil(TILE_WIDTH)
    }

    /// Draws `row` (`0x00RRGGBB`) from column `x` of line `y`. What is outside is not drawn, what is there already is
    /// no change.
    pub fn put(&mut self, x: usize, y: usize, row: &[u32]) {
        let width = usize::from(self.width);
        if x >= width || y >= usize::from(self.height) {
            return;
        }
        let end = x.saturating_add(row.len()).min(width);
        let tiles = (y / TILE_HEIGHT) * self.columns();
        let mut from = x;
        while from < end {
            let until = ((from / TILE_WIDTH + 1) * TILE_WIDTH).min(end);
            let (Some(old), Some(new)) =
                (self.pixels.get_mut(y * width + from..y * width + until), row.get(from - x..until - x))
            else {
                return;
            };
            if old != new {
                old.copy_from_slice(new);
                if let Some(stamp) = self.stamps.get_mut(tiles + from / TILE_WIDTH) {
                    *stamp = self.generation;
                }
                self.touched = true;
            }
            from = until;
        }
    }

    /// Sets the pointer's shape; `None` if the source draws it itself, or has none.
    pub fn set_cursor(&mut self, cursor: Option<&Arc<Cursor>>) {
        if self.cursor.as_ref() != cursor {
            self.cursor = cursor.cloned();
            self.cursor_stamp = self.generation;
            self.touched = true;
        }
    }

    /// What the pointer looks like, if that changed after generation `seen`.
    pub fn cursor_since(&self, seen: u64) -> Option<&Arc<Cursor>> {
        self.cursor.as_ref().filter(|_| self.cursor_stamp > seen)
    }

    /// Everything.
    pub fn picture(&self) -> Frame {
        Frame { width: self.width, height: self.height, pixels: self.pixels.clone() }
    }

    /// Whether anything changed after generation `seen`.
    pub fn changed_since(&self, seen: u64) -> bool {
        self.generation > seen
    }

    /// What changed after generation `seen`, as few rectangles that do not overlap; together with `also`, which is
    /// taken whole tiles at a time.
    pub fn changes(&self, seen: u64, also: Area) -> Vec<Area> {
        let columns = self.columns();
        let wanted = |row: usize, column: usize, stamp: u64| {
            stamp > seen || !tile(row, column, self).and(also).is_empty()
        };
        let mut done: Vec<Area> = Vec::new();
        // Rectangles that end where this row of tiles begins, and may grow.
        let mut open: Vec<(Range<usize>, Area)> = Vec::new();
        for (row, stamps) in self.stamps.chunks(columns.max(1)).enumerate() {
            let mut grown = Vec::new();
            let mut column = 0;
            while column < stamps.len() {
                let run = stamps
                    .iter()
                    .enumerate()
                    .skip(column)
                    .take_while(|(at, stamp)| wanted(row, *at, **stamp))
                    .count();
                if run == 0 {
                    column += 1;
                    continue;
                }
                let span = column..column + run;
                let area = tile(row, column, self).or(tile(row, column + run - 1, self));
                let area = match open.iter().position(|(above, _)| *above == span) {
                    Some(at) => open.swap_remove(at).1.or(area),
                    None => area,
                };
                grown.push((span, area));
                column += run;
            }
            done.extend(open.drain(..).map(|(_, area)| area));
            open = grown;
        }
        done.extend(open.into_iter().map(|(_, area)| area));
        done
    }

    /// Replaces what `pixels` has by those of `area`, line by line; what is outside is black.
    pub fn copy_to(&self, area: Area, pixels: &mut Vec<u32>) {
        let count = usize::from(area.width) * usize::from(area.height);
        pixels.clear();
        pixels.reserve_exact(count);
        pixels.resize(count, 0);
        let inside = area.and(Area::sized(self.width, self.height));
        if inside.is_empty() {
            return;
        }
        let left = usize::from(inside.x - area.x);
        let count = usize::from(inside.width);
        let lines = pixels.chunks_mut(usize::from(area.width)).skip(usize::from(inside.y - area.y));
        for (line, y) in lines.zip(inside.y..inside.y.saturating_add(inside.height)) {
            let from = usize::from(y) * usize::from(self.width) + usize::from(inside.x);
            if let (Some(to), Some(from)) =
                (line.get_mut(left..left + count), self.pixels.get(from..from + count))
            {
                to.copy_from_slice(from);
            }
        }
    }

    /// For tests: the pixels of `area`.
    #[cfg(test)]
    pub(super) fn copy(&self, area: Area) -> Vec<u32> {
        let mut pixels = Vec::new();
        self.copy_to(area, &mut pixels);
        pixels
    }
}

/// Where a tile is, cut at the edges.
fn tile(row: usize, column: usize, canvas: &Canvas) -> Area {
    let at = |index: usize, size: usize| u16::try_from(index * size).unwrap_or(u16::MAX);
    let (x, y) = (at(column, TILE_WIDTH), at(row, TILE_HEIGHT));
    let area = Area { x, y, width: at(1, TILE_WIDTH), height: at(1, TILE_HEIGHT) };
    area.and(Area::sized(canvas.width, canvas.height))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canvas(width: u16, height: u16) -> Canvas {
        let mut canvas = Canvas::default();
        canvas.resize(width, height);
        canvas
    }

    fn draw(canvas: &mut Canvas, x: usize, y: usize, row: &[u32]) -> bool {
        let before = canvas.generation();
        canvas.begin();
        canvas.put(x, y, row);
        canvas.commit(before)
    }

    #[test]
    fn a_new_canvas_is_one_change() {
        assert_eq!(canvas(200, 100).changes(0, Area::default()), [Area::sized(200, 100)]);
    }

    #[test]
    fn only_what_differs_is_a_change() {
        let mut canvas = canvas(200, 100);
        let seen = canvas.generation();
        assert!(!draw(&mut canvas, 0, 0, &[0; 200]));
        assert_eq!(canvas.generation(), seen);
        assert!(draw(&mut canvas, 70, 20, &[7]));
        assert_eq!(canvas.changes(seen, Area::default()), [Area { x: 64, y: 16, width: 64, height: 16 }]);
        assert!(canvas.changes(canvas.generation(), Area::default()).is_empty());
    }

    #[test]
    fn what_is_outside_is_not_drawn() {
        let mut canvas = canvas(10, 10);
        assert!(!draw(&mut canvas, 10, 0, &[1]));
        assert!(!draw(&mut canvas, 0, 10, &[1]));
        assert!(draw(&mut canvas, 8, 9, &[1, 2, 3, 4]));
        assert_eq!(canvas.copy(Area { x: 7, y: 9, width: 4, height: 2 }), [0, 1, 2, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn neighbours_are_one_rectangle() {
        let mut canvas = canvas(256, 64);
        let seen = canvas.generation();
        for y in 16..48 {
            draw(&mut canvas, 64, y, &[1; 128]);
        }
        assert_eq!(canvas.changes(seen, Area::default()), [Area { x: 64, y: 16, width: 128, height: 32 }]);
    }

    #[test]
    fn sizes_are_limited_to_those_of_a_display() {
        let canvas = canvas(u16::MAX, u16::MAX);
        assert_eq!((canvas.width(), canvas.height()), (8192, 2048));
    }

    proptest! {
        #[test]
        fn changes_cover_each_changed_pixel_once(
            size in (1_u16..300, 1_u16..120),
            dots in prop::collection::vec((0_usize..300, 0_usize..120), 0..40),
            also in (0_u16..400, 0_u16..200, 0_u16..400, 0_u16..200),
        ) {
            let mut canvas = canvas(size.0, size.1);
            let seen = canvas.generation();
            for &(x, y) in &dots {
                draw(&mut canvas, x, y, &[1]);
            }
            let also = Area { x: also.0, y: also.1, width: also.2, height: also.3 };
            let areas = canvas.changes(seen, also);
            let times = |x: usize, y: usize| areas.iter().filter(|area| {
                let inside = |at: usize, from: u16, len: u16| {
                    at >= usize::from(from) && at < usize::from(from) + usize::from(len)
                };
                inside(x, area.x, area.width) && inside(y, area.y, area.height)
            }).count();
            for (x, y) in (0..size.1).flat_map(|y| (0..size.0).map(move |x| (x, y))) {
                let asked = !Area { x, y, width: 1, height: 1 }.and(also).is_empty();
                let (x, y) = (usize::from(x), usize::from(y));
                let expected = dots.contains(&(x, y)) || asked;
                prop_assert!(times(x, y) <= 1);
                prop_assert!(!expected || times(x, y) == 1);
            }
            for area in areas {
                prop_assert!(!area.is_empty());
                prop_assert_eq!(area.and(Area::sized(size.0, size.1)), area);
            }
        }
    }
}
