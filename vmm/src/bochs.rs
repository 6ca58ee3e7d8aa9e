//! The bochs display adapter: a linear framebuffer and a page of registers, no VGA. SeaBIOS' video BIOS, OVMF's
//! QemuVideoDxe and Linux' bochs-drm drive it (QEMU's `docs/specs/standard-vga.rst`).

mod mode;
mod registers;
mod state;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mode::Mode;
use registers::Registers;

use crate::bus::BusDevice;
use crate::display::{Canvas, Source};
use crate::memory::device::{DeviceMemory, MemorySlot, MemorySlots};
use crate::pci::{
    BarKind, Bars, ConfigSpace, Decoding, Function, FunctionSpace, Identity, RootError, Slot, SlotMapper,
};
use crate::state::{AnySection, SectionError};

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
/// The first BAR's register, and its bits that are not address bits.
const FIRST_BAR: u16 = 0x10;
const BAR_TYPE: u32 = 0xf;
/// Vendor and device, of the function that is nothing else.
const IDS: (u16, u16) = (0x1234, 0x1111);
const FRAMEBUFFER_BAR: usize = 0;
const REGISTER_BAR: usize = 2;

/// The adapter as a PCI function of its own.
pub(crate) struct Bochs {
    space: FunctionSpace,
    /// The BARs know it weakly.
    head: Arc<Head>,
}

/// The adapter without the function that it is reached through.
pub(crate) struct Head {
    registers: Arc<Registers>,
    memory: Arc<DeviceMemory>,
    slot: Arc<dyn MemorySlot>,
    /// What was on the display when it was looked at last.
    shown: Mutex<Option<Mode>>,
    /// The video BIOS, and its address.
    rom: Option<(Arc<DeviceMemory>, Arc<dyn MemorySlot>)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Bochs {
    /// The function that is nothing but `head`.
    pub(crate) fn new(head: Arc<Head>) -> Arc<Self> {
        let mut config = ConfigSpace::new(Identity {
            vendor: IDS.0,
            device: IDS.1,
            revision: 2,
            class: 0x03_80_00,
            subsystem: (0x1af4, 0x1100),
        });
        let mut bars = Bars::default();
        head.add_bars(&mut config, &mut bars);
        Arc::new(Self { space: FunctionSpace::new(config, bars), head })
    }
}

impl Head {
    /// An adapter whose video BIOS is `rom`; without one, only drivers of its own draw on it.
    pub(crate) fn new(slots: &dyn MemorySlots, rom: Option<&[u8]>) -> io::Result<Arc<Self>> {
        let memory = DeviceMemory::new(VIDEO_MEMORY, false).map_err(io::Error::other)?;
        let slot = slots.claim(memory.clone())?;
        let registers = Arc::new(Registers::new(VIDEO_MEMORY));
        let rom = rom.map(load).transpose()?;
        let rom = rom.map(|rom| Ok::<_, io::Error>((rom.clone(), slots.claim(rom)?))).transpose()?;
        Ok(Arc::new(Self { registers, memory, slot, shown: Mutex::default(), rom }))
    }

    /// Adds what it is reached through: BARs 0 and 2, and the ROM. They know it weakly.
    pub(crate) fn add_bars(&self, config: &mut ConfigSpace, bars: &mut Bars) {
        let weak: Arc<dyn BusDevice> = self.memory.clone();
        let followed = (Arc::downgrade(&weak), Box::new(SlotMapper(self.slot.clone())) as _);
        let framebuffer = (FRAMEBUFFER_BAR, BarKind::Memory32 { prefetchable: true });
        bars.add_followed(config, framebuffer, wide(VIDEO_MEMORY), followed);

        let weak: Arc<dyn BusDevice> = self.registers.clone();
        let kind = BarKind::Memory32 { prefetchable: false };
        bars.add(config, (REGISTER_BAR, kind), REGISTERS, Arc::downgrade(&weak));

        if let Some((rom, slot)) = &self.rom {
            let weak: Arc<dyn BusDevice> = rom.clone();
            let followed = (Arc::downgrade(&weak), Box::new(SlotMapper(slot.clone())) as _);
            bars.add_followed(config, (ConfigSpace::ROM, BarKind::Rom), wide(rom.bytes().len()), followed);
        }
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

impl Head {
    /// Sets a mode with 32 bits a pixel and makes the framebuffer reachable through `function`, in the place of
    /// firmware. For when that is on a bus; `None` if it has no address there that a kernel can use.
    pub(crate) fn switch_on(&self, function: &dyn Function, width: u16, height: u16) -> Option<Framebuffer> {
        self.registers.set_mode(width, height);
        function.write_config(COMMAND, &MEMORY_ENABLE.to_le_bytes());
        let mut address = [0; 4];
        function.read_config(FIRST_BAR, &mut address);
        let address = u32::from_le_bytes(address) & !BAR_TYPE;
        (address != 0).then(|| Some(Framebuffer { address, size: VIDEO_MEMORY.try_into().ok()? }))?
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

impl Source for Head {
    fn refresh(&self, canvas: &mut Canvas, whole: bool) {
        // Queried first: what is drawn while it is copied is dirty the next time.
        let dirty = self.slot.take_dirty().unwrap_or_else(|error| {
            tracing::warn!(%error, "the host has no dirty log: the whole framebuffer is compared");
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
    fn name(&self) -> &'static str {
        "display adapter"
    }

    fn section(&self) -> Result<&dyn AnySection, SectionError> {
        Ok(self)
    }

    fn read_config(&self, register: u16, data: &mut [u8]) {
        self.space.read(register, data);
    }

    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        self.space.write(register, data)
    }

    fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        self.space.attach(slot)
    }

    fn retry(&self) {
        self.space.retry();
    }
}

#[cfg(test)]
mod tests;
