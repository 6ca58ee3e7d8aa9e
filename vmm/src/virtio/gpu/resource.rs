use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend};

use super::super::GuestMemory;
use super::command::{Code, Entries, Rect};
use super::format::Format;
use crate::display::Area;

/// No frame is larger; a display of the display is not either.
const MAX_SIDE: u32 = 8192;
/// Of all frames together: three displays of 4K, and more than enough cursors.
const MAX_BYTES: usize = 128 << 20;
const MAX_RESOURCES: usize = 512;
/// Entries of all backings together: each page of the frames one of its own, twice.
const MAX_ENTRIES: usize = 64 << 10;
const PIXEL: usize = 4;

/// The host's copy of a frame.
pub(super) struct Pixels {
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) format: Format,
    bytes: Mutex<Vec<u8>>,
}

impl Pixels {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stride(&self) -> usize {
        usize::from(self.width) * PIXEL
    }

    /// A copy of all of them, line by line.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.bytes().clone()
    }

    /// Hands each line of `area` to `draw`, with its number in the frame.
    pub(super) fn lines(&self, area: Area, mut draw: impl FnMut(u16, &[u8])) {
        let bytes = self.bytes();
        let from = usize::from(area.x) * PIXEL;
        let len = usize::from(area.width) * PIXEL;
        for y in area.y..area.y.saturating_add(area.height) {
            let start = usize::from(y) * self.stride() + from;
            if let Some(line) = bytes.get(start..start + len) {
                draw(y, line);
            }
        }
    }

    /// All pixels as `0xAARRGGBB`.
    pub(super) fn argb(&self) -> Vec<u32> {
        let mut pixels = Vec::with_capacity(usize::from(self.width) * usize::from(self.height));
        self.lines(Area::sized(self.width, self.height), |_, line| {
            pixels.extend(line.as_chunks().0.iter().map(|pixel| self.format.argb(*pixel)));
        });
        pixels
    }
}

/// Where in the guest's memory a frame is, in pieces.
struct Backing {
    pieces: Vec<(GuestAddress, u32)>,
    /// Where each piece ends in the frame.
    ends: Vec<u64>,
}

impl Backing {
    /// `None` if a piece is not in RAM.
    fn new(memory: &GuestMemory, entries: &[(u64, u32)]) -> Option<Self> {
        let is_there = |(address, len): &(u64, u32)| {
            usize::try_from(*len).is_ok_and(|len| memory.check_range(GuestAddress(*address), len))
        };
        let pieces: Vec<_> = entries.iter().copied().filter(|(_, len)| *len > 0).collect();
        pieces.iter().all(is_there).then(|| Self::unchecked(pieces))
    }

    /// Pieces that are in RAM, or cannot be read.
    fn unchecked(pieces: Vec<(u64, u32)>) -> Self {
        let mut end = 0_u64;
        let ends = pieces.iter().map(|(_, len)| {
            end += u64::from(*len);
            end
        });
        let ends = ends.collect();
        Self { pieces: pieces.into_iter().map(|(address, len)| (GuestAddress(address), len)).collect(), ends }
    }

    /// Copies from `offset`. `false`: the memory cannot be read, and `data` is unspecified.
    fn read(&self, memory: &GuestMemory, mut offset: u64, mut data: &mut [u8]) -> bool {
        let first = self.ends.partition_point(|end| *end <= offset);
        let pieces = self.pieces.iter().zip(&self.ends).skip(first);
        for ((address, len), end) in pieces {
            let rest = end.saturating_sub(offset);
            let skip = u64::from(*len).saturating_sub(rest);
            let count = data.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
            let (part, behind) = std::mem::take(&mut data).split_at_mut(count);
            // The sum does not wrap where the piece lies in RAM; else nothing is there, or other RAM of the guest.
            if memory.read_slice(part, GuestAddress(address.0.wrapping_add(skip))).is_err() {
                return false;
            }
            data = behind;
            offset = *end;
            if data.is_empty() {
                return true;
            }
        }
        data.is_empty()
    }
}

/// A frame as it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ResourceState {
    number: u32,
    format: u32,
    size: (u16, u16),
    pixels: Vec<u8>,
    backing: Option<Vec<(u64, u32)>>,
}

struct Resource {
    pixels: Arc<Pixels>,
    backing: Option<Backing>,
}

/// The driver's frames.
#[derive(Default)]
pub(super) struct Resources {
    all: BTreeMap<u32, Resource>,
    bytes: usize,
    entries: usize,
}

impl Resources {
    fn get(&mut self, number: u32) -> Result<&mut Resource, Code> {
        self.all.get_mut(&number).ok_or(Code::InvalidResource)
    }

    pub(super) fn pixels(&mut self, number: u32) -> Result<Arc<Pixels>, Code> {
        self.get(number).map(|resource| resource.pixels.clone())
    }

    pub(super) fn create(
        &mut self,
        number: u32,
        format: Option<Format>,
        size: (u32, u32),
    ) -> Result<(), Code> {
        if number == 0 || self.all.contains_key(&number) {
            return Err(Code::InvalidResource);
        }
        let side = |side: u32| {
            u16::try_from(side).ok().filter(|_| (1..=MAX_SIDE).contains(&side)).ok_or(Code::InvalidParameter)
        };
        let (width, height) = (side(size.0)?, side(size.1)?);
        let format = format.ok_or(Code::InvalidParameter)?;
        let size = usize::from(width) * usize::from(height) * PIXEL;
        if self.all.len() >= MAX_RESOURCES || self.bytes + size > MAX_BYTES {
            return Err(Code::OutOfMemory);
        }
        self.bytes += size;
        let pixels = Arc::new(Pixels { width, height, format, bytes: Mutex::new(vec![0; size]) });
        self.all.insert(number, Resource { pixels, backing: None });
        Ok(())
    }

    /// Takes a frame away, and hands back what it was.
    pub(super) fn unref(&mut self, number: u32) -> Result<Arc<Pixels>, Code> {
        let resource = self.all.remove(&number).ok_or(Code::InvalidResource)?;
        let size = resource.pixels.stride() * usize::from(resource.pixels.height);
        self.bytes -= size.min(self.bytes);
        self.forget(resource.backing);
        Ok(resource.pixels)
    }

    fn forget(&mut self, backing: Option<Backing>) {
        let count = backing.map_or(0, |backing| backing.pieces.len());
        self.entries -= count.min(self.entries);
    }

    pub(super) fn attach(&mut self, memory: &GuestMemory, number: u32, entries: Entries) -> Result<(), Code> {
        if self.get(number)?.backing.is_some() {
            return Err(Code::Unspecified);
        }
        let count = usize::try_from(entries.count).unwrap_or(usize::MAX);
        if count > MAX_ENTRIES - self.entries.min(MAX_ENTRIES) {
            return Err(Code::OutOfMemory);
        }
        let entries = entries.read(memory).ok_or(Code::InvalidParameter)?;
        let backing = Backing::new(memory, &entries).ok_or(Code::InvalidParameter)?;
        self.entries += backing.pieces.len();
        self.get(number)?.backing = Some(backing);
        Ok(())
    }

    pub(super) fn detach(&mut self, number: u32) -> Result<(), Code> {
        let backing = self.get(number)?.backing.take().ok_or(Code::Unspecified)?;
        self.forget(Some(backing));
        Ok(())
    }

    /// Copies `rect` from the guest's memory, where it begins at `offset`.
    pub(super) fn transfer(
        &mut self,
        memory: &GuestMemory,
        number: u32,
        (rect, offset): (Rect, u64),
    ) -> Result<(), Code> {
        let Resource { pixels, backing } = self.get(number)?;
        let backing = backing.as_ref().ok_or(Code::Unspecified)?;
        let area = rect.within(pixels.width, pixels.height).ok_or(Code::InvalidParameter)?;
        let stride = pixels.stride();
        let at = usize::from(area.y) * stride + usize::from(area.x) * PIXEL;
        let len = usize::from(area.width) * PIXEL;
        let lines = usize::from(area.height);
        let mut bytes = pixels.bytes();
        let copy = |to: Option<&mut [u8]>, line: usize| {
            let from = u64::try_from(line * stride).ok().and_then(|skip| offset.checked_add(skip));
            to.zip(from).is_some_and(|(to, from)| backing.read(memory, from, to))
        };
        let whole = if len == stride {
            copy(bytes.get_mut(at..at + lines * stride), 0)
        } else {
            (0..lines).all(|line| copy(bytes.get_mut(at + line * stride..at + line * stride + len), line))
        };
        if whole { Ok(()) } else { Err(Code::InvalidParameter) }
    }

    /// All frames, by their numbers.
    pub(super) fn save(&self) -> Vec<ResourceState> {
        let resources = self.all.iter().map(|(number, Resource { pixels, backing })| ResourceState {
            number: *number,
            format: pixels.format.number,
            size: (pixels.width, pixels.height),
            pixels: pixels.to_vec(),
            backing: backing
                .as_ref()
                .map(|backing| backing.pieces.iter().map(|(address, len)| (address.0, *len)).collect()),
        });
        resources.collect()
    }

    /// Frames that were saved. `None` if no driver could have made them.
    pub(super) fn of(saved: Vec<ResourceState>) -> Option<Self> {
        let mut resources = Self::default();
        for ResourceState { number, format, size: (width, height), pixels, backing } in saved {
            resources.create(number, Format::new(format), (width.into(), height.into())).ok()?;
            let resource = resources.get(number).ok()?;
            let mut bytes = resource.pixels.bytes();
            if bytes.len() != pixels.len() {
                return None;
            }
            *bytes = pixels;
            drop(bytes);
            resource.backing = backing.map(Backing::unchecked);
            let count = resource.backing.as_ref().map_or(0, |backing| backing.pieces.len());
            resources.entries = resources.entries.checked_add(count).filter(|all| *all <= MAX_ENTRIES)?;
        }
        Some(resources)
    }

    /// The number of a frame.
    pub(super) fn number(&self, pixels: &Arc<Pixels>) -> Option<u32> {
        let mut all = self.all.iter();
        all.find(|(_, resource)| Arc::ptr_eq(&resource.pixels, pixels)).map(|(number, _)| *number)
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn check(&self) {
        assert!(self.bytes <= MAX_BYTES && self.entries <= MAX_ENTRIES && self.all.len() <= MAX_RESOURCES);
        let bytes: usize = self.all.values().map(|resource| resource.pixels.bytes().len()).sum();
        let backings = self.all.values().filter_map(|resource| resource.backing.as_ref());
        let entries: usize = backings.map(|backing| backing.pieces.len()).sum();
        assert_eq!((self.bytes, self.entries), (bytes, entries));
    }
}
