use std::fs::File;

use crate::display::Display;

/// A screen with a keyboard and a pointer.
#[derive(Debug)]
pub struct Graphics {
    pub(crate) display: Display,
    pub(crate) video_bios: Option<File>,
}

impl Graphics {
    /// Shown on `display`.
    pub fn new(display: Display) -> Self {
        Self { display, video_bios: None }
    }

    /// With a video BIOS, by which a BIOS and what it starts can show text: SeaBIOS'
    /// `vgabios-bochs-display.bin`.
    #[must_use]
    pub fn with_video_bios(mut self, file: File) -> Self {
        self.video_bios = Some(file);
        self
    }
}
