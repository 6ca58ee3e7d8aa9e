//! Screenshots: a VNC client, the same for both hypervisors.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Limit for the whole screenshot; a busy node may need long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Limit of the framebuffer's size, whatever the server announces.
const MAX_PIXELS: usize = 16 << 20;
/// Limit of framebuffer updates, should the size change while they are read.
const MAX_UPDATES: usize = 8;

/// Encodings (RFC 6143, section 7.7).
const RAW: i32 = 0;
const DESKTOP_SIZE: i32 = -223;

/// Why a screenshot fails.
#[derive(Debug, thiserror::Error)]
pub enum ScreenshotError {
    /// The server is missing, or the connection broke.
    #[error("cannot connect to the VNC server")]
    Io(#[from] io::Error),
    /// Silence.
    #[error("no screenshot within {} s", TIMEOUT.as_secs())]
    Timeout,
    /// Not RFB, or not as negotiated.
    #[error("unexpected RFB message: {0}")]
    ProtocolViolation(&'static str),
    /// It could not be written as PNG.
    #[error("the screenshot cannot be encoded")]
    Png(#[from] png::EncodingError),
}

/// Takes a screenshot from the VNC server on `socket`, as PNG. With `move_cursor` the pointer is moved first, which
/// wakes screen savers.
///
/// # Errors
/// When the server does not send a complete framebuffer.
pub async fn take(socket: &Path, move_cursor: bool) -> Result<Vec<u8>, ScreenshotError> {
    let capturing = async {
        let mut viewer = Viewer::connect(socket).await?;
        if move_cursor {
            viewer.move_pointer().await?;
        }
        viewer.capture().await?;
        Ok(viewer)
    };
    let viewer = timeout(TIMEOUT, capturing).await.unwrap_or(Err(ScreenshotError::Timeout))?;
    png(viewer.size, &viewer.pixels)
}

fn png((width, height): (u16, u16), pixels: &[u8]) -> Result<Vec<u8>, ScreenshotError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width.into(), height.into());
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header()?;
    let mut rgb = Vec::with_capacity(pixels.len() / 4 * 3);
    let (pixels, _) = pixels.as_chunks::<4>();
    pixels.iter().for_each(|[blue, green, red, _]| rgb.extend([red, green, blue]));
    writer.write_image_data(&rgb)?;
    writer.finish()?;
    Ok(file)
}

struct Viewer {
    stream: UnixStream,
    size: (u16, u16),
    /// Blue, green, red and a byte that is nothing.
    pixels: Vec<u8>,
}

impl Viewer {
    async fn connect(socket: &Path) -> Result<Self, ScreenshotError> {
        let stream = UnixStream::connect(socket).await?;
        let mut viewer = Self { stream, size: (0, 0), pixels: Vec::new() };
        if !viewer.bytes::<12>().await?.starts_with(b"RFB 003.") {
            return Err(ScreenshotError::ProtocolViolation("not RFB"));
        }
        viewer.stream.write_all(b"RFB 003.008\n").await?;
        let kinds = viewer.stream.read_u8().await?;
        let mut offered = vec![0; kinds.into()];
        viewer.stream.read_exact(&mut offered).await?;
        if !offered.contains(&1) {
            return Err(ScreenshotError::ProtocolViolation("a password is required"));
        }
        viewer.stream.write_all(&[1]).await?;
        if viewer.stream.read_u32().await? != 0 {
            return Err(ScreenshotError::ProtocolViolation("authentication failed"));
        }
        // Shared.
        viewer.stream.write_all(&[1]).await?;
        let size = (viewer.stream.read_u16().await?, viewer.stream.read_u16().await?);
        viewer.resize(size)?;
        viewer.bytes::<16>().await?;
        let name = viewer.stream.read_u32().await?;
        viewer.skip(name).await?;
        // 32 bits, little-endian, blue lowest.
        let format = [0, 0, 0, 0, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0];
        viewer.stream.write_all(&format).await?;
        let mut encodings = vec![2, 0, 0, 2];
        encodings.extend([RAW, DESKTOP_SIZE].iter().flat_map(|encoding| encoding.to_be_bytes()));
        viewer.stream.write_all(&encodings).await?;
        Ok(viewer)
    }

    fn resize(&mut self, size: (u16, u16)) -> Result<(), ScreenshotError> {
        let pixels = usize::from(size.0) * usize::from(size.1);
        if pixels == 0 || pixels > MAX_PIXELS {
            return Err(ScreenshotError::ProtocolViolation("invalid framebuffer size"));
        }
        self.size = size;
        self.pixels = vec![0; pixels * 4];
        Ok(())
    }

    async fn move_pointer(&mut self) -> io::Result<()> {
        for x in [self.size.0 / 2, self.size.0 / 2 + 1] {
            let mut event = vec![5, 0];
            event.extend(x.to_be_bytes());
            event.extend((self.size.1 / 2).to_be_bytes());
            self.stream.write_all(&event).await?;
        }
        Ok(())
    }

    /// Requests updates until one covers the whole framebuffer.
    async fn capture(&mut self) -> Result<(), ScreenshotError> {
        for _ in 0..MAX_UPDATES {
            let mut request = vec![3, 0, 0, 0, 0, 0];
            request.extend(self.size.0.to_be_bytes());
            request.extend(self.size.1.to_be_bytes());
            self.stream.write_all(&request).await?;
            if self.update().await? * 4 >= self.pixels.len() {
                return Ok(());
            }
        }
        Err(ScreenshotError::ProtocolViolation("it never comes to rest"))
    }

    /// Reads one update; returns how many pixels it contained.
    async fn update(&mut self) -> Result<usize, ScreenshotError> {
        loop {
            match self.stream.read_u8().await? {
                0 => break,
                // Bell.
                2 => {}
                // The server's clipboard.
                3 => {
                    self.bytes::<3>().await?;
                    let len = self.stream.read_u32().await?;
                    self.skip(len).await?;
                }
                _ => return Err(ScreenshotError::ProtocolViolation("a message of unknown type")),
            }
        }
        self.stream.read_u8().await?;
        let mut drawn = 0;
        for _ in 0..self.stream.read_u16().await? {
            let mut area = [0; 4];
            for value in &mut area {
                *value = self.stream.read_u16().await?;
            }
            match self.stream.read_i32().await? {
                RAW => drawn += self.draw(area.map(usize::from)).await?,
                DESKTOP_SIZE => {
                    self.resize((area[2], area[3]))?;
                    drawn = 0;
                }
                _ => return Err(ScreenshotError::ProtocolViolation("an encoding that was not offered")),
            }
        }
        Ok(drawn)
    }

    async fn draw(&mut self, [x, y, width, height]: [usize; 4]) -> Result<usize, ScreenshotError> {
        let line = usize::from(self.size.0) * 4;
        if x + width > usize::from(self.size.0) {
            return Err(ScreenshotError::ProtocolViolation("pixels beyond the framebuffer"));
        }
        for y in y..y + height {
            let at = y * line + x * 4;
            let line_pixels = self.pixels.get_mut(at..at + width * 4);
            let line_pixels =
                line_pixels.ok_or(ScreenshotError::ProtocolViolation("pixels beyond the framebuffer"))?;
            self.stream.read_exact(line_pixels).await?;
        }
        Ok(width * height)
    }

    async fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).await?;
        Ok(bytes)
    }

    async fn skip(&mut self, count: u32) -> io::Result<()> {
        let mut rest = (&mut self.stream).take(count.into());
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vireo_vmm::display::{Canvas, Display, Source};
    use vireo_vmm::rfb::{Address, Server};

    use super::*;

    struct Flag;

    impl Source for Flag {
        fn refresh(&self, canvas: &mut Canvas, _whole: bool) {
            canvas.resize(300, 200);
            (0..200).for_each(|y| canvas.put(0, y, &[if y < 100 { 0xff_0010 } else { 0x00_20ff }; 300]));
        }
    }

    #[tokio::test]
    async fn a_screenshot_shows_the_display() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vnc.sock");
        let display = Display::default();
        let flag: Arc<dyn Source> = Arc::new(Flag);
        display.attach(&flag);
        let _server = Server::listen(&Address::Unix(socket.clone()), display).unwrap();
        let file = take(&socket, true).await.unwrap();
        let mut reader = png::Decoder::new(io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height, info.color_type), (300, 200, png::ColorType::Rgb));
        assert!(pixels[..300 * 100 * 3].chunks(3).all(|pixel| pixel == [0xff, 0, 0x10]));
        assert!(pixels[300 * 100 * 3..].chunks(3).all(|pixel| pixel == [0, 0x20, 0xff]));
    }

    #[tokio::test]
    async fn other_servers_give_no_screenshot() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        assert!(matches!(take(&socket, false).await, Err(ScreenshotError::Io(_))));
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        for says in [&b"SSH-2.0-OpenSSH_"[..], b"RFB 003.008\n\x01\x02"] {
            let looked = tokio::spawn({
                let socket = socket.clone();
                async move { take(&socket, false).await }
            });
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(says).await.unwrap();
            assert!(matches!(looked.await.unwrap(), Err(ScreenshotError::ProtocolViolation(_))), "{says:?}");
        }
    }
}
