//! A VNC viewer for scenarios: looks at a display, types and points. Knows the least of RFB that does that, and shares
//! no code with what it looks at.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
usage: look SOCKET ACTION...
  ppm FILE        writes the contents of the display
  type TEXT       types it, each character as its keysym; \\n is return
  code HEX        presses and lets go of the key with this XT scan code (extended key event)
  point X Y MASK  moves the pointer
  resize W H      asks for another size of the display";
/// For one answer of the server.
const TIMEOUT: Duration = Duration::from_secs(20);
const RETURN: u32 = 0xff0d;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("look: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> io::Result<()> {
    let (socket, mut rest) = words.split_first().ok_or_else(usage)?;
    let mut viewer = Viewer::connect(socket)?;
    while let Some((action, after)) = rest.split_first() {
        let count = match action.as_str() {
            "ppm" | "type" | "code" => 1,
            "point" => 3,
            "resize" => 2,
            _ => return Err(usage()),
        };
        let arguments = after.get(..count).ok_or_else(usage)?;
        match (action.as_str(), arguments) {
            ("ppm", [path]) => viewer.picture()?.write(&mut BufWriter::new(File::create(path)?))?,
            ("type", [text]) => text.replace("\\n", "\n").chars().try_for_each(|key| viewer.stroke(key))?,
            ("code", [hex]) => viewer.code(u32::from_str_radix(hex, 16).map_err(io::Error::other)?)?,
            ("point", [x, y, mask]) => viewer.point(number(x)?, number(y)?, number(mask)?)?,
            ("resize", [width, height]) => viewer.resize(number(width)?, number(height)?)?,
            _ => return Err(usage()),
        }
        rest = after.get(count..).unwrap_or_default();
    }
    // The server has read all of it once it answers.
    viewer.picture().map(drop)
}

fn usage() -> io::Error {
    io::Error::other(USAGE)
}

fn number(word: &str) -> io::Result<u16> {
    word.parse().map_err(io::Error::other)
}

struct Viewer {
    stream: UnixStream,
    picture: Picture,
}

#[derive(Default)]
struct Picture {
    width: usize,
    height: usize,
    /// Blue, green, red, unused.
    pixels: Vec<[u8; 4]>,
}

impl Picture {
    fn resize(&mut self, width: u16, height: u16) {
        (self.width, self.height) = (width.into(), height.into());
        self.pixels = vec![[0; 4]; self.width * self.height];
    }

    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        writeln!(to, "P6\n{} {}\n255", self.width, self.height)?;
        self.pixels.iter().try_for_each(|[blue, green, red, _]| to.write_all(&[*red, *green, *blue]))?;
        to.flush()
    }
}

impl Viewer {
    fn connect(path: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut viewer = Self { stream, picture: Picture::default() };
        let version: [u8; 12] = viewer.bytes()?;
        if !version.starts_with(b"RFB 003.") {
            return Err(io::Error::other("not an RFB server"));
        }
        viewer.stream.write_all(b"RFB 003.008\n")?;
        let [count] = viewer.bytes()?;
        let mut kinds = vec![0; count.into()];
        viewer.stream.read_exact(&mut kinds)?;
        if !kinds.contains(&1) {
            return Err(io::Error::other("the server asks for a password"));
        }
        viewer.stream.write_all(&[1])?;
        if viewer.bytes()? != [0; 4] {
            return Err(io::Error::other("refused"));
        }
        viewer.stream.write_all(&[1])?;
        let (width, height) = (viewer.u16()?, viewer.u16()?);
        viewer.picture.resize(width, height);
        let _format: [u8; 16] = viewer.bytes()?;
        viewer.text()?;
        // 32 bits, little-endian, blue lowest.
        let format = [0, 0, 0, 0, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0];
        viewer.stream.write_all(&format)?;
        // Raw, DesktopSize and QEMU's extended key event.
        let encodings = [2, 0, 0, 3, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x21, 0xff, 0xff, 0xfe, 0xfe];
        viewer.stream.write_all(&encodings)?;
        Ok(viewer)
    }

    /// All of the display, as it is now.
    fn picture(&mut self) -> io::Result<&Picture> {
        let mut drawn = 0;
        while drawn < self.picture.pixels.len() {
            let mut request = vec![3, 0, 0, 0, 0, 0];
            for side in [self.picture.width, self.picture.height] {
                request.extend(u16::try_from(side).map_err(io::Error::other)?.to_be_bytes());
            }
            self.stream.write_all(&request)?;
            drawn = self.update()?;
        }
        Ok(&self.picture)
    }

    /// Reads one update; how many pixels it brought.
    fn update(&mut self) -> io::Result<usize> {
        loop {
            match self.bytes::<1>()? {
                [0] => break,
                // A bell.
                [2] => {}
                [3] => {
                    let _padding: [u8; 3] = self.bytes()?;
                    self.text()?;
                }
                [other] => return Err(io::Error::other(format!("a message of type {other}"))),
            }
        }
        let [_, high, low] = self.bytes()?;
        let mut drawn = 0;
        for _ in 0..u16::from_be_bytes([high, low]) {
            let [x, y, width, height] = [self.u16()?, self.u16()?, self.u16()?, self.u16()?];
            match i32::from_be_bytes(self.bytes()?) {
                0 => drawn += self.raw([x, y, width, height].map(usize::from))?,
                -223 => self.picture.resize(width, height),
                -258 => {}
                other => return Err(io::Error::other(format!("encoding {other}, which was not asked for"))),
            }
        }
        Ok(drawn)
    }

    fn raw(&mut self, [x, y, width, height]: [usize; 4]) -> io::Result<usize> {
        let mut bytes = vec![0; width * 4];
        for line in y..y + height {
            self.stream.read_exact(&mut bytes)?;
            let at = line * self.picture.width + x;
            let place = self.picture.pixels.get_mut(at..at + width);
            let place = place.ok_or_else(|| io::Error::other("beyond the display"))?;
            for (pixel, bytes) in place.iter_mut().zip(bytes.chunks_exact(4)) {
                pixel.copy_from_slice(bytes);
            }
        }
        Ok(width * height)
    }

    fn stroke(&mut self, key: char) -> io::Result<()> {
        let symbol = if key == '\n' { RETURN } else { key.into() };
        for down in [1, 0] {
            self.stream.write_all(&[4, down, 0, 0])?;
            self.stream.write_all(&symbol.to_be_bytes())?;
        }
        Ok(())
    }

    fn code(&mut self, code: u32) -> io::Result<()> {
        for down in [1, 0] {
            self.stream.write_all(&[255, 0, 0, down, 0, 0, 0, 0])?;
            self.stream.write_all(&code.to_be_bytes())?;
        }
        Ok(())
    }

    fn point(&mut self, x: u16, y: u16, mask: u16) -> io::Result<()> {
        let mask = u8::try_from(mask).map_err(io::Error::other)?;
        self.stream.write_all(&[&[5, mask][..], &x.to_be_bytes(), &y.to_be_bytes()].concat())
    }

    /// `SetDesktopSize`, with one screen.
    fn resize(&mut self, width: u16, height: u16) -> io::Result<()> {
        let (width, height) = (width.to_be_bytes(), height.to_be_bytes());
        let message = [&[251, 0][..], &width, &height, &[1, 0], &[0; 8], &width, &height, &[0; 4]];
        self.stream.write_all(&message.concat())
    }

    fn bytes<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u16(&mut self) -> io::Result<u16> {
        Ok(u16::from_be_bytes(self.bytes()?))
    }

    fn text(&mut self) -> io::Result<()> {
        let len = u32::from_be_bytes(self.bytes()?);
        io::copy(&mut (&self.stream).take(len.into()), &mut io::sink()).map(drop)
    }
}
