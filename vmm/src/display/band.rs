use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Area, Canvas};

/// Pixels that a viewer has copied from the canvas: the part of the screen that it encodes next, and never more.
///
/// A viewer has one, whose memory it uses again for each part.
#[derive(Debug, Default)]
pub struct Band {
    pixels: Vec<u32>,
    /// Pixels for which all bands of a display have memory, for those that a display makes.
    copied: Arc<AtomicUsize>,
}

impl Band {
    pub(super) fn new(copied: Arc<AtomicUsize>) -> Self {
        Self { pixels: Vec::new(), copied }
    }

    /// Copies `area` of a canvas. What was copied before is gone.
    pub(crate) fn fill(&mut self, canvas: &Canvas, area: Area) {
        let before = self.pixels.capacity();
        canvas.copy_to(area, &mut self.pixels);
        self.copied.fetch_add(self.pixels.capacity(), Ordering::Relaxed);
        self.copied.fetch_sub(before, Ordering::Relaxed);
    }

    /// What was copied last, line by line.
    pub fn pixels(&self) -> &[u32] {
        &self.pixels
    }
}

impl Drop for Band {
    fn drop(&mut self) {
        self.copied.fetch_sub(self.pixels.capacity(), Ordering::Relaxed);
    }
}
