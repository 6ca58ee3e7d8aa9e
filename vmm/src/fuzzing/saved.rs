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
        Some(other) => with_other(other, |device| {
            load_at_rest(device.section, device.rest, state);
            if let Some((registers, size)) = device.registers {
                super::run(script, [(registers, size); 2]);
            }
            // What a driver does with a device that was loaded leaves it one that can be saved.
            (device.rest)();
            device.section.encode().expect("a device that is not used can be saved");
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
        with_other(other, |device| {
            seeds.push(seed(transport::DEVICES + other, &device.section.encode().expect("a state")));
        });
    }
    seeds
}

/// A window that shows nothing.
struct NoWindow;

impl Window for NoWindow {
    fn show(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn hide(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// How many devices [`with_other`] has.
const OTHERS: u8 = 9;

/// One that is no virtio device.
struct OtherDevice<'a> {
    section: &'a dyn AnySection,
    /// Its ports, and how many there are.
    registers: Option<(&'a dyn BusDevice, u64)>,
    /// Waits until what the device was asked for is done.
    rest: &'a dyn Fn(),
}

/// Calls `then` with a device.
fn with_other(kind: u8, then: impl FnOnce(&OtherDevice<'_>)) {
    let on_ports = |section: &dyn AnySection,
                    registers: (&dyn BusDevice, u64),
                    then: &mut dyn FnMut(&OtherDevice<'_>)| {
        then(&OtherDevice { section, registers: Some(registers), rest: &|| {} });
    };
    let mut then = Some(then);
    let mut then = move |device: &OtherDevice<'_>| {
        if let Some(then) = then.take() {
            then(device);
        }
    };
    let outcome = Arc::new(Outcome::default());
    match kind {
        0 => {
            let (first, second) = (disk(), disk());
            let drives = [(&first, DiskDevice::Disk), (&second, DiskDevice::CdRom)];
            let sata =
                ahci::Controller::new(&drives, &ram(), &Router, &ThreadHook::default()).expect("threads");
            on_bus(sata, &mut then);
        }
        1 => {
            let head = Head::new(&Slots, Some(&[0x55; 4096])).expect("memory");
            on_bus(Bochs::new(head.clone()), &mut then);
            head.refresh(&mut Canvas::default(), true);
        }
        2 => {
            let events = PanicEvents::new(outcome, Notices::default());
            on_bus(Arc::new(PvPanic::new(Arc::new(events))), &mut then);
        }
        3 => {
            let watchdog = Watchdog::new(WatchdogAction::Reset);
            let watchdog = I6300Esb::new(&watchdog, outcome, Arc::new(NoPower)).expect("a thread");
            on_bus(Arc::new(watchdog), &mut then);
        }
        4 => {
            let power = Arc::new(PowerManagement::new(Arc::new(Lines), outcome));
            let clock = Rtc::new(Arc::new(Lines), power, ClockOffset::default(), &[]).expect("a thread");
            on_ports(&clock, (&clock, 2), &mut then);
        }
        5 => {
            let ps2 = Ps2::new(outcome, (Arc::new(Lines), Arc::new(Lines))).expect("a thread");
            on_ports(ps2.as_ref(), (ps2.as_ref(), 5), &mut then);
        }
        6 => {
            const SIZE: usize = 3 * 4096;
            let image = file(&[0; SIZE]);
            let flash = Flash::new(image, SIZE, Box::new(NoWindow));
            on_ports(&flash, (&flash, 3 * 4096), &mut then);
        }
        7 => {
            let mut contents = Contents::new();
            contents.file("numbers", (0..=255).collect()).expect("room for a file");
            let fw_cfg = Arc::new(FwCfg::new(contents, ram()));
            on_ports(fw_cfg.as_ref(), (&Ports(fw_cfg.clone()), 2), &mut then);
        }
        _ => {
            let uart = Uart::new(Arc::new(Lines), Box::new(|_: &[u8]| {})).expect("a serial port");
            on_ports(&uart, (&uart, 8), &mut then);
        }
    }
}

/// Puts one function on a bus; its state is loaded as that of a VM, and it goes on.
fn on_bus(function: Arc<dyn Function>, then: &mut dyn FnMut(&OtherDevice<'_>)) {
    let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let range = [RamRange { start: 0, len: 64 << 10 }];
    let root = Root::new((&mmio, &pio), &range, Arc::new(Lines)).expect("a bus");
    let before: Vec<_> = root.named_functions().into_iter().map(|(name, _)| name).collect();
    root.add(function).expect("a slot");
    root.pause();
    for (name, function) in root.named_functions() {
        if !before.contains(&name) {
            let section = function.section().expect("a function that can be saved");
            then(&OtherDevice { section, registers: None, rest: &|| root.pause() });
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
    load_at_rest(section, &|| {}, bytes);
}

/// Loads a state, and what is saved of it once the device is at rest.
fn load_at_rest(section: &dyn AnySection, rest: &dyn Fn(), bytes: &[u8]) {
    if section.decode(bytes).is_ok() {
        section.after_load();
        rest();
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
