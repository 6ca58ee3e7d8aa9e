use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use vmm_sys_util::eventfd::EventFd;

use super::*;
use crate::bus::Bus;
use crate::bus::{BusDevice, BusRange};
use crate::irq::{IrqPins, MsiMessage, MsiRouter, MsiVector};
use crate::memory::RamRange;

/// Delivers as KVM does: what is signalled while masked waits in the eventfd until the vector is routed.
#[derive(Clone, Default)]
pub(crate) struct FakeRouter(Arc<Delivered>);

#[derive(Default)]
struct Delivered {
    messages: Mutex<Vec<(u64, u32)>>,
    more: Condvar,
}

impl FakeRouter {
    pub(crate) fn delivered(&self) -> Vec<(u64, u32)> {
        self.0.messages.lock().unwrap().clone()
    }

    /// Waits for a message with `data` that was not waited for before, and takes it.
    pub(crate) fn take(&self, data: u32) {
        let messages = self.0.messages.lock().unwrap();
        let absent = |messages: &mut Vec<(u64, u32)>| !messages.iter().any(|message| message.1 == data);
        let patience = Duration::from_secs(20);
        let (mut messages, result) = self.0.more.wait_timeout_while(messages, patience, absent).unwrap();
        assert!(!result.timed_out(), "no interrupt {data:#x}");
        messages.retain(|message| message.1 != data);
    }
}

struct FakeVector {
    delivered: Arc<Delivered>,
    route: Mutex<Option<MsiMessage>>,
    fd: EventFd,
}

impl MsiRouter for FakeRouter {
    fn allocate(&self) -> io::Result<Arc<dyn MsiVector>> {
        let fd = EventFd::new(libc::EFD_NONBLOCK)?;
        Ok(Arc::new(FakeVector { delivered: self.0.clone(), route: Mutex::new(None), fd }))
    }
}

impl FakeVector {
    fn deliver(&self, message: MsiMessage) {
        if self.fd.read().is_ok() {
            self.delivered.messages.lock().unwrap().push((message.address, message.data));
            self.delivered.more.notify_all();
        }
    }
}

impl MsiVector for FakeVector {
    fn route(&self, message: MsiMessage) -> io::Result<()> {
        *self.route.lock().unwrap() = Some(message);
        self.deliver(message);
        Ok(())
    }
    fn mask(&self) -> io::Result<()> {
        *self.route.lock().unwrap() = None;
        Ok(())
    }
    fn trigger(&self) -> io::Result<()> {
        self.fd.write(1)?;
        if let Some(message) = *self.route.lock().unwrap() {
            self.deliver(message);
        }
        Ok(())
    }
    fn eventfd(&self) -> &EventFd {
        &self.fd
    }
}

/// Keeps the levels.
#[derive(Clone, Default)]
pub(crate) struct FakePins(Arc<(Mutex<BTreeSet<u32>>, Condvar)>);

impl FakePins {
    pub(crate) fn high(&self) -> Vec<u32> {
        self.0.0.lock().unwrap().iter().copied().collect()
    }

    /// Waits until the line is up.
    pub(crate) fn wait(&self, gsi: u32) {
        let (levels, changed) = &*self.0;
        let patience = Duration::from_secs(20);
        let low = |levels: &mut BTreeSet<u32>| !levels.contains(&gsi);
        let (_levels, result) = changed.wait_timeout_while(levels.lock().unwrap(), patience, low).unwrap();
        assert!(!result.timed_out(), "line {gsi} stays low");
    }
}

impl IrqPins for FakePins {
    fn set_level(&self, gsi: u32, high: bool) -> io::Result<()> {
        let (levels, condition) = &*self.0;
        let changed = match high {
            true => levels.lock().unwrap().insert(gsi),
            false => levels.lock().unwrap().remove(&gsi),
        };
        assert!(changed, "line {gsi} is set to what it is");
        condition.notify_all();
        Ok(())
    }
}

/// A function with a BAR of every kind and nothing behind them but the address it is asked for.
struct Plain {
    registers: Mutex<(ConfigSpace, Bars)>,
}

struct Echo;

impl BusDevice for Echo {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(offset.to_le_bytes()[0]);
    }
    fn write(&self, _offset: u64, _data: &[u8]) {}
}

impl Plain {
    fn new(echo: &Arc<Echo>) -> Arc<Self> {
        let mut config = ConfigSpace::new(Identity {
            vendor: 0x1af4,
            device: 0x1044,
            revision: 1,
            class: 0xff_00_00,
            subsystem: (0, 0),
        });
        let mut bars = Bars::default();
        for (index, kind, size) in [
            (0, BarKind::Memory64 { prefetchable: false }, 0x8000),
            (2, BarKind::Memory32 { prefetchable: true }, 0x1_0000),
            (3, BarKind::Io, 0x20),
            (ConfigSpace::ROM, BarKind::Rom, 0x1000),
        ] {
            let weak = Arc::downgrade(echo);
            bars.add(&mut config, (index, kind), size, weak);
        }
        Arc::new(Self { registers: Mutex::new((config, bars)) })
    }
}

impl Function for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn read_config(&self, register: u16, data: &mut [u8]) {
        self.registers.lock().unwrap().0.read(register, data);
    }
    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        let (config, bars) = &mut *self.registers.lock().unwrap();
        config.write(register, data);
        bars.follow(config)
    }
    fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        let (config, bars) = &mut *self.registers.lock().unwrap();
        bars.attach(config, slot)
    }
    fn retry(&self) {
        self.registers.lock().unwrap().1.retry();
    }
}

struct TestBus {
    mmio: Arc<Bus>,
    pio: Arc<Bus>,
    root: Root,
    _echo: Arc<Echo>,
}

fn bus(functions: usize) -> TestBus {
    let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let root =
        Root::new((&mmio, &pio), &[RamRange { start: 0, len: RAM }], Arc::new(FakePins::default())).unwrap();
    let echo = Arc::new(Echo);
    for _ in 0..functions {
        root.add(Plain::new(&echo)).unwrap();
    }
    TestBus { mmio, pio, root, _echo: echo }
}

impl TestBus {
    fn ecam32(&self, at: u64) -> u32 {
        let mut data = [0; 4];
        self.mmio.read(at, &mut data);
        u32::from_le_bytes(data)
    }

    fn port32(&self, select: u32) -> u32 {
        self.pio.write(0xcf8, &select.to_le_bytes());
        let mut data = [0; 4];
        self.pio.read(0xcfc, &mut data);
        u32::from_le_bytes(data)
    }
}

const RAM: u64 = 0x1000_0000;
const ECAM: u64 = crate::layout::ECAM_START;

#[test]
fn both_access_mechanisms_show_a_q35() {
    let bus = bus(1);
    assert_eq!(bus.ecam32(ECAM), 0x29c0_8086);
    assert_eq!(bus.ecam32(ECAM + (31 << 15)), 0x2918_8086);
    assert_eq!(bus.ecam32(ECAM + (1 << 15)), 0x1044_1af4);
    assert_eq!(bus.ecam32(ECAM + (2 << 15)), 0xffff_ffff, "an absent device");
    assert_eq!(bus.ecam32(ECAM + (1 << 12)), 0xffff_ffff, "an absent function");
    assert_eq!(bus.port32(0x8000_0000), 0x29c0_8086);
    assert_eq!(bus.port32(0x8000_f800), 0x2918_8086);
    assert_eq!(bus.port32(0x8001_0000), 0xffff_ffff, "an absent bus");
    assert_eq!(bus.port32(0x0000_0000), 0xffff_ffff, "not enabled");
    let mut half = [0; 2];
    bus.pio.write(0xcf8, &0x8000_0000_u32.to_le_bytes());
    bus.pio.read(0xcfe, &mut half);
    assert_eq!(u16::from_le_bytes(half), 0x29c0);
    assert_eq!(bus.root.addresses().len(), 3);
}

#[test]
fn the_reset_port_is_another_devices() {
    let bus = bus(0);
    let mut byte = [0];
    bus.pio.read(0xcf9, &mut byte);
    assert_eq!(byte, [0xff]);
    assert!(bus.root.claim_reset_port(Arc::new(Echo)));
    assert!(!bus.root.claim_reset_port(Arc::new(Echo)));
    bus.pio.read(0xcf9, &mut byte);
    assert_eq!(byte, [0]);
    assert_eq!(bus.port32(0x8000_0000), 0x29c0_8086);
}

#[test]
fn configuration_space_follows_pciexbar() {
    let bus = bus(0);
    bus.mmio.write(ECAM + 0x60, &0xe000_0001_u32.to_le_bytes());
    assert_eq!(bus.ecam32(ECAM), 0xffff_ffff);
    assert_eq!(bus.ecam32(0xe000_0000), 0x29c0_8086);
    assert_eq!(bus.ecam32(0xe000_0060), 0xe000_0001);
    assert_eq!(bus.root.ecam().map(BusRange::start), Some(0xe000_0000));
    bus.mmio.write(0xe000_0060, &0_u32.to_le_bytes());
    assert_eq!(bus.ecam32(0xe000_0000), 0xffff_ffff);
    assert_eq!(bus.root.ecam(), None);
    assert_eq!(bus.port32(0x8000_0060), 0, "the ports stay");
}

#[test]
fn conflicting_bars_are_mapped_when_one_is_unmapped() {
    let bus = bus(2);
    let [first, second] = [1_u64, 2].map(|slot| ECAM + (slot << 15));
    for function in [first, second] {
        bus.mmio.write(function + 4, &[2, 0]);
    }
    let base = bus.root.window64().start();
    let mut byte = [0];
    assert!(bus.mmio.read(base + 3, &mut byte));
    assert_eq!(byte, [3]);
    bus.mmio.write(second + 0x10, &base.to_le_bytes());
    assert!(!bus.mmio.read(base + 0x8000, &mut byte), "rejected, and gone from its old address");
    bus.mmio.write(first + 4, &[0, 0]);
    assert!(bus.mmio.read(base, &mut byte), "its range is free now");
    assert_eq!(bus.ecam32(second + 0x10), 0x4 | u32::try_from(base & 0xffff_ffff).unwrap());
}

#[test]
fn every_bar_answers_where_its_own_decoding_puts_it() {
    let bus = bus(1);
    let function = ECAM + (1 << 15);
    let memory = |at: u64| bus.mmio.read(at + 5, &mut [0]);
    let ports = |at: u64| bus.pio.read(at + 5, &mut [0]);
    let bars = [0x10, 0x18, 0x1c, 0x30].map(|at| bus.ecam32(function + at));
    assert_eq!(bars, [4, 0xc000_0008, 0xc001, 0xc001_0000]);
    let high = bus.root.window64().start();
    let seen = || [memory(high), memory(0xc000_0000), ports(0xc000), memory(0xc001_0000)];
    for (command, rom, want) in [
        (0, 0, [false, false, false, false]),
        (1, 1, [false, false, true, false]),
        (2, 0, [true, true, false, false]),
        (3, 1, [true, true, true, true]),
        (3, 0, [true, true, true, false]),
        (0, 1, [false, false, false, false]),
    ] {
        bus.mmio.write(function + 0x30, &[rom]);
        bus.mmio.write(function + 4, &[command, 0]);
        assert_eq!(seen(), want, "command {command}, ROM {rom}");
    }
    bus.mmio.write(function + 4, &[3]);
    bus.mmio.write(function + 0x1c, &0xd000_u32.to_le_bytes());
    bus.mmio.write(function + 0x18, &0xe000_0000_u32.to_le_bytes());
    assert!(!ports(0xc000) && ports(0xd000) && !memory(0xc000_0000) && memory(0xe000_0000));
}

#[test]
fn a_bar_over_platform_ranges_is_unmapped() {
    let bus = bus(1);
    let function = ECAM + (1 << 15);
    bus.mmio.write(function + 4, &[3]);
    for at in [0_u64, 0xa_0000, RAM - 0x1_0000, 0xfec0_0000, 0xfee0_0000, 0xfeff_0000, 0xff00_0000] {
        for register in [0x10, 0x18] {
            bus.mmio.write(function + register, &at.to_le_bytes()[..4]);
            bus.mmio.write(function + 0x14, &[0; 4]);
            assert!(!bus.mmio.read(at + 8, &mut [0]), "{at:#x}");
        }
    }
    bus.mmio.write(function + 0x10, &RAM.to_le_bytes());
    assert!(bus.mmio.read(RAM, &mut [0]), "right above RAM");
    bus.mmio.write(function + 0x1c, &0x60_u32.to_le_bytes());
    assert!(!bus.pio.read(0x60, &mut [0]), "ports of the VM");
}

#[test]
fn functions_share_a_device_where_they_are_put() {
    let bus = bus(0);
    let at = Address::root_function(31, 2);
    bus.root.add_at(at, Plain::new(&bus._echo)).unwrap();
    assert_eq!(bus.ecam32(ECAM + (31 << 15) + (2 << 12)), 0x1044_1af4);
    assert_eq!(bus.ecam32(ECAM + (31 << 15) + 0xc) >> 16 & 0x80, 0x80, "function 0 has the bit");
    assert!(matches!(bus.root.add_at(at, Plain::new(&bus._echo)), Err(RootError::Taken(_))));
}

#[test]
fn a_full_bus_refuses() {
    let bus = bus(30);
    assert!(matches!(bus.root.add(Plain::new(&Arc::new(Echo))), Err(RootError::Full)));
}

proptest! {
    /// Whatever the guest writes wherever, nothing panics, and reset identity stays readable through the ports.
    #[test]
    fn wild_configuration_accesses_are_survived(
        accesses in prop::collection::vec(
            (any::<bool>(), 0_u64..0x2_0000 + (1 << 15), prop::collection::vec(any::<u8>(), 1..9)), 1..200),
    ) {
        let bus = bus(3);
        for (ports, at, data) in accesses {
            if ports {
                bus.pio.write(0xcf8, &(0x8000_0000 | u32::try_from(at >> 4).unwrap()).to_le_bytes());
                bus.pio.write(0xcfc + (at & 3), &data[..data.len().min(4 - (at & 3) as usize)]);
            } else if let Some(ecam) = bus.root.ecam() {
                bus.mmio.write(ecam.start() + at, &data);
                let mut back = data.clone();
                bus.mmio.read(ecam.start() + at, &mut back);
            }
        }
        prop_assert_eq!(bus.port32(0x8000_0000), 0x29c0_8086);
    }
}
