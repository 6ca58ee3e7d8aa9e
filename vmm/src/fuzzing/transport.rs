//! Virtio devices as a hostile driver sees them: registers, configuration space, rings and buffers in guest memory, and
//! their workers on threads of their own.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use vireo_vmconfig::{DiskDevice, MacAddr};
use vm_memory::{Bytes, GuestAddress};

use super::drives::disk;
use super::fakes::{Bells, Lines, Router};
use super::script::Script;
use crate::bus::Bus;
use crate::config::{Balloon, Link, Net, Opened, Port, ThreadHook};
use crate::display::{Key, Keyboard, Pointer, Pointing, Source};
use crate::layout::ECAM_START;
use crate::memory::{GuestMemory, RamRange};
use crate::pci::{Function as _, Root};
use crate::state::AnySection as _;
use crate::virtio::console::ConsoleInput;
use crate::virtio::{
    Device, DeviceContext, PciDevice, balloon, block, console, gpu, input, net, port, rng, scsi,
};

/// How many kinds of device there are, and which of them is the balloon.
pub(super) const DEVICES: u8 = 10;
const BALLOON: u8 = 8;
/// What a reset may take, on a computer where others run too.
const RESET: Duration = Duration::from_secs(15);
/// Bytes of RAM.
const RAM: usize = 256 << 10;
/// Where a ring is, by the index of its queue.
const RING_SIZE: u64 = 0x400;
const AVAILABLE: u64 = 0x200;
const USED: u64 = 0x300;
/// Where requests of [`Driver::request`] are, and where buffers begin.
const HEADER: u64 = 0x4000;
const BUFFERS: u64 = 0x5000;
/// The function is in the first free slot.
const CONFIG: u64 = ECAM_START + (1 << 15);
const MSIX_CONTROL: u16 = 2;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// The other side of a device.
enum Outside {
    Nothing,
    Console(ConsoleInput),
    Port(UnixStream),
    Net { wires: Vec<OwnedFd>, link: Arc<Link> },
    Keyboard(Arc<dyn Keyboard>),
    Pointer(Arc<dyn Pointer>),
    Display(Arc<dyn Source>),
    Balloon(Balloon),
}

impl Outside {
    /// Something happens there.
    fn happen(&self, bytes: &[u8]) {
        match self {
            Self::Nothing => {}
            Self::Console(input) => {
                input.push(bytes);
            }
            Self::Port(line) => {
                let mut line = line;
                // It may be full, or empty.
                let _ = line.write(bytes);
                let _ = line.read(&mut [0; 4096]);
            }
            Self::Net { wires, link } => match bytes {
                [0, ..] => link.set_up(!link.is_up()),
                [1, ..] => link.announce(),
                _ => {
                    for wire in wires {
                        let _ = rustix::net::send(wire, bytes, SendFlags::empty());
                        let _ = rustix::net::recv(wire, &mut [0; 4096][..], RecvFlags::empty());
                    }
                }
            },
            Self::Keyboard(keyboard) => {
                for byte in bytes {
                    Key::from_xt(u32::from(byte & 0x7f))
                        .into_iter()
                        .for_each(|key| keyboard.key(key, byte & 0x80 == 0));
                }
            }
            Self::Pointer(pointer) => {
                if let [x, y, buttons, ..] = *bytes {
                    let (x, y) = (x.into(), y.into());
                    pointer.point(Pointing { x, y, width: 200, height: 100, buttons });
                }
            }
            Self::Balloon(handle) => {
                handle.request();
                let _ = handle.reported();
            }
            Self::Display(source) => source.refresh(&mut crate::display::Canvas::default(), true),
        }
    }
}

fn network() -> (Box<dyn Device>, Outside) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pair =
        || rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).expect("sockets");
    let (wires, taps): (Vec<_>, Vec<_>) = [pair(), pair()].into_iter().unzip();
    let mac: MacAddr = "52:54:00:00:00:01".parse().expect("an address");
    let tap = taps.first().expect("one of two").try_clone().expect("a descriptor");
    let net = Net::new(tap, mac).mtu(Some(1400));
    let link = net.link().clone();
    (Box::new(net::NetDevice::on(taps, &net)), Outside::Net { wires, link })
}

/// One of [`DEVICES`] kinds, with what is outside of it.
fn device(kind: u8) -> (Box<dyn Device>, Outside) {
    match kind {
        0 => (Box::new(block::Block::new(&disk()).expect("an image")), Outside::Nothing),
        1 => network(),
        2 => {
            let (console, input) = console::Console::new(Box::new(|_: &[u8]| {})).expect("an eventfd");
            (Box::new(console), Outside::Console(input))
        }
        3 => {
            let (first, second) = (disk(), disk());
            let drives = [(&first, DiskDevice::Disk), (&second, DiskDevice::CdRom)];
            let Ok(scsi) = scsi::Scsi::new(&drives) else { panic!("an image is rejected") };
            (Box::new(scsi), Outside::Nothing)
        }
        4 => {
            let (theirs, line) = UnixStream::pair().expect("sockets");
            theirs.set_nonblocking(true).expect("a socket");
            let wanted = Port::new("fuzz", line, Opened::new(|_| {}));
            (Box::new(port::Port::new(&wanted).expect("a port")), Outside::Port(theirs))
        }
        5 => {
            let (gpu, source) = gpu::Gpu::new(None).expect("an eventfd");
            (Box::new(gpu), Outside::Display(source))
        }
        6 => {
            let (keyboard, outside) = input::Input::keyboard().expect("an eventfd");
            (Box::new(keyboard), Outside::Keyboard(outside))
        }
        7 => {
            let (tablet, outside) = input::Input::tablet().expect("an eventfd");
            (Box::new(tablet), Outside::Pointer(outside))
        }
        BALLOON => {
            let handle = Balloon::default();
            let balloon = balloon::BalloonDevice::new(&handle).expect("an eventfd");
            (Box::new(balloon), Outside::Balloon(handle))
        }
        _ => (Box::new(rng::Rng), Outside::Nothing),
    }
}

pub(super) struct Driver {
    memory: GuestMemory,
    mmio: Arc<Bus>,
    device: Arc<PciDevice>,
    outside: Outside,
    bar: u64,
    msix: u16,
    /// Descriptors and available entries that were used, by queue.
    next: [(u16, u16); 8],
    size: u16,
    root: Root,
}

impl Driver {
    /// A driver that may access its device.
    fn new(kind: u8) -> Self {
        let driver = Self::of_new_vm(kind);
        driver.write_config(4, &[6, 0]);
        driver
    }

    /// With a device of a VM that nothing has run in.
    fn of_new_vm(kind: u8) -> Self {
        let (device, outside) = device(kind);
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), RAM)]).expect("address space");
        let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
        let ram = [RamRange { start: 0, len: RAM as u64 }];
        let root = Root::new((&mmio, &pio), &ram, Arc::new(Lines)).expect("a bus");
        let host = DeviceContext {
            memory: memory.clone(),
            router: Arc::new(Router),
            doorbells: Arc::new(Bells::default()),
            threads: ThreadHook::default(),
        };
        let device = PciDevice::new(device, host).expect("eventfds");
        root.add(device.clone()).expect("a slot");
        let bar = root.window64().start();
        let mut driver =
            Self { memory, mmio, device, outside, bar, msix: 0, next: [(0, 0); 8], size: 1, root };
        driver.msix = driver.capability(0x11);
        driver
    }

    fn capability(&self, id: u8) -> u16 {
        let read = |at: u16| {
            let mut data = [0];
            self.mmio.read(CONFIG + u64::from(at), &mut data);
            u16::from(data[0])
        };
        let mut at = read(0x34);
        for _ in 0..48 {
            if at == 0 || read(at) == u16::from(id) {
                break;
            }
            at = read(at + 1);
        }
        at
    }

    fn write_config(&self, at: u16, data: &[u8]) {
        self.mmio.write(CONFIG + u64::from(at % 4096), data);
    }

    fn write(&self, at: u64, data: &[u8]) {
        self.mmio.write(self.bar + at, data);
    }

    fn read16(&self, at: u64) -> u16 {
        let mut data = [0; 2];
        self.mmio.read(self.bar + at, &mut data);
        u16::from_le_bytes(data)
    }

    /// What is outside of RAM is not written.
    fn put(&self, at: u64, bytes: &[u8]) {
        let _ = self.memory.write_slice(bytes, GuestAddress(at));
    }

    /// Waits for the workers: they finish what they were asked for, or the device hangs.
    fn settle(&self) {
        assert!(self.device.pause(), "the device does not come to rest");
        self.device.resume();
    }

    fn reset(&self) {
        self.write(0x14, &[0]);
        let end = Instant::now() + RESET;
        while Instant::now() < end {
            let mut status = [0];
            self.mmio.read(self.bar + 0x14, &mut status);
            // Ones where the BAR is somewhere else.
            if matches!(status, [0 | 0xff]) {
                return;
            }
            std::thread::yield_now();
        }
        panic!("the reset does not complete");
    }

    /// The handshake of a driver that takes the features of a mask, with rings of `size`.
    fn begin(&mut self, features: u64, size: u16) {
        self.write_config(4, &[6, 0]);
        self.write_config(self.msix + MSIX_CONTROL, &[0, 0x80]);
        self.reset();
        self.write(0x14, &[1]);
        self.write(0x14, &[3]);
        for half in 0..2_u32 {
            self.write(0, &half.to_le_bytes());
            let mut offered = [0; 4];
            self.mmio.read(self.bar + 4, &mut offered);
            let [low, high] = [features, features >> 32].map(|part| part & 0xffff_ffff);
            // VERSION_1 always.
            let wanted = if half == 0 { low } else { high | 1 };
            let accepted = u64::from(u32::from_le_bytes(offered)) & wanted;
            self.write(8, &half.to_le_bytes());
            self.write(12, &accepted.to_le_bytes()[..4]);
        }
        self.write(0x14, &[0xb]);
        (self.size, self.next) = (size, [(0, 0); 8]);
        for index in 0..self.read16(0x12).min(8) {
            let base = RING_SIZE * u64::from(index);
            self.put(base, &[0; 0x400]);
            self.write(0x16, &index.to_le_bytes());
            self.write(0x18, &size.to_le_bytes());
            self.write(0x1a, &index.to_le_bytes());
            self.write(0x20, &base.to_le_bytes());
            self.write(0x28, &(base + AVAILABLE).to_le_bytes());
            self.write(0x30, &(base + USED).to_le_bytes());
            self.write(0x1c, &1_u16.to_le_bytes());
        }
        self.write(0x14, &[0xf]);
    }

    fn kick(&self, queue: u8) {
        self.write(0x3000 + 4 * u64::from(queue), &u16::from(queue).to_le_bytes());
    }

    /// Makes a chain available. Its descriptors are as they come.
    fn chain(&mut self, queue: u8, buffers: &[(u64, u32, u16)]) {
        let queue = queue % 8;
        let base = RING_SIZE * u64::from(queue);
        let (mut descriptor, available) = self.next[usize::from(queue)];
        let head = descriptor % self.size;
        for (at, &(address, len, flags)) in buffers.iter().enumerate() {
            let index = descriptor % self.size;
            let more = if at + 1 < buffers.len() { NEXT } else { 0 };
            let mut bytes = address.to_le_bytes().to_vec();
            bytes.extend(len.to_le_bytes());
            bytes.extend((flags ^ more).to_le_bytes());
            bytes.extend(((index + 1) % self.size).to_le_bytes());
            self.put(base + 16 * u64::from(index), &bytes);
            descriptor = descriptor.wrapping_add(1);
        }
        self.put(base + AVAILABLE + 4 + 2 * u64::from(available % self.size), &head.to_le_bytes());
        let available = available.wrapping_add(1);
        let index = GuestAddress(base + AVAILABLE + 2);
        self.memory.store(available, index, Ordering::SeqCst).expect("the ring is in RAM");
        self.next[usize::from(queue)] = (descriptor, available);
    }

    /// One access or event of a script.
    fn step(&mut self, script: &mut Script<'_>) -> Option<()> {
        let kind = script.byte()?;
        let width = 1 << (kind >> 4 & 3);
        match kind & 0xf {
            0 => {
                let at = u64::from(script.u16()?);
                self.write(at % 0x8000, script.up_to(width));
            }
            1 => {
                let at = u64::from(script.u16()?);
                self.mmio.read(self.bar + at % 0x8000, &mut [0; 8][..width]);
            }
            2 => {
                let at = script.u16()?;
                self.write_config(at, script.up_to(width.min(4)));
            }
            3 => {
                let at = u64::from(script.u16()? % 4096);
                self.mmio.read(CONFIG + at, &mut [0; 8][..width.min(4)]);
            }
            4 => {
                let at = 4 * u64::from(script.u16()?);
                let len = usize::from(script.byte()?);
                self.put(at, script.up_to(len));
            }
            5 => self.kick(script.byte()?),
            6 => {
                let features = script.u64()?;
                self.begin(features, 1 << (kind >> 4 & 7).min(4));
            }
            7 => {
                let queue = script.byte()?;
                let mut buffers = Vec::new();
                for _ in 0..=kind >> 4 & 7 {
                    let (at, len, flags) = (script.u16()?, script.u16()?, u16::from(script.byte()?));
                    let wild = if flags & 0x80 != 0 { u64::MAX << 20 } else { 0 };
                    let long = if flags & 0x40 != 0 { 0xffff_0000 } else { 0 };
                    let at = BUFFERS + u64::from(at);
                    buffers.push((at | wild, u32::from(len) | long, flags & (NEXT | WRITE | INDIRECT)));
                }
                self.chain(queue, &buffers);
            }
            8 => self.settle(),
            9 => {
                let len = usize::from(script.byte()?);
                self.outside.happen(script.up_to(len));
            }
            10 => self.write_config(4, &[script.byte()?]),
            11 => self.reset(),
            _ => self.request(script, kind)?,
        }
        Some(())
    }

    /// A request as a driver makes it: a header, data in either direction, and a status; then a kick.
    fn request(&mut self, script: &mut Script<'_>, kind: u8) -> Option<()> {
        let (queue, len) = (script.byte()?, script.byte()?);
        let (to_device, from_device) = (script.u16()?, script.u16()?);
        self.put(HEADER, script.up_to(usize::from(len)));
        let status = if kind & 0x10 == 0 { 1 } else { 108 };
        let mut buffers = vec![(HEADER, u32::from(len), 0)];
        if to_device > 0 {
            buffers.push((BUFFERS, u32::from(to_device), 0));
        }
        // A SCSI answer comes before its data, the status of a disk behind.
        let answer = (HEADER + 0x800, status, WRITE);
        if kind & 0x10 != 0 {
            buffers.push(answer);
        }
        if from_device > 0 {
            buffers.push((BUFFERS + 0x1_0000, u32::from(from_device), WRITE));
        }
        if kind & 0x10 == 0 {
            buffers.push(answer);
        }
        self.chain(queue, &buffers);
        self.kick(queue);
        if kind & 0x20 != 0 {
            self.settle();
        }
        Some(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.settle();
        }
        self.device.stop();
        // What KVM's doorbells would be unregistered by.
        self.write_config(4, &[0, 0]);
    }
}

fn run(kind: u8, script: &[u8]) {
    let mut driver = Driver::new(kind);
    let mut script = Script::new(script);
    while driver.step(&mut script).is_some() {}
}

/// A script against a disk.
pub fn virtio_block(script: &[u8]) {
    run(0, script);
}

/// A script against a NIC with two queue pairs, and frames from outside.
pub fn virtio_net(script: &[u8]) {
    run(1, script);
}

/// A script against a console, and input from outside.
pub fn virtio_console(script: &[u8]) {
    run(2, script);
}

/// A script against a balloon, whose statistics are asked for from outside.
pub fn virtio_balloon(script: &[u8]) {
    run(BALLOON, script);
}

/// The state of a device that a driver uses, as it is saved.
pub(super) fn saved(kind: u8) -> Vec<u8> {
    let mut driver = Driver::new(kind);
    driver.begin(u64::MAX, 16);
    assert!(driver.device.pause(), "the device does not come to rest");
    let state = driver.device.encode().expect("a state");
    driver.device.resume();
    state
}

/// Loads what may be the state of a device; where it is one, the device goes on, with a script.
pub(super) fn load(kind: u8, state: &[u8], script: &[u8]) {
    let mut driver = Driver::of_new_vm(kind);
    driver.device.pause();
    if driver.device.decode(state).is_err() {
        return;
    }
    driver.root.follow_loaded();
    driver.device.after_load();
    driver.device.resume();
    let mut script = Script::new(script);
    while driver.step(&mut script).is_some() {}
}

/// A script against the device that its first byte names, of all the others.
pub fn virtio_transport(script: &[u8]) {
    let Some((kind, script)) = script.split_first() else { return };
    run(3 + kind % 7, script);
}
