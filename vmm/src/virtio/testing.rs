//! A driver for tests: finds a device on a bus, as a guest would, and puts chains into its queues.
#![expect(clippy::cast_possible_truncation, reason = "a test's own small numbers")]

use std::io;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use super::{Device, DeviceContext, GuestMemory, PciDevice};
use crate::bus::Bus;
use crate::config::ThreadHook;
use crate::irq::Doorbells;
use crate::layout::ECAM_START;
use crate::memory::RamRange;
use crate::pci::tests::{FakePins, FakeRouter};
use crate::pci::{Function as _, Root};
use crate::state::AnySection as _;

pub(super) const VERSION_1: u64 = 1 << 32;
pub(super) const EVENT_IDX: u64 = 1 << 29;
pub(super) const MEMORY: u64 = 16 << 20;
/// Buffers of tests go from here.
pub(super) const BUFFERS: u64 = 1 << 20;
const CONFIG: u64 = ECAM_START + (1 << 15);
/// Vectors are the queue index on this data; configuration changes are the last.
pub(super) const VECTOR_DATA: u32 = 0x40;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// Answers writes as the kernel would, and can fail.
#[derive(Default)]
pub(crate) struct FakeDoorbells {
    pub(super) bound: Mutex<Vec<(i32, u64)>>,
    pub(super) refuse: bool,
}

impl FakeDoorbells {
    pub(super) fn bound(&self) -> Vec<u64> {
        self.bound.lock().unwrap().iter().map(|bound| bound.1).collect()
    }
}

impl Doorbells for FakeDoorbells {
    fn register(&self, fd: &EventFd, address: u64) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        if self.refuse {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.bound.lock().unwrap().push((fd.as_raw_fd(), address));
        Ok(())
    }
    fn unregister(&self, fd: &EventFd, address: u64) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        let mut bound = self.bound.lock().unwrap();
        let at = bound.iter().position(|bound| *bound == (fd.as_raw_fd(), address));
        bound.remove(at.expect("only what was bound is unbound"));
        Ok(())
    }
}

pub(super) struct Guest {
    pub(super) memory: GuestMemory,
    pub(super) mmio: Arc<Bus>,
    pub(super) root: Root,
    pub(super) router: FakeRouter,
    pub(super) pins: FakePins,
    pub(super) doorbells: Arc<FakeDoorbells>,
    pub(super) device: Arc<PciDevice>,
    pub(super) bar: u64,
    rings: Vec<Ring>,
}

#[derive(Clone, Copy)]
pub(super) struct Ring {
    pub(super) size: u16,
    pub(super) descriptors: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    next_descriptor: u16,
    next_available: u16,
    seen: u16,
}

impl Guest {
    /// A VM with only `device`, its BAR decoding and MSI-X on.
    pub(super) fn new(device: Box<dyn Device>) -> Self {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), MEMORY as usize)]).unwrap();
        Self::in_memory(device, memory)
    }

    pub(super) fn in_memory(device: Box<dyn Device>, memory: GuestMemory) -> Self {
        Self::with_threads(device, memory, ThreadHook::default())
    }

    pub(super) fn with_threads(device: Box<dyn Device>, memory: GuestMemory, threads: ThreadHook) -> Self {
        let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
        let pins = FakePins::default();
        let root =
            Root::new((&mmio, &pio), &[RamRange { start: 0, len: MEMORY }], Arc::new(pins.clone())).unwrap();
        let router = FakeRouter::default();
        let doorbells = Arc::new(FakeDoorbells::default());
        let host = DeviceContext {
            memory: memory.clone(),
            router: Arc::new(router.clone()),
            doorbells: doorbells.clone(),
            threads,
        };
        let device = PciDevice::new(device, host).unwrap();
        root.add(device.clone()).unwrap();
        mmio.write(CONFIG + 4, &[6, 0]);
        let bar = root.window64().start();
        let guest = Self { memory, mmio, root, router, pins, doorbells, device, bar, rings: Vec::new() };
        guest.write_config(guest.msix() + 3, &[0x80]);
        for vector in 0..8 {
            guest.write(0x4000 + vector * 16, &0xfee0_0000_u64.to_le_bytes());
            guest.write(0x4008 + vector * 16, &(u64::from(VECTOR_DATA) + vector).to_le_bytes());
        }
        guest
    }

    /// The same driver and RAM with another device, which has the state of the one before.
    pub(super) fn loaded_into(self, device: Box<dyn Device>) -> Self {
        assert!(self.device.pause());
        let state = self.device.encode().unwrap();
        let next = Self { rings: self.rings.clone(), ..Self::in_memory(device, self.memory.clone()) };
        drop(self);
        next.device.decode(&state).unwrap();
        assert!(next.device.pause());
        assert_eq!(next.device.encode().unwrap(), state);
        next.device.after_load();
        next.device.resume();
        next
    }

    pub(super) fn msix(&self) -> u64 {
        let mut at = u64::from(self.read_config8(0x34));
        while self.read_config8(at) != 0x11 {
            at = u64::from(self.read_config8(at + 1));
            assert_ne!(at, 0, "there is an MSI-X capability");
        }
        at
    }

    pub(super) fn read_config8(&self, at: u64) -> u8 {
        let mut data = [0];
        self.mmio.read(CONFIG + at, &mut data);
        data[0]
    }

    pub(super) fn read_config32(&self, at: u64) -> u32 {
        let mut data = [0; 4];
        self.mmio.read(CONFIG + at, &mut data);
        u32::from_le_bytes(data)
    }

    pub(super) fn write_config(&self, at: u64, data: &[u8]) {
        self.mmio.write(CONFIG + at, data);
    }

    pub(super) fn write(&self, at: u64, data: &[u8]) {
        self.mmio.write(self.bar + at, data);
    }

    pub(super) fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut data = [0; N];
        self.mmio.read(self.bar + at, &mut data);
        data
    }

    pub(super) fn status(&self) -> u8 {
        self.read::<1>(0x14)[0]
    }

    pub(super) fn offered(&self) -> u64 {
        self.write(0, &0_u32.to_le_bytes());
        let low = u32::from_le_bytes(self.read(4));
        self.write(0, &1_u32.to_le_bytes());
        let high = u32::from_le_bytes(self.read(4));
        u64::from(high) << 32 | u64::from(low)
    }

    pub(super) fn accept(&self, features: u64) {
        for select in 0..2_u32 {
            self.write(8, &select.to_le_bytes());
            self.write(12, &((features >> (32 * select)) as u32).to_le_bytes());
        }
    }

    /// Steps 1 to 7 of section 3.1.1.
    pub(super) fn negotiate(&mut self, features: u64, size: u16) {
        self.reset();
        self.write(0x14, &[1]);
        self.write(0x14, &[3]);
        self.accept(features);
        self.write(0x14, &[0xb]);
        assert_eq!(self.status(), 0xb, "features were not accepted");
        let count = u16::from_le_bytes(self.read(0x12));
        self.write(0x10, &count.to_le_bytes());
        self.rings.clear();
        for index in 0..count {
            let base = 0x1_0000 * (u64::from(index) + 1);
            let ring = Ring {
                size,
                descriptors: base,
                available: base + 0x8000,
                used: base + 0xc000,
                next_descriptor: 0,
                next_available: 0,
                seen: 0,
            };
            self.memory.write_slice(&[0; 0x1_0000], GuestAddress(base)).unwrap();
            self.write(0x16, &index.to_le_bytes());
            self.write(0x18, &size.to_le_bytes());
            self.write(0x1a, &index.to_le_bytes());
            self.write(0x20, &ring.descriptors.to_le_bytes());
            self.write(0x28, &ring.available.to_le_bytes());
            self.write(0x30, &ring.used.to_le_bytes());
            self.write(0x1c, &1_u16.to_le_bytes());
            self.rings.push(ring);
        }
    }

    pub(super) fn start(&mut self, features: u64, size: u16) {
        self.negotiate(features, size);
        self.write(0x14, &[0xf]);
        assert_eq!(self.status(), 0xf, "the device did not start");
    }

    /// Waits as drivers do: until status reads as zero.
    pub(super) fn reset(&self) {
        self.write(0x14, &[0]);
        let begin = Instant::now();
        while self.status() != 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "reset does not complete");
            std::thread::yield_now();
        }
    }

    pub(super) fn ring(&self, queue: usize) -> Ring {
        self.rings[queue]
    }

    pub(super) fn put_descriptor(
        &self,
        queue: usize,
        index: u16,
        (at, len, flags, next): (u64, u32, u16, u16),
    ) {
        let mut bytes = at.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        let address = GuestAddress(self.rings[queue].descriptors + 16 * u64::from(index));
        self.memory.write_slice(&bytes, address).unwrap();
    }

    /// Descriptors of [`random_descriptors`].
    pub(super) fn put_descriptors(&self, descriptors: Vec<(u64, u32, u16, u16)>) {
        for (index, descriptor) in (0..).zip(descriptors) {
            self.put_descriptor(index / 16, (index % 16) as u16, descriptor);
        }
    }

    /// Makes chains of the first two queues available, and waits until those of the second are answered.
    pub(super) fn serve_heads(&mut self, heads: Vec<(usize, u16)>) {
        let answered = heads.iter().filter(|(queue, _)| *queue == 1).count();
        for (queue, head) in heads {
            self.put_available(queue, head);
        }
        self.kick(0);
        self.kick(1);
        self.wait(1, answered);
    }

    pub(super) fn put_available(&mut self, queue: usize, head: u16) {
        let ring = &mut self.rings[queue];
        let slot = u64::from(ring.next_available % ring.size);
        self.memory.write_obj(head, GuestAddress(ring.available + 4 + 2 * slot)).unwrap();
        ring.next_available = ring.next_available.wrapping_add(1);
        self.memory.store(ring.next_available, GuestAddress(ring.available + 2), Ordering::SeqCst).unwrap();
    }

    /// Makes a chain of buffers available: address, length, whether the device writes it.
    pub(super) fn add(&mut self, queue: usize, buffers: &[(u64, u32, bool)]) -> u16 {
        let size = self.rings[queue].size;
        let head = self.rings[queue].next_descriptor % size;
        for (at, &(address, len, write)) in buffers.iter().enumerate() {
            let index = self.rings[queue].next_descriptor % size;
            let next = (index + 1) % size;
            let more = if at + 1 < buffers.len() { NEXT } else { 0 };
            let flags = more | if write { WRITE } else { 0 };
            self.put_descriptor(queue, index, (address, len, flags, next));
            self.rings[queue].next_descriptor = self.rings[queue].next_descriptor.wrapping_add(1);
        }
        self.put_available(queue, head);
        head
    }

    pub(super) fn kick(&self, queue: usize) {
        self.write(0x3000 + 4 * queue as u64, &(queue as u16).to_le_bytes());
    }

    /// What was answered since the last call: head and written length. The next answer interrupts.
    pub(super) fn answers(&mut self, queue: usize) -> Vec<(u32, u32)> {
        let ring = &mut self.rings[queue];
        let index = || self.memory.load::<u16>(GuestAddress(ring.used + 2), Ordering::SeqCst).unwrap();
        let mut all = Vec::new();
        let mut seen = ring.seen;
        while seen != index() {
            let at = GuestAddress(ring.used + 4 + 8 * u64::from(seen % ring.size));
            let element: u64 = self.memory.read_obj(at).unwrap();
            all.push((element as u32, (element >> 32) as u32));
            seen = seen.wrapping_add(1);
            let event = GuestAddress(ring.available + 4 + 2 * u64::from(ring.size));
            self.memory.store(seen, event, Ordering::SeqCst).unwrap();
            fence(Ordering::SeqCst);
        }
        ring.seen = seen;
        all
    }

    /// Waits for `count` answers, interrupted for each batch.
    pub(super) fn wait(&mut self, queue: usize, count: usize) -> Vec<(u32, u32)> {
        let mut all = self.answers(queue);
        while all.len() < count {
            self.router.take(VECTOR_DATA + queue as u32);
            all.extend(self.answers(queue));
        }
        assert_eq!(all.len(), count, "{all:?}");
        all
    }

    /// Waits until the device needs a reset.
    pub(super) fn wait_for_plea(&self) {
        self.router.take(VECTOR_DATA + self.rings.len() as u32);
        assert_eq!(self.status() & 0x40, 0x40);
    }
}

/// All descriptors of two queues of 16: in RAM or anywhere, with any flags, most of which lead to another one.
pub(super) fn random_descriptors() -> impl Strategy<Value = Vec<(u64, u32, u16, u16)>> {
    let address = prop_oneof![BUFFERS..BUFFERS + 0x2000, any::<u64>()];
    let length = prop_oneof![0_u32..64, 1500_u32..1600, any::<u32>()];
    prop::collection::vec((address, length, 0_u16..8, 0_u16..20), 32)
}

/// Queues of these, and where chains begin in them.
pub(super) fn random_heads() -> impl Strategy<Value = Vec<(usize, u16)>> {
    prop::collection::vec((0_usize..2, 0_u16..16), 1..16)
}
