use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use vmm_sys_util::eventfd::EventFd;

use super::*;
use crate::bus::{BusDevice, BusRange};
use crate::irq::{MsiMessage, MsiRouter, MsiVector};

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

/// A function with a BAR and nothing behind it but the address it is asked for.
struct Plain {
    config: Mutex<ConfigSpace>,
    bar: Mutex<Bar>,
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
        config.set_bar64(0x8000);
        let weak = Arc::downgrade(echo);
        Arc::new(Self { config: Mutex::new(config), bar: Mutex::new(Bar::new(0x8000, weak)) })
    }
}

impl Function for Plain {
    fn read_config(&self, register: u16, data: &mut [u8]) {
        self.config.lock().unwrap().read(register, data);
    }
    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        let mut config = self.config.lock().unwrap();
        config.write(register, data);
        match self.bar.lock().unwrap().place(config.bar64()).moved() {
            true => Decoding::Changed,
            false => Decoding::Same,
        }
    }
    fn bar_size(&self) -> Option<u64> {
        Some(0x8000)
    }
    fn attach(&self, bus: Weak<Bus>, address: u64) {
        self.bar.lock().unwrap().attach(bus);
        self.config.lock().unwrap().set_bar64_address(address);
    }
    fn retry(&self) {
        self.bar.lock().unwrap().retry();
    }
}

struct Machine {
    mmio: Arc<Bus>,
    pio: Arc<Bus>,
    root: Root,
    _echo: Arc<Echo>,
}

fn machine(functions: usize) -> Machine {
    let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let root = Root::new(&mmio, &pio, 0x1000_0000).unwrap();
    let echo = Arc::new(Echo);
    for _ in 0..functions {
        root.add(Plain::new(&echo)).unwrap();
    }
    Machine { mmio, pio, root, _echo: echo }
}

impl Machine {
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

const ECAM: u64 = crate::layout::ECAM_START;

#[test]
fn the_machine_looks_like_a_q35_both_ways() {
    let machine = machine(1);
    assert_eq!(machine.ecam32(ECAM), 0x29c0_8086);
    assert_eq!(machine.ecam32(ECAM + (31 << 15)), 0x2918_8086);
    assert_eq!(machine.ecam32(ECAM + (1 << 15)), 0x1044_1af4);
    assert_eq!(machine.ecam32(ECAM + (2 << 15)), 0xffff_ffff, "an absent device");
    assert_eq!(machine.ecam32(ECAM + (1 << 12)), 0xffff_ffff, "an absent function");
    assert_eq!(machine.port32(0x8000_0000), 0x29c0_8086);
    assert_eq!(machine.port32(0x8000_f800), 0x2918_8086);
    assert_eq!(machine.port32(0x8001_0000), 0xffff_ffff, "an absent bus");
    assert_eq!(machine.port32(0x0000_0000), 0xffff_ffff, "not enabled");
    let mut half = [0; 2];
    machine.pio.write(0xcf8, &0x8000_0000_u32.to_le_bytes());
    machine.pio.read(0xcfe, &mut half);
    assert_eq!(u16::from_le_bytes(half), 0x29c0);
    assert_eq!(machine.root.addresses().len(), 3);
}

#[test]
fn the_reset_port_is_somebody_elses() {
    let machine = machine(0);
    let mut byte = [0];
    machine.pio.read(0xcf9, &mut byte);
    assert_eq!(byte, [0xff]);
    assert!(machine.root.claim_reset_port(Arc::new(Echo)));
    assert!(!machine.root.claim_reset_port(Arc::new(Echo)));
    machine.pio.read(0xcf9, &mut byte);
    assert_eq!(byte, [0]);
    assert_eq!(machine.port32(0x8000_0000), 0x29c0_8086);
}

#[test]
fn configuration_space_follows_pciexbar() {
    let machine = machine(0);
    machine.mmio.write(ECAM + 0x60, &0xe000_0001_u32.to_le_bytes());
    assert_eq!(machine.ecam32(ECAM), 0xffff_ffff);
    assert_eq!(machine.ecam32(0xe000_0000), 0x29c0_8086);
    assert_eq!(machine.ecam32(0xe000_0060), 0xe000_0001);
    assert_eq!(machine.root.ecam().map(BusRange::start), Some(0xe000_0000));
    machine.mmio.write(0xe000_0060, &0_u32.to_le_bytes());
    assert_eq!(machine.ecam32(0xe000_0000), 0xffff_ffff);
    assert_eq!(machine.root.ecam(), None);
    assert_eq!(machine.port32(0x8000_0060), 0, "the ports stay");
}

#[test]
fn two_bars_on_one_place_settle_when_one_leaves() {
    let machine = machine(2);
    let [first, second] = [1_u64, 2].map(|slot| ECAM + (slot << 15));
    for function in [first, second] {
        machine.mmio.write(function + 4, &[2, 0]);
    }
    let base = machine.root.window64().start();
    let mut byte = [0];
    assert!(machine.mmio.read(base + 3, &mut byte));
    assert_eq!(byte, [3]);
    machine.mmio.write(second + 0x10, &base.to_le_bytes());
    assert!(!machine.mmio.read(base + 0x8000, &mut byte), "refused, and gone from its old place");
    machine.mmio.write(first + 4, &[0, 0]);
    assert!(machine.mmio.read(base, &mut byte), "its place is free now");
    assert_eq!(machine.ecam32(second + 0x10), 0x4 | u32::try_from(base & 0xffff_ffff).unwrap());
}

#[test]
fn a_full_bus_refuses() {
    let machine = machine(30);
    assert!(matches!(machine.root.add(Plain::new(&Arc::new(Echo))), Err(RootError::Full)));
}

proptest! {
    /// Whatever the guest writes wherever, nothing panics, and reset identity stays readable through the ports.
    #[test]
    fn wild_configuration_accesses_are_survived(
        accesses in prop::collection::vec(
            (any::<bool>(), 0_u64..0x2_0000 + (1 << 15), prop::collection::vec(any::<u8>(), 1..9)), 1..200),
    ) {
        let machine = machine(3);
        for (ports, at, data) in accesses {
            if ports {
                machine.pio.write(0xcf8, &(0x8000_0000 | u32::try_from(at >> 4).unwrap()).to_le_bytes());
                machine.pio.write(0xcfc + (at & 3), &data[..data.len().min(4 - (at & 3) as usize)]);
            } else if let Some(ecam) = machine.root.ecam() {
                machine.mmio.write(ecam.start() + at, &data);
                let mut back = data.clone();
                machine.mmio.read(ecam.start() + at, &mut back);
            }
        }
        prop_assert_eq!(machine.port32(0x8000_0000), 0x29c0_8086);
    }
}
