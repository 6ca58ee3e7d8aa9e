use std::fs::File;

use crate::display::Display;

/// A display with a keyboard and a pointer.
#[derive(Debug)]
pub struct Graphics {
    pub(crate) display: Display,
    pub(crate) adapter: Adapter,
    pub(crate) video_bios: Option<File>,
}

/// What draws on a display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Adapter {
    /// A linear framebuffer.
    #[default]
    Bochs,
    /// The same until the guest has a driver for virtio-gpu, which follows the size that viewers request.
    Virtio,
}

impl Graphics {
    /// Shown on `display`.
    pub fn new(display: Display, adapter: Adapter) -> Self {
        Self { display, adapter, video_bios: None }
    }

    /// With a video BIOS, by which a BIOS and what it starts can show text: SeaBIOS'
    /// `vgabios-bochs-display.bin`, for either adapter.
    #[must_use]
    pub fn with_video_bios(mut self, file: File) -> Self {
        self.video_bios = Some(file);
        self
    }
}
