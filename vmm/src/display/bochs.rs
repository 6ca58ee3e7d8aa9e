//! The bochs display adapter: a linear framebuffer and a page of registers, no VGA. SeaBIOS' video BIOS, OVMF's
//! QemuVideoDxe and Linux' bochs-drm drive it (QEMU's `docs/specs/standard-vga.rst`).

mod mode;
mod registers;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mode::Mode;
use registers::Registers;

use super::{Canvas, Source};
use crate::bus::BusDevice;
use crate::memory::device::{DeviceMemory, MemorySlot, MemorySlots, SlotFollower};
use crate::pci::{BarKind, Bars, ConfigSpace, Decoding, Function, Identity, RootError, Slot};

/// Bytes of video memory.
const VIDEO_MEMORY: usize = 16 << 20;
/// Bytes of the register BAR.
const REGISTERS: u64 = 4096;
/// What a page of the dirty log is.
const PAGE: usize = 4096;
/// No video BIOS is larger.
const MAX_ROM: usize = 256 << 10;
/// The COMMAND register, and its bit for accesses to memory.
const COMMAND: u16 = 4;
const MEMORY_ENABLE: u16 = 1 << 1;
const FRAMEBUFFER_BAR: usize = 0;
const REGISTER_BAR: usize = 2;

/// The adapter.
pub(crate) struct Bochs {
    space: Mutex<Space>,
    registers: Arc<Registers>,
    memory: Arc<DeviceMemory>,
    slot: Arc<dyn MemorySlot>,
    /// What was on the screen when it was looked at last.
    shown: Mutex<Option<Mode>>,
    /// The BARs know it weakly.
    _rom: Option<Arc<DeviceMemory>>,
}

struct Space {
    config: ConfigSpace,
    bars: Bars,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bochs {
    /// An adapter whose video BIOS is `rom`; without one, only drivers of its own draw on it.
    pub(crate) fn new(slots: &dyn MemorySlots, rom: Option<&[u8]>) -> io::Result<Arc<Self>> {
        let mut config = ConfigSpace::new(Identity {
            vendor: 0x1234,
            device: 0x1111,
            revision: 2,
            class: 0x03_80_00,
            subsystem: (0x1af4, 0x1100),
        });
        let mut bars = Bars::default();
        let memory = DeviceMemory::new(VIDEO_MEMORY, false).map_err(io::Error::other)?;
        let slot = slots.claim(memory.clone())?;
        let weak: Arc<dyn BusDevice> = memory.clone();
        let followed = (Arc::downgrade(&weak), Box::new(SlotFollower(slot.clone())) as _);
        let framebuffer = (FRAMEBUFFER_BAR, BarKind::Memory32 { prefetchable: true });
        bars.add_followed(&mut config, framebuffer, wide(VIDEO_MEMORY), followed);

        let registers = Arc::new(Registers::new(VIDEO_MEMORY));
        let weak: Arc<dyn BusDevice> = registers.clone();
        let kind = BarKind::Memory32 { prefetchable: false };
        bars.add(&mut config, (REGISTER_BAR, kind), REGISTERS, Arc::downgrade(&weak));

        let rom = rom.map(load).transpose()?;
        if let Some(rom) = &rom {
            let weak: Arc<dyn BusDevice> = rom.clone();
            let follower = SlotFollower(slots.claim(rom.clone())?);
            let size = wide(rom.bytes().len());
            let followed = (Arc::downgrade(&weak), Box::new(follower) as _);
            bars.add_followed(&mut config, (ConfigSpace::ROM, BarKind::Rom), size, followed);
        }
        let space = Mutex::new(Space { config, bars });
        Ok(Arc::new(Self { space, registers, memory, slot, shown: Mutex::new(None), _rom: rom }))
    }
}

/// Where a kernel finds the pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Framebuffer {
    /// Guest-physical.
    pub(crate) address: u32,
    /// Bytes of video memory.
    pub(crate) size: u32,
}

impl Bochs {
    /// Sets a mode with 32 bits a pixel and makes the framebuffer reachable, in the place of firmware. For when it is
    /// on a bus; `None` if it has no address there that a kernel can be told.
    pub(crate) fn switch_on(&self, width: u16, height: u16) -> Option<Framebuffer> {
        self.registers.set_mode(width, height);
        self.write_config(COMMAND, &MEMORY_ENABLE.to_le_bytes());
        let kind = BarKind::Memory32 { prefetchable: true };
        let address = lock(&self.space).config.bar(FRAMEBUFFER_BAR, kind)?;
        Some(Framebuffer { address: address.try_into().ok()?, size: VIDEO_MEMORY.try_into().ok()? })
    }
}

/// A ROM that the guest sees, as large as a BAR has to be.
fn load(bytes: &[u8]) -> io::Result<Arc<DeviceMemory>> {
    if bytes.is_empty() || bytes.len() > MAX_ROM {
        return Err(io::Error::other(format!("a video BIOS of {} bytes", bytes.len())));
    }
    let memory =
        DeviceMemory::new(bytes.len().next_power_of_two().max(PAGE), true).map_err(io::Error::other)?;
    memory.bytes().copy_from(bytes);
    Ok(memory)
}

fn wide(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

impl Source for Bochs {
    fn refresh(&self, canvas: &mut Canvas, whole: bool) {
        // Asked first: what is drawn while it is copied counts for the next time.
        let dirty = self.slot.take_dirty().unwrap_or_else(|error| {
            tracing::warn!(%error, "the host does not say what was drawn: everything is looked at");
            vec![u64::MAX; VIDEO_MEMORY / PAGE / 64]
        });
        let mode = self.registers.mode();
        let mut shown = lock(&self.shown);
        let whole = std::mem::replace(&mut *shown, mode) != mode || whole;
        let Some(mode) = mode else { return };
        canvas.resize(mode.width(), mode.height());
        let (mut bytes, mut row) = (Vec::new(), Vec::new());
        for (y, line) in mode.lines().enumerate() {
            if !whole && !is_dirty(&dirty, &line) {
                continue;
            }
            bytes.resize(line.len(), 0);
            let Ok(source) = self.memory.bytes().subslice(line.start, line.len()) else { return };
            source.copy_to(&mut bytes);
            row.clear();
            mode.convert(&bytes, &mut row);
            canvas.put(0, y, &row);
        }
    }
}

/// Whether a page that `range` of the video memory touches is marked.
fn is_dirty(pages: &[u64], range: &std::ops::Range<usize>) -> bool {
    let last = range.end.saturating_sub(1) / PAGE;
    (range.start / PAGE..=last)
        .any(|page| pages.get(page / 64).is_some_and(|word| word >> (page % 64) & 1 != 0))
}

impl Function for Bochs {
    fn read_config(&self, register: u16, data: &mut [u8]) {
        lock(&self.space).config.read(register, data);
    }

    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        let Space { config, bars } = &mut *lock(&self.space);
        config.write(register, data);
        bars.follow(config)
    }

    fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        let Space { config, bars } = &mut *lock(&self.space);
        bars.attach(config, slot)
    }

    fn retry(&self) {
        lock(&self.space).bars.retry();
    }
}

#[cfg(test)]
mod tests;
