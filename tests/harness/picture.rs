//! What `look` saw: pictures that scenarios check and keep.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

/// A picture of a display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Columns.
    pub width: usize,
    /// Lines.
    pub height: usize,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// Reads a binary PPM, as `look` writes it.
    pub fn read(path: &Path) -> io::Result<Self> {
        let bytes = fs::read(path)?;
        let broken = || io::Error::other(format!("{}: no binary PPM", path.display()));
        let mut parts = bytes.splitn(4, |byte| *byte == b'\n');
        let mut line = || parts.next().ok_or_else(broken);
        let (magic, size, _depth, pixels) = (line()?, line()?, line()?, line()?);
        let size = String::from_utf8_lossy(size);
        let (width, height) = size.split_once(' ').ok_or_else(broken)?;
        let number = |text: &str| text.parse::<usize>().map_err(|_| broken());
        let (width, height) = (number(width)?, number(height)?);
        let pixels: Vec<[u8; 3]> = pixels.chunks_exact(3).filter_map(|pixel| pixel.try_into().ok()).collect();
        if magic != b"P6" || pixels.len() != width * height {
            return Err(broken());
        }
        Ok(Self { width, height, pixels })
    }

    /// Reads a PNG of eight bits a channel, as `virtctl vnc screenshot` and VNC clients write it.
    pub fn png(file: impl io::BufRead + io::Seek) -> io::Result<Self> {
        let mut decoder = png::Decoder::new(file);
        decoder.set_transformations(png::Transformations::normalize_to_color8());
        let mut reader = decoder.read_info().map_err(io::Error::other)?;
        let mut bytes = vec![0; reader.output_buffer_size().ok_or_else(|| io::Error::other("too large"))?];
        let info = reader.next_frame(&mut bytes).map_err(io::Error::other)?;
        let colours = match info.color_type {
            png::ColorType::Rgb | png::ColorType::Rgba => info.color_type.samples(),
            other => return Err(io::Error::other(format!("a PNG with colours as {other:?}"))),
        };
        let pixels =
            bytes.chunks_exact(colours).filter_map(|pixel| pixel.get(..3)?.try_into().ok()).collect();
        let side = |pixels: u32| usize::try_from(pixels).map_err(io::Error::other);
        Ok(Self { width: side(info.width)?, height: side(info.height)?, pixels })
    }

    /// Red, green and blue at a place; `None` beyond the edge.
    pub fn at(&self, x: usize, y: usize) -> Option<[u8; 3]> {
        let inside = x < self.width && y < self.height;
        inside.then(|| self.pixels.get(y * self.width + x).copied()).flatten()
    }

    /// How many pixels of these lines are not black.
    pub fn lit(&self, lines: std::ops::Range<usize>) -> usize {
        let rows = self.pixels.chunks(self.width.max(1)).skip(lines.start).take(lines.len());
        rows.flatten().filter(|pixel| **pixel != [0; 3]).count()
    }

    /// Keeps it for inspection: `screens/NAME.png` in the target directory, whose path is returned.
    pub fn keep(&self, name: &str) -> io::Result<PathBuf> {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), Into::into);
        let directory = target.join("screens");
        fs::create_dir_all(&directory)?;
        let path = directory.join(format!("{name}.png"));
        let side = |pixels: usize| u32::try_from(pixels).map_err(io::Error::other);
        let file = BufWriter::new(File::create(&path)?);
        let mut encoder = png::Encoder::new(file, side(self.width)?, side(self.height)?);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().map_err(io::Error::other)?;
        writer.write_image_data(self.pixels.as_flattened()).map_err(io::Error::other)?;
        Ok(path)
    }

    /// One colour everywhere.
    #[cfg(test)]
    pub(crate) fn blank(width: usize, height: usize, colour: [u8; 3]) -> Self {
        Self { width, height, pixels: vec![colour; width * height] }
    }

    /// Changes one pixel.
    #[cfg(test)]
    pub(crate) fn set(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        let width = self.width;
        if let Some(pixel) = self.pixels.get_mut(y * width + x).filter(|_| x < width) {
            *pixel = colour;
        }
    }
}
