//! Ports and memory-mapped registers of a whole VM: accesses at any address of either space.

use std::sync::Arc;

use vireo_vmconfig::{DiskDevice, WatchdogAction};

use super::drives::{disk, ram};
use super::fakes::{Bells, Lines, NoPower, Router, Slots};
use super::script::Script;
use crate::ahci;
use crate::bochs::{Bochs, Head};
use crate::bus::{Bus, BusDevice, BusRange};
use crate::config::{ClockOffset, Notices, ThreadHook, Watchdog};
use crate::display::{Canvas, Key, Keyboard as _, Pointer as _, Pointing, Source as _};
use crate::exit::Outcome;
use crate::hotplug::{self, Controller, Hotplug};
use crate::i6300esb::I6300Esb;
use crate::layout::{self, ECAM_START, PCI32_START};
use crate::legacy::{
    DebugPort, I8042, PowerEvents as _, PowerManagement, Ps2, ResetControl, Rtc, SystemControlA,
};
use crate::memory::RamRange;
use crate::pci::Root;
use crate::pvpanic::{PanicEvents, PvPanic};
use crate::serial::Uart;
use crate::virtio::{DeviceContext, PciDevice, block, rng};

/// Two hotplug slots.
const HOTPLUG_MASK: u32 = 0b11 << 8;

/// Where something answers on ports.
const PORTS: [u16; 12] = [0x60, 0x64, 0x70, 0x80, 0x92, 0x3f8, 0x505, 0x600, 0x604, 0xcf8, 0xcf9, 0xcfc];

/// The devices on ports: serial port, power management, clock, keyboard controller, pvpanic, and what resets.
pub fn ports(script: &[u8]) {
    let pio = Bus::default();
    let outcome = Arc::new(Outcome::default());
    let put = |at: u16, len: u16, device: Arc<dyn BusDevice>| {
        let range = BusRange::new(at.into(), len.into()).expect("a range");
        pio.insert(range, device).expect("room");
    };
    let uart = Arc::new(Uart::new(Arc::new(Lines), Box::new(|_: &[u8]| {})).expect("an eventfd"));
    let power = Arc::new(PowerManagement::new(Arc::new(Lines), outcome.clone()));
    let clock = Rtc::new(Arc::new(Lines), power.clone(), ClockOffset::default(), &[]).expect("a thread");
    let ps2 = Ps2::new(outcome.clone(), (Arc::new(Lines), Arc::new(Lines))).expect("a thread");
    put(layout::COM1_PORT, 8, uart.clone());
    put(layout::PM_PORT, layout::PM_SIZE, power.clone());
    put(layout::RTC_PORT, 2, Arc::new(clock));
    put(layout::DEBUG_PORT, 1, Arc::new(DebugPort::new()));
    let events = PanicEvents::new(outcome.clone(), Notices::default());
    put(layout::PANIC_PORT, 1, Arc::new(events));
    put(0x92, 1, Arc::new(SystemControlA::new(outcome.clone())));
    put(0xcf9, 1, Arc::new(ResetControl::new(outcome.clone())));
    let mut script = Script::new(script);
    match script.byte() {
        Some(first) if first & 1 == 0 => put(layout::I8042_PORT, 5, ps2.clone()),
        _ => put(layout::I8042_PORT, 5, Arc::new(I8042::new(outcome))),
    }
    let mut step = || {
        let kind = script.byte()?;
        let base = PORTS.get(usize::from(kind >> 4)).copied();
        let width = 1 << (kind >> 1 & 3);
        match base {
            Some(base) => {
                let at = u64::from(base)
                    + u64::from(if base == 0x600 { script.byte()? & 0x7f } else { kind >> 3 & 1 });
                let at = if base == 0x3f8 { u64::from(base) + u64::from(script.byte()? & 7) } else { at };
                if kind & 1 == 0 {
                    pio.read(at, &mut [0; 8][..width]);
                } else {
                    pio.write(at, script.up_to(width));
                }
            }
            None => match (kind >> 4, script.byte()?) {
                (12, byte) => {
                    Key::from_xt(u32::from(byte & 0x7f))
                        .into_iter()
                        .for_each(|key| ps2.key(key, byte & 0x80 == 0));
                }
                (13, x) => ps2.point(Pointing {
                    x: x.into(),
                    y: script.byte()?.into(),
                    width: 200,
                    height: 100,
                    buttons: kind,
                }),
                (14, len) => assert!(uart.push(script.up_to(len.into())) <= usize::from(len)),
                (_, 0) => power.press_power_button(),
                (_, 1) => uart.send_break(),
                _ => {
                    ps2.leds();
                }
            },
        }
        Some(())
    };
    while step().is_some() {}
    uart.close();
}

/// Configuration space by ports and by memory, and BARs wherever the guest moves them: bridges, a display adapter, a SATA
/// controller with two drives, a pvpanic device, a watchdog, a disk and an entropy device; the hotplug controller, and disks
/// that are attached and detached.
pub fn pci(script: &[u8]) {
    let memory = ram();
    let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let range = [RamRange { start: 0, len: 64 << 10 }];
    let root = Arc::new(Root::new((&mmio, &pio), &range, Arc::new(Lines)).expect("a bus"));
    let host = DeviceContext {
        memory: memory.clone(),
        router: Arc::new(Router),
        doorbells: Arc::new(Bells::default()),
        threads: ThreadHook::default(),
    };
    let (first, second) = (disk(), disk());
    let drives = [(&first, DiskDevice::Disk), (&second, DiskDevice::CdRom)];
    let sata = ahci::Controller::new(&drives, &memory, &Router, &ThreadHook::default()).expect("threads");
    root.add_at(ahci::ADDRESS, sata).expect("a slot");
    let events = PanicEvents::new(Arc::new(Outcome::default()), Notices::default());
    root.add(Arc::new(PvPanic::new(Arc::new(events)))).expect("a slot");
    let watchdog = Watchdog::new(WatchdogAction::Reset);
    let watchdog =
        I6300Esb::new(&watchdog, Arc::new(Outcome::default()), Arc::new(NoPower)).expect("a thread");
    root.add(Arc::new(watchdog)).expect("a slot");
    root.set_running(true);
    let image = block::Block::new(&disk()).expect("an image");
    root.add(PciDevice::new(Box::new(image), host.clone()).expect("eventfds")).expect("a slot");
    root.add(PciDevice::new(Box::new(rng::Rng), host.clone()).expect("eventfds")).expect("a slot");
    let head = Head::new(&Slots, Some(&[0x55; 4096])).expect("memory");
    root.add(Bochs::new(head.clone())).expect("a slot");
    let hotplug = Hotplug::new(|_| {});
    let power = Arc::new(PowerManagement::new(Arc::new(Lines), Arc::new(Outcome::default())));
    let controller = Controller::new(&root, power, HOTPLUG_MASK, Box::new(hotplug.eject_handler()));
    let slots = Arc::new(hotplug::Slots::new(Arc::new(controller), host.clone()));
    let ports = BusRange::new(layout::HOTPLUG_PORT.into(), layout::HOTPLUG_SIZE.into()).expect("a range");
    pio.insert(ports, slots.controller.clone()).expect("room");
    hotplug.begin(&slots, &root).expect("slots");
    let bases = [
        ECAM_START,
        ECAM_START + (31 << 15),
        ECAM_START + (31 << 15) + (2 << 12),
        // Two slots each.
        ECAM_START + (1 << 15),
        ECAM_START + (3 << 15),
        ECAM_START + (5 << 15),
        PCI32_START,
        PCI32_START + (16 << 20),
        root.window64().start(),
        root.window64().start() + 0x8000,
    ];
    let mut script = Script::new(script);
    let mut step = || {
        let kind = script.byte()?;
        let width = 1 << (kind >> 1 & 3);
        let space = usize::from(kind >> 4);
        let (bus, at) = match bases.get(space) {
            Some(base) => (&mmio, base + u64::from(script.u16()?)),
            None if space == 10 => (&pio, 0xcf8),
            None if space == 11 => (&pio, 0xcfc + u64::from(script.byte()? & 3)),
            None if space == 12 => (&pio, u64::from(script.u16()?)),
            None if space == 13 => {
                head.refresh(&mut Canvas::default(), kind & 1 == 0);
                return Some(());
            }
            None if space == 14 => match script.byte()? {
                0 => {
                    // Where there is a free slot.
                    let _ = hotplug.attach(disk());
                    return Some(());
                }
                slot @ 1..32 => {
                    // Where there is a disk in it.
                    let _ = hotplug.detach(slot);
                    return Some(());
                }
                32 => {
                    hotplug.close_released();
                    return Some(());
                }
                port => (&pio, u64::from(layout::HOTPLUG_PORT) + u64::from(port & 15)),
            },
            None => (&mmio, script.u64()?),
        };
        if kind & 1 == 0 {
            bus.read(at, &mut [0; 8][..width]);
        } else {
            bus.write(at, script.up_to(width));
        }
        Some(())
    };
    while step().is_some() {}
    hotplug.close_released();
    root.programmed().high_bars();
    root.pause();
    root.resume();
    root.stop();
    // What the BARs of a VM that ends are unmapped by.
    for address in root.addresses() {
        let (device, function) = (u64::from(address.device()), u64::from(address.function()));
        let at = root.ecam().map(|ecam| ecam.start() + (device << 15 | function << 12) + 4);
        if let Some(at) = at {
            mmio.write(at, &[0, 0]);
        }
    }
}
