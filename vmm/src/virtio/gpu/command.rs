use super::super::{GuestMemory, Segments};
use super::format::Format;
use crate::display::Area;

/// Bytes of a header.
const HEADER: usize = 24;
/// `flags`: the answer carries the fence.
const FENCE: u32 = 1;
/// RESOURCE_ATTACH_BACKING, whose body has no fixed length.
const ATTACH: u32 = 0x106;
/// An entry of a backing: address, length, padding.
const ENTRY: u64 = 16;

/// Response types (section 5.7.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    NoData = 0x1100,
    DisplayInfo = 0x1101,
    Edid = 0x1104,
    Unspecified = 0x1200,
    OutOfMemory = 0x1201,
    InvalidScanout = 0x1202,
    InvalidResource = 0x1203,
    InvalidParameter = 0x1205,
}

/// What begins each request and is given back with its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    kind: u32,
    flags: u32,
    fence: u64,
    context: u32,
}

impl Header {
    /// The answer: of type `code`, and with the fence if there is one.
    pub(super) fn answer(&self, code: Code, body: &[u8]) -> Vec<u8> {
        let fenced = self.flags & FENCE;
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend((code as u32).to_le_bytes());
        bytes.extend(fenced.to_le_bytes());
        bytes.extend(if fenced != 0 { self.fence } else { 0 }.to_le_bytes());
        bytes.extend(if fenced != 0 { self.context } else { 0 }.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes
    }
}

/// A rectangle as drivers write it, not clipped yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rect {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

impl Rect {
    /// As pixels of a frame of that size; `None` if it is empty or not inside.
    pub(super) fn within(self, width: u16, height: u16) -> Option<Area> {
        let inside = |at: u32, len: u32, size: u16| {
            len > 0 && at.checked_add(len).is_some_and(|end| end <= u32::from(size))
        };
        if !inside(self.x, self.width, width) || !inside(self.y, self.height, height) {
            return None;
        }
        let [x, y, width, height] = [self.x, self.y, self.width, self.height].map(u16::try_from);
        Some(Area { x: x.ok()?, y: y.ok()?, width: width.ok()?, height: height.ok()? })
    }
}

/// A driver's request (section 5.7.6.8). Numbers are as they were written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    DisplayInfo,
    Create {
        resource: u32,
        format: Option<Format>,
        width: u32,
        height: u32,
    },
    Unref {
        resource: u32,
    },
    SetScanout {
        scanout: u32,
        resource: u32,
        rect: Rect,
    },
    Flush {
        resource: u32,
        rect: Rect,
    },
    Transfer {
        resource: u32,
        rect: Rect,
        offset: u64,
    },
    Attach {
        resource: u32,
        entries: Entries,
    },
    Detach {
        resource: u32,
    },
    Edid {
        scanout: u32,
    },
    UpdateCursor {
        scanout: u32,
        resource: u32,
        hot: (u32, u32),
    },
    /// Viewers draw the cursor where they have it.
    MoveCursor,
}

/// The list of a backing, not read yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entries {
    pub(super) count: u32,
    list: Segments,
}

impl Entries {
    /// Address and length of each; `None` if there are fewer than were announced.
    pub(super) fn read(mut self, memory: &GuestMemory) -> Option<Vec<(u64, u32)>> {
        let size = u64::from(self.count) * ENTRY;
        let list = self.list.take_front(size)?;
        let mut bytes = vec![0; usize::try_from(size).ok()?];
        list.read(memory, &mut bytes).ok()?;
        let entries = bytes.chunks_exact(16).map(|entry| {
            let fields = Fields(entry);
            Some((fields.u64(0)?, fields.u32(8)?))
        });
        entries.collect()
    }
}

/// The fields of a request, by their offsets.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn rect(&self, at: usize) -> Option<Rect> {
        Some(Rect {
            x: self.u32(at)?,
            y: self.u32(at + 4)?,
            width: self.u32(at + 8)?,
            height: self.u32(at + 12)?,
        })
    }
}

/// Takes so many bytes off the front of a request, or all there are.
fn take(memory: &GuestMemory, request: &mut Segments, most: u64) -> Option<Vec<u8>> {
    let len = request.len().min(most);
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    request.take_front(len)?.read(memory, &mut bytes).ok()?;
    Some(bytes)
}

/// Reads a request. The header alone comes back with one that is not understood; nothing, if not even that is there.
pub(super) fn parse(memory: &GuestMemory, mut request: Segments) -> Option<(Header, Option<Command>)> {
    let header = take(memory, &mut request, 24)?;
    let fields = Fields(&header);
    let header = Header {
        kind: fields.u32(0)?,
        flags: fields.u32(4)?,
        fence: fields.u64(8)?,
        context: fields.u32(16)?,
    };
    let command = command(header.kind, memory, request);
    Some((header, command))
}

fn command(kind: u32, memory: &GuestMemory, mut request: Segments) -> Option<Command> {
    let body = take(memory, &mut request, if kind == ATTACH { 8 } else { 32 })?;
    let fields = Fields(&body);
    Some(match kind {
        0x100 => Command::DisplayInfo,
        0x101 => Command::Create {
            resource: fields.u32(0)?,
            format: Format::new(fields.u32(4)?),
            width: fields.u32(8)?,
            height: fields.u32(12)?,
        },
        0x102 => Command::Unref { resource: fields.u32(0)? },
        0x103 => {
            Command::SetScanout { rect: fields.rect(0)?, scanout: fields.u32(16)?, resource: fields.u32(20)? }
        }
        0x104 => Command::Flush { rect: fields.rect(0)?, resource: fields.u32(16)? },
        0x105 => {
            Command::Transfer { rect: fields.rect(0)?, offset: fields.u64(16)?, resource: fields.u32(24)? }
        }
        ATTACH => Command::Attach {
            resource: fields.u32(0)?,
            entries: Entries { count: fields.u32(4)?, list: request },
        },
        0x107 => Command::Detach { resource: fields.u32(0)? },
        0x10a => Command::Edid { scanout: fields.u32(0)? },
        // Where it is comes first: scanout, column, line, padding.
        0x300 => Command::UpdateCursor {
            scanout: fields.u32(0)?,
            resource: fields.u32(16)?,
            hot: (fields.u32(20)?, fields.u32(24)?),
        },
        0x301 => Command::MoveCursor,
        _ => return None,
    })
}
