//! Entry point to saved VMs.

use std::fs::File;
use std::sync::Arc;

use vireo_vmconfig::{DiskDevice, WatchdogAction};

use super::drives::{disk, file, ram};
use super::fakes::{Bells, Lines, NoPower, Router, Slots};
use super::transport;
use crate::ahci;
use crate::bochs::{Bochs, Head};
use crate::bus::{Bus, BusDevice};
use crate::config::{ClockOffset, Notices, ThreadHook, Watchdog};
use crate::display::{Canvas, Source as _};
use crate::exit::Outcome;
use crate::firmware::{Contents, Flash, FwCfg, Ports, Window};
use crate::i6300esb::I6300Esb;
use crate::legacy::{PowerManagement, Ps2, ResetControl, Rtc};
use crate::memory::RamRange;
use crate::pci::{Function, Root};
use crate::pvpanic::{PanicEvents, PvPanic};
use crate::serial::Uart;
use crate::state::{AnySection, SavedVm};
use crate::virtio::rng::Rng;
use crate::virtio::{DeviceContext, PciDevice};

/// A saved VM: the first byte chooses whether the others are its payload, or the state of a serial port, of other devices on
/// ports, or of PCI functions, which are then let loose.
pub fn state(script: &[u8]) {
    let Some((kind, bytes)) = script.split_first() else { return };
    match kind % 4 {
        0 => {
            let fd = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
            let _ = SavedVm::decode(bytes, File::from(fd));
        }
        1 => {
            let uart = Uart::new(Arc::new(Lines), Box::new(|_: &[u8]| {})).expect("a serial port");
            load(&uart, bytes);
            super::run(&[0, 0, 0, 0, 5, 0, 0, 2, 0], [(&uart, 8); 2]);
        }
        2 => {
            load(&PowerManagement::new(Arc::new(Lines), Arc::default()), bytes);
            load(&ResetControl::new(Arc::default()), bytes);
        }
        _ => functions(bytes),
    }
}

/// Devices with a state of their own, by the first byte: virtio devices, which then serve a script; a SATA controller, a
/// display adapter, a pvpanic device and a watchdog; and devices on ports. The next two bytes are the length of the state.
pub fn saved_device(script: &[u8]) {
    let Some((&[kind, low, high], rest)) = script.split_first_chunk::<3>() else { return };
    let len = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (state, script) = rest.split_at(len);
    match kind.checked_sub(transport::DEVICES) {
        None => transport::load(kind, state, script),
        Some(other) => with_other(other, |section, registers| {
            load(section, state);
            if let Some((registers, size)) = registers {
                super::run(script, [(registers, size); 2]);
            }
            // What a driver does with a device that was loaded leaves it one that can be saved.
            section.encode().expect("a device that is not used can be saved");
        }),
    }
}

/// A state of each device, as it is saved, in the form of [`saved_device`].
pub(super) fn device_states() -> Vec<Vec<u8>> {
    let seed = |kind: u8, state: &[u8]| {
        let len = u16::try_from(state.len()).expect("a short state").to_le_bytes();
        [&[kind, len[0], len[1]], state].concat()
    };
    let mut seeds: Vec<_> = (0..transport::DEVICES).map(|kind| seed(kind, &transport::saved(kind))).collect();
    for other in 0..OTHERS {
        with_other(other, |section, _| {
            seeds.push(seed(transport::DEVICES + other, &section.encode().expect("a state")));
        });
    }
    seeds
}

/// A window that shows nothing.
struct Nowhere;

impl Window for Nowhere {
    fn show(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn hide(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How many devices [`with_other`] has.
const OTHERS: u8 = 9;

/// Calls `then` with the section of a device, and its registers where it has ports.
fn with_other(kind: u8, then: impl FnOnce(&dyn AnySection, Option<(&dyn BusDevice, u64)>)) {
    let outcome = Arc::new(Outcome::default());
    match kind {
        0 => {
            let (first, second) = (disk(), disk());
            let drives = [(&first, DiskDevice::Disk), (&second, DiskDevice::CdRom)];
            let sata =
                ahci::Controller::new(&drives, &ram(), &Router, &ThreadHook::default()).expect("threads");
            on_bus(sata, then);
        }
        1 => {
            let head = Head::new(&Slots, Some(&[0x55; 4096])).expect("memory");
            on_bus(Bochs::new(head.clone()), then);
            head.refresh(&mut Canvas::default(), true);
        }
        2 => {
            let events = PanicEvents::new(outcome, Notices::default());
            on_bus(Arc::new(PvPanic::new(Arc::new(events))), then);
        }
        3 => {
            let watchdog = Watchdog::new(WatchdogAction::Reset);
            let watchdog = I6300Esb::new(&watchdog, outcome, Arc::new(NoPower)).expect("a thread");
            on_bus(Arc::new(watchdog), then);
        }
        4 => {
            let power = Arc::new(PowerManagement::new(Arc::new(Lines), outcome));
            let clock = Rtc::new(Arc::new(Lines), power, ClockOffset::default(), &[]).expect("a thread");
            then(&clock, Some((&clock, 2)));
        }
        5 => {
            let ps2 = Ps2::new(outcome, (Arc::new(Lines), Arc::new(Lines))).expect("a thread");
            then(ps2.as_ref(), Some((ps2.as_ref(), 5)));
        }
        6 => {
            const SIZE: usize = 3 * 4096;
            let image = file(&[0; SIZE]);
            let flash = Flash::new(image, SIZE, Box::new(Nowhere));
            then(&flash, Some((&flash, 3 * 4096)));
        }
        7 => {
            let mut contents = Contents::new();
            contents.file("numbers", (0..=255).collect()).expect("room for a file");
            let fw_cfg = Arc::new(FwCfg::new(contents, ram()));
            then(fw_cfg.as_ref(), Some((&Ports(fw_cfg.clone()), 2)));
        }
        _ => {
            let uart = Uart::new(Arc::new(Lines), Box::new(|_: &[u8]| {})).expect("a serial port");
            then(&uart, Some((&uart, 8)));
        }
    }
}

/// Puts one function on a bus; its state is loaded as that of a VM, and it goes on.
fn on_bus(function: Arc<dyn Function>, then: impl FnOnce(&dyn AnySection, Option<(&dyn BusDevice, u64)>)) {
    let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let range = [RamRange { start: 0, len: 64 << 10 }];
    let root = Root::new((&mmio, &pio), &range, Arc::new(Lines)).expect("a bus");
    let before: Vec<_> = root.named_functions().into_iter().map(|(name, _)| name).collect();
    root.add(function).expect("a slot");
    root.pause();
    for (name, function) in root.named_functions() {
        if !before.contains(&name) {
            then(function.section().expect("a function that can be saved"), None);
            break;
        }
    }
    root.follow_loaded();
    root.resume();
    root.set_running(true);
    root.pause();
    root.stop();
}

fn load(section: &dyn AnySection, bytes: &[u8]) {
    if section.decode(bytes).is_ok() {
        section.after_load();
        let state = section.encode().expect("what was loaded can be saved");
        section.decode(&state).expect("what was saved can be loaded");
    }
}

fn functions(bytes: &[u8]) {
    let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let memory = ram();
    let range = [RamRange { start: 0, len: 64 << 10 }];
    let root = Root::new((&mmio, &pio), &range, Arc::new(Lines)).expect("a bus");
    let host = DeviceContext {
        memory,
        router: Arc::new(Router),
        doorbells: Arc::<Bells>::default(),
        threads: ThreadHook::default(),
    };
    root.add(PciDevice::new(Box::new(Rng), host).expect("a device")).expect("a slot");
    for (_, function) in root.named_functions() {
        let section = function.section().expect("a function that can be saved");
        if section.decode(bytes).is_ok() {
            root.follow_loaded();
            section.after_load();
            root.resume();
            root.pause();
        }
    }
    root.stop();
}
