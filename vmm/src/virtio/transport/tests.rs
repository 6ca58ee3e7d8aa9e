use std::sync::{Arc, Mutex};
use std::thread;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::super::rng::Rng;
use super::super::testing::{BUFFERS, EVENT_IDX, FakeDoorbells, Guest, VERSION_1};
use super::super::{Device, DeviceContext, DeviceInfo, Lane, PciDevice, Queues, RingError};
use crate::bus::Bus;
use crate::config::{Starting, ThreadHook};
use crate::pci::tests::{FakePins, FakeRouter};
use crate::pci::{Function, Root};

fn guest() -> Guest {
    Guest::new(Box::new(Rng))
}

fn is_random(guest: &Guest, at: u64) -> bool {
    guest.memory.read_obj::<u128>(GuestAddress(at)).unwrap() != 0
}

#[test]
fn a_driver_is_served_again_and_again() {
    for features in [VERSION_1, VERSION_1 | EVENT_IDX] {
        let mut guest = guest();
        guest.start(features, 4);
        for round in 0..20 {
            let at = BUFFERS + round * 64;
            let head = guest.add(0, &[(at, 40, true), (at + 40, 24, true)]);
            guest.kick(0);
            assert_eq!(guest.wait(0, 1), [(head.into(), 64)]);
            assert!(is_random(&guest, at) && is_random(&guest, at + 48));
        }
    }
}

#[test]
fn what_was_there_before_the_driver_was_ready_is_served() {
    let mut guest = guest();
    guest.negotiate(VERSION_1, 4);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.write(0x14, &[0xf]);
    guest.wait(0, 1);
}

#[test]
fn only_offered_features_of_a_modern_driver_are_accepted() {
    let guest = guest();
    let offered = guest.offered();
    for (features, good) in [
        (offered, true),
        (VERSION_1, true),
        (offered & !VERSION_1, false),
        (VERSION_1 | 1 << 34, false),
        (VERSION_1 | 1, false),
    ] {
        guest.reset();
        guest.write(0x14, &[3]);
        guest.accept(features);
        guest.write(0x14, &[0xb]);
        assert_eq!(guest.status() & 8 != 0, good, "{features:#x}");
        guest.write(0x14, &[0xf]);
        assert_eq!(guest.status() & 4 != 0, good, "ready only with features");
    }
}

#[test]
fn a_reset_gives_the_device_back_and_it_starts_anew() {
    let mut guest = guest();
    for _ in 0..5 {
        guest.start(VERSION_1, 8);
        guest.add(0, &[(BUFFERS, 16, true)]);
        guest.kick(0);
        guest.wait(0, 1);
        guest.reset();
        guest.write(0x16, &[0, 0]);
        assert_eq!(guest.read::<2>(0x18), 64_u16.to_le_bytes(), "sizes are back");
        assert_eq!(guest.read::<2>(0x1c), [0, 0], "nothing is enabled");
        assert_eq!(guest.read::<2>(0x1a), [0xff, 0xff], "no vectors");
    }
}

#[test]
fn queues_take_only_what_makes_sense() {
    let mut guest = guest();
    guest.negotiate(VERSION_1, 8);
    guest.reset();
    for (size, after) in [(128_u16, 64_u16), (0, 64), (3, 64), (16, 16)] {
        guest.write(0x18, &size.to_le_bytes());
        assert_eq!(guest.read::<2>(0x18), after.to_le_bytes());
    }
    guest.write(0x1a, &9_u16.to_le_bytes());
    assert_eq!(guest.read::<2>(0x1a), [0xff; 2], "no such vector");
    guest.write(0x16, &7_u16.to_le_bytes());
    assert_eq!(guest.read::<2>(0x18), [0, 0], "no such queue");
    guest.write(0x18, &4_u16.to_le_bytes());
    guest.write(0x20, &[0xff; 8]);
}

#[test]
fn rings_outside_of_ram_or_crooked_make_the_device_ask_for_reset() {
    for (register, value) in [(0x20, 0x1_0008_u64), (0x20, 1 << 40), (0x28, 0x1_8001), (0x30, u64::MAX - 3)] {
        let mut guest = guest();
        guest.negotiate(VERSION_1, 8);
        guest.reset();
        guest.write(0x14, &[3]);
        guest.accept(VERSION_1);
        guest.write(0x14, &[0xb]);
        guest.write(0x10, &1_u16.to_le_bytes());
        for (register, value) in [(0x20, 0x1_0000_u64), (0x28, 0x1_8000), (0x30, 0x1_c000), (register, value)]
        {
            guest.write(register, &value.to_le_bytes());
        }
        guest.write(0x1c, &1_u16.to_le_bytes());
        guest.write(0x14, &[0xf]);
        guest.wait_for_plea();
        guest.start(VERSION_1, 8);
    }
}

#[test]
fn a_lying_ring_stops_its_device_until_reset() {
    let mut guest = guest();
    guest.start(VERSION_1, 8);
    let ring = guest.ring(0);
    guest.memory.write_obj(100_u16, GuestAddress(ring.available + 2)).unwrap();
    guest.kick(0);
    guest.wait_for_plea();
    guest.start(VERSION_1, 8);
    guest.put_available(0, 8);
    guest.kick(0);
    guest.wait_for_plea();
    guest.start(VERSION_1, 8);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    guest.wait(0, 1);
}

#[test]
fn bad_chains_are_answered_and_do_no_harm() {
    let mut guest = guest();
    guest.start(VERSION_1, 16);
    let write = 2;
    let bad: &[&[(u64, u32, u16, u16)]] = &[
        &[(BUFFERS, 16, write | 1, 0)],                      // a loop
        &[(BUFFERS, 16, write | 1, 99)],                     // beyond the table
        &[(1 << 40, 16, write, 0)],                          // outside of RAM
        &[(BUFFERS, u32::MAX, write, 0)],                    // past the end of RAM
        &[(u64::MAX - 4, 16, write, 0)],                     // wraps
        &[(BUFFERS, 16, write | 1, 1), (BUFFERS, 16, 0, 0)], // out of order
        &[(BUFFERS, 0, write, 0)],                           // empty
        &[(BUFFERS, 16, 0, 0)],                              // nothing to write
        &[(BUFFERS, 15, 4, 0)],                              // a crooked indirect table
        &[(1 << 40, 32, 4, 0)],                              // a table outside of RAM
        &[(0x1_0000, 16, 4, 0)],                             // a table in a table
        &[(BUFFERS, 0, 4, 0)],                               // an empty table
    ];
    for chain in bad {
        for (index, descriptor) in (0..).zip(*chain) {
            guest.put_descriptor(0, index, *descriptor);
        }
        guest.put_available(0, 0);
        guest.kick(0);
        assert_eq!(guest.wait(0, 1), [(0, 0)], "{chain:?}");
    }
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    assert_eq!(guest.wait(0, 1)[0].1, 16);
}

#[test]
fn doorbells_follow_the_bar() {
    let guest = guest();
    assert_eq!(guest.doorbells.bound(), [guest.bar + 0x3000]);
    guest.write_config(0x10, &(guest.bar + 0x10_0000).to_le_bytes());
    assert_eq!(guest.doorbells.bound(), [guest.bar + 0x10_3000]);
    guest.write_config(4, &[0]);
    assert_eq!(guest.doorbells.bound(), [0; 0]);
}

#[test]
fn the_bar_is_reached_through_configuration_space_too() {
    let guest = guest();
    let mut at = u64::from(guest.read_config8(0x34));
    while guest.read_config8(at) != 9 || guest.read_config8(at + 3) != 5 {
        at = u64::from(guest.read_config8(at + 1));
        assert_ne!(at, 0);
    }
    guest.write_config(at + 8, &0x14_u32.to_le_bytes());
    guest.write_config(at + 12, &1_u32.to_le_bytes());
    guest.write_config(at + 16, &[1]);
    assert_eq!(guest.status(), 1);
    guest.write_config(at + 8, &0x12_u32.to_le_bytes());
    guest.write_config(at + 12, &2_u32.to_le_bytes());
    assert_eq!(guest.read_config32(at + 16) & 0xffff, 1, "one queue");
    guest.write_config(at + 12, &3_u32.to_le_bytes());
    guest.read_config32(at + 16);
    guest.write_config(at + 8, &u32::MAX.to_le_bytes());
    guest.write_config(at + 12, &1_u32.to_le_bytes());
    guest.read_config32(at + 16);
}

#[test]
fn a_paused_device_serves_when_it_goes_on() {
    let mut guest = guest();
    guest.start(VERSION_1, 8);
    for _ in 0..3 {
        guest.device.pause();
        guest.add(0, &[(BUFFERS, 16, true)]);
        guest.kick(0);
        assert_eq!(guest.answers(0), []);
        guest.device.resume();
        guest.wait(0, 1);
    }
    guest.device.pause();
    guest.root.stop();
}

#[test]
fn a_function_that_may_not_access_memory_serves_nothing_until_it_may() {
    let mut guest = guest();
    guest.start(VERSION_1, 8);
    for _ in 0..20 {
        guest.write_config(4, &[2]);
        guest.add(0, &[(BUFFERS, 16, true)]);
        guest.kick(0);
        std::thread::yield_now();
        assert_eq!(guest.answers(0), []);
        guest.write_config(4, &[6]);
        guest.wait(0, 1);
    }
    guest.write_config(4, &[2]);
    guest.start(VERSION_1, 8);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    assert_eq!(guest.answers(0), [], "also when it started without");
    guest.reset();
    guest.write_config(4, &[6]);
    guest.start(VERSION_1, 8);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    guest.wait(0, 1);
}

#[test]
fn without_messages_the_line_asks_for_attention_until_the_isr_is_read() {
    let mut guest = guest();
    guest.write_config(guest.msix() + 3, &[0]);
    guest.start(VERSION_1, 8);
    assert_eq!(guest.read_config8(0x3d), 1, "INTA#");
    for _ in 0..3 {
        guest.add(0, &[(BUFFERS, 16, true)]);
        guest.kick(0);
        guest.pins.wait(10);
        assert_eq!(guest.pins.high(), [10, 21], "PIRQF, and the PIC line of it");
        assert_eq!(guest.read_config8(6) & 8, 8, "interrupt status");
        assert_eq!(guest.answers(0).len(), 1);
        assert_eq!(guest.read::<1>(0x1000), [1]);
        assert_eq!((guest.pins.high(), guest.read_config8(6) & 8), (vec![], 0));
    }
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    guest.pins.wait(10);
    guest.write_config(4, &[6, 4]);
    assert!(guest.pins.high().is_empty(), "interrupt disable");
    guest.write_config(4, &[6, 0]);
    assert_eq!(guest.pins.high(), [10, 21]);
    guest.write_config(guest.msix() + 3, &[0x80]);
    assert!(guest.pins.high().is_empty(), "messages instead");
    guest.write_config(guest.msix() + 3, &[0]);
    guest.reset();
    assert!(guest.pins.high().is_empty());
}

#[test]
fn dropping_a_vm_stops_its_workers() {
    let mut guest = guest();
    guest.start(VERSION_1, 8);
    let device = Arc::downgrade(&guest.device);
    drop(guest);
    assert!(device.upgrade().is_none(), "nothing keeps the device alive");
}

#[test]
fn a_vcpu_that_starts_threads_is_prepared_for_it() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = seen.clone();
    let threads = ThreadHook::default()
        .with_starting(move |starting| record.lock().unwrap().push((thread::current().id(), starting)));
    let memory = guest().memory;
    let mut guest = Guest::with_threads(Box::new(Rng), memory, threads);
    assert_eq!(*seen.lock().unwrap(), [], "it has no threads yet");
    guest.start(VERSION_1, 4);
    let this = thread::current().id();
    assert_eq!(*seen.lock().unwrap(), [(this, Starting::Before), (this, Starting::After)]);
}

#[test]
fn without_kernel_doorbells_notifications_still_arrive() {
    let memory = guest().memory;
    let doorbells = Arc::new(FakeDoorbells { refuse: true, ..Default::default() });
    let router = Arc::new(FakeRouter::default());
    let host = DeviceContext { memory, router, doorbells, threads: ThreadHook::default() };
    let device = PciDevice::new(Box::new(Rng), host).unwrap();
    let (bus, ports) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
    let root = Root::new((&bus, &ports), &[], Arc::new(FakePins::default())).unwrap();
    root.add(device.clone()).unwrap();
    device.write_config(4, &[2, 0]);
    assert!(bus.write(root.window64().start() + 0x3000, &[0, 0]));
    assert_eq!(device.kicks[0].read().unwrap(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is written to the BAR and to configuration space, nothing panics and a reset brings the device back.
    #[test]
    fn wild_accesses_are_survived(
        accesses in prop::collection::vec(
            (any::<bool>(), prop_oneof![0_u64..0x40, 0_u64..0x9000], prop::collection::vec(any::<u8>(), 1..9)),
            1..150),
    ) {
        let mut guest = guest();
        guest.start(VERSION_1, 8);
        for (config, at, mut data) in accesses {
            if config {
                guest.write_config(at & 0xff, &data);
                guest.read_config32(at & 0xfc);
            } else {
                guest.write(at, &data);
                guest.mmio.read(guest.bar + at, &mut data);
            }
        }
        guest.write_config(0x10, &guest.bar.to_le_bytes());
        guest.write_config(4, &[6, 0]);
        guest.start(VERSION_1, 8);
    }
}

/// A device whose worker does not survive a request.
struct Panics;

impl Device for Panics {
    fn info(&self) -> DeviceInfo {
        Rng.info()
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![self]
    }
}

impl Lane for Panics {
    fn process_queue(&mut self, _: usize, queues: &mut Queues) -> Result<(), RingError> {
        match queues.get(0)?.pop()? {
            Some(_) => panic!("as a test has it"),
            None => Ok(()),
        }
    }
}

#[test]
fn a_worker_that_panics_makes_the_device_ask_for_reset_and_holds_nobody_up() {
    let mut guest = Guest::new(Box::new(Panics));
    guest.start(VERSION_1, 4);
    guest.add(0, &[(BUFFERS, 16, true)]);
    guest.kick(0);
    guest.wait_for_plea();
    assert!(guest.device.pause(), "nothing runs");
    guest.device.resume();
    guest.device.stop();
}

/// Two lanes, of which the second does not survive a request.
struct Two;

impl Device for Two {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { queues: vec![4; 3], ..Rng.info() }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        vec![Box::new(Second), Box::new(Rng)]
    }
}

struct Second;

impl Lane for Second {
    fn serves(&self, queue: usize, _features: u64) -> bool {
        queue == 1
    }

    fn process_queue(&mut self, _: usize, queues: &mut Queues) -> Result<(), RingError> {
        assert!(queues.get(0).is_err(), "a queue of the other lane");
        match queues.get(1)?.pop()? {
            Some(_) => panic!("as a test has it"),
            None => Ok(()),
        }
    }
}

#[test]
fn lanes_serve_their_own_queues_and_end_together() {
    let mut guest = Guest::new(Box::new(Two));
    for _ in 0..3 {
        guest.start(VERSION_1, 4);
        for queue in [0, 2] {
            guest.add(queue, &[(BUFFERS, 16, true)]);
            guest.kick(queue);
            assert_eq!(guest.wait(queue, 1), [(0, 16)]);
        }
        assert!(guest.device.pause());
        guest.add(0, &[(BUFFERS, 16, true)]);
        guest.kick(0);
        assert_eq!(guest.answers(0), []);
        guest.device.resume();
        guest.wait(0, 1);
    }
    guest.add(1, &[(BUFFERS, 16, true)]);
    guest.kick(1);
    guest.wait_for_plea();
    guest.add(2, &[(BUFFERS, 16, true)]);
    guest.kick(2);
    guest.wait(2, 1);
    assert!(guest.device.pause(), "one is over, the other is paused");
    guest.device.resume();
    // The lane is lost: the device is there, and does not start.
    guest.negotiate(VERSION_1, 4);
    guest.write(0x14, &[0xf]);
    assert_eq!(guest.status(), 0x4f);
}
