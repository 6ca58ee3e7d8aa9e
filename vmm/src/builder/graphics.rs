//! A display and its input devices.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use linux_loader::bootparam::{boot_params, screen_info};
use vm_memory::{Bytes, GuestAddress};

use super::{Assembly, BuildError, device, pci, video_bios};
use crate::bochs::{Bochs, Head};
use crate::config::{self, Adapter, Graphics};
use crate::display::{Keyboard, Pointer, Source};
use crate::exit::Outcome;
use crate::irq::IrqLine;
use crate::kvm::{KvmLine, KvmSlots, KvmVm};
use crate::layout;
use crate::legacy::Ps2;
use crate::memory::GuestMemory;
use crate::pci::{Bars, ConfigSpace, Function};
use crate::virtio::gpu::Gpu;
use crate::virtio::{self, PciDevice};

/// The first memory slot that RAM does not take.
const FIRST_SLOT: u32 = 32;
/// Of virtio-gpu's registers: BARs 0 and 2 are where bochs' own drivers look for theirs.
const VIRTIO_BAR: u8 = 4;
/// The mode before a driver sets one: what SeaBIOS and OVMF choose too.
const FIRST_MODE: (u16, u16) = (1024, 768);
/// `orig_video_isVGA`: a VESA mode's linear framebuffer (Documentation/arch/x86/zero-page.rst).
const LINEAR_FRAMEBUFFER: u8 = 0x23;
/// `capabilities`: there are no VGA registers to program colours with.
const NO_VGA: u32 = 1 << 1;
/// Of a video BIOS; one that is larger is rejected by the adapter.
const MAX_ROM: u64 = 1 << 20;

/// The adapter on the bus.
pub(super) struct Installed {
    head: Arc<Head>,
    function: Arc<dyn Function>,
}

/// Puts the adapter on the bus and its frame on the display.
pub(super) fn install(
    graphics: &Graphics,
    assembly: &Assembly,
    host: &virtio::DeviceContext,
) -> Result<Installed, BuildError> {
    let slots = KvmSlots::new(assembly.vm.fd.clone(), FIRST_SLOT);
    let mut rom = graphics.video_bios.as_ref().map(read).transpose().map_err(device("video BIOS"))?;
    if let (Some(rom), Adapter::Virtio) = (&mut rom, graphics.adapter) {
        video_bios::adopt(rom, virtio::gpu::IDS);
    }
    let head = Head::new(&slots, rom.as_deref()).map_err(device("display adapter"))?;
    let firmware: Arc<dyn Source> = head.clone();
    let (function, source): (Arc<dyn Function>, _) = match graphics.adapter {
        Adapter::Bochs => (Bochs::new(head.clone()), firmware),
        Adapter::Virtio => {
            let (gpu, source) =
                Gpu::new(Some((firmware, head.clone()))).map_err(device("display adapter"))?;
            let beside = |config: &mut ConfigSpace, bars: &mut Bars| head.add_bars(config, bars);
            (PciDevice::beside(Box::new(gpu), host.clone(), VIRTIO_BAR, beside)?, source)
        }
    };
    assembly.pci.add(function.clone()).map_err(pci("display adapter"))?;
    graphics.display.attach(&source);
    Ok(Installed { head, function })
}

/// Switches the adapter on, as a boot loader does, and describes the framebuffer to the kernel, which needs no driver.
pub(super) fn announce(
    adapter: &Installed,
    memory: &GuestMemory,
    parameters: GuestAddress,
) -> Result<(), BuildError> {
    let Installed { head, function } = adapter;
    let Some(framebuffer) = head.switch_on(function.as_ref(), FIRST_MODE.0, FIRST_MODE.1) else {
        return Ok(());
    };
    let failed = |source| BuildError::Write { what: "screen_info", source };
    let mut page: boot_params = memory.read_obj(parameters).map_err(failed)?;
    let channel = |position| (8, position);
    let ((red, red_at), (green, green_at), (blue, blue_at)) = (channel(16), channel(8), channel(0));
    page.screen_info = screen_info {
        orig_video_isVGA: LINEAR_FRAMEBUFFER,
        lfb_width: FIRST_MODE.0,
        lfb_height: FIRST_MODE.1,
        lfb_depth: 32,
        lfb_base: framebuffer.address,
        lfb_size: framebuffer.size >> 16,
        lfb_linelength: FIRST_MODE.0 * 4,
        red_size: red,
        red_pos: red_at,
        green_size: green,
        green_pos: green_at,
        blue_size: blue,
        blue_pos: blue_at,
        rsvd_size: 8,
        rsvd_pos: 24,
        pages: 1,
        capabilities: NO_VGA,
        ..Default::default()
    };
    memory.write_obj(page, parameters).map_err(failed)
}

/// A keyboard controller with a keyboard and a mouse, which get the input of viewers.
pub(super) fn keyboard(
    graphics: &Graphics,
    vm: &KvmVm,
    outcome: &Arc<Outcome>,
) -> Result<Arc<Ps2>, BuildError> {
    let line = |gsi| -> Result<Arc<dyn IrqLine>, BuildError> {
        Ok(Arc::new(KvmLine::new(vm.fd.clone(), gsi).map_err(device("keyboard controller"))?))
    };
    let (keyboard, mouse) = layout::PS2_IRQS;
    let lines = (line(keyboard)?, line(mouse)?);
    let ps2 = Ps2::new(outcome.clone(), lines).map_err(device("keyboard controller"))?;
    graphics.display.attach_keyboard(&(ps2.clone() as Arc<dyn Keyboard>));
    graphics.display.attach_pointer(&(ps2.clone() as Arc<dyn Pointer>));
    Ok(ps2)
}

/// An input device, which gets the input of viewers.
pub(super) fn input(
    kind: config::Input,
    graphics: Option<&Graphics>,
) -> Result<virtio::input::Input, BuildError> {
    let display = graphics.map(|graphics| &graphics.display);
    let made = match kind {
        config::Input::Tablet => virtio::input::Input::tablet().map(|(device, pointer)| {
            display.inspect(|display| display.attach_pointer(&pointer));
            device
        }),
        config::Input::Keyboard => virtio::input::Input::keyboard().map(|(device, keyboard)| {
            display.inspect(|display| display.attach_keyboard(&keyboard));
            device
        }),
    };
    made.map_err(device("input device"))
}

/// From its beginning, wherever it was left: after a reset of the guest it is read again.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    At { file, offset: 0 }.take(MAX_ROM).read_to_end(&mut bytes)?;
    Ok(bytes)
}

struct At<'a> {
    file: &'a File,
    offset: u64,
}

impl Read for At<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset = self.offset.saturating_add(u64::try_from(read).map_err(io::Error::other)?);
        Ok(read)
    }
}
