use std::io::Write;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::bus::Bus;
use crate::config::{DiskImage, DiskSerial, ThreadHook};
use crate::memory::RamRange;
use crate::pci::Root;
use crate::pci::tests::{FakePins, FakeRouter};
use crate::state::AnySection as _;

const MEMORY: u64 = 4 << 20;
const LIST: u64 = 0x1_0000;
const RECEIVED: u64 = 0x1_1000;
const TABLE: u64 = 0x1_2000;
const DATA: u64 = 0x10_0000;
const SECTORS: u64 = 2048;
const CONFIG: u64 = crate::layout::ECAM_START + (31 << 15) + (2 << 12);

/// A driver of the controller: a disk at port 0, a CD-ROM at port 1.
struct Driver {
    memory: GuestMemory,
    mmio: Arc<Bus>,
    pins: FakePins,
    bar: u64,
    root: Root,
    controller: Arc<Controller>,
}

fn content() -> Vec<u8> {
    (0_u32..).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).take(2048 * 512).collect()
}

fn driver() -> Driver {
    let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
    let driver = machine(memory);
    driver.write(4, 2);
    for port in 0..2 {
        driver.start(port);
    }
    driver
}

/// As after power-on, with the function enabled.
fn machine(memory: GuestMemory) -> Driver {
    let disk = || {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&content()).unwrap();
        Disk::new(DiskImage::Raw(file)).serial(DiskSerial::new("S3R1AL").unwrap())
    };
    let (mmio, pio, pins) = (Arc::new(Bus::default()), Arc::new(Bus::default()), FakePins::default());
    let root =
        Root::new((&mmio, &pio), &[RamRange { start: 0, len: MEMORY }], Arc::new(pins.clone())).unwrap();
    let drives = [(&disk(), DiskDevice::Disk), (&disk(), DiskDevice::CdRom)];
    let controller =
        Controller::new(&drives, &memory, &FakeRouter::default(), &ThreadHook::default()).unwrap();
    root.add_at(ADDRESS, controller.clone()).unwrap();
    mmio.write(CONFIG + 4, &[6, 0]);
    let mut bar = [0; 4];
    mmio.read(CONFIG + 0x24, &mut bar);
    Driver { memory, mmio, pins, bar: u32::from_le_bytes(bar).into(), root, controller }
}

impl Driver {
    fn read(&self, at: u64) -> u32 {
        let mut data = [0; 4];
        self.mmio.read(self.bar + at, &mut data);
        u32::from_le_bytes(data)
    }

    fn write(&self, at: u64, value: u32) {
        self.mmio.write(self.bar + at, &value.to_le_bytes());
    }

    fn port(&self, port: u64, register: u64) -> u32 {
        self.read(0x100 + 0x80 * port + register)
    }

    fn set(&self, port: u64, register: u64, value: u32) {
        self.write(0x100 + 0x80 * port + register, value);
    }

    fn start(&self, port: u64) {
        self.set(port, 0x00, u32::try_from(LIST).unwrap());
        self.set(port, 0x08, u32::try_from(RECEIVED).unwrap());
        self.set(port, 0x30, u32::MAX);
        self.set(port, 0x10, u32::MAX);
        self.set(port, 0x14, u32::MAX);
        self.set(port, 0x18, 0x11);
    }

    /// After an error: stop, wait until the port runs no more, start (section 6.2.2).
    fn recover(&self, port: u64) {
        self.set(port, 0x18, 0x10);
        while self.port(port, 0x18) & 0x8000 != 0 {
            std::thread::yield_now();
        }
        self.start(port);
    }

    fn fis(command: u8, features: u16, lba: u64, count: u16, device: u8) -> [u8; 20] {
        let [a, b, c, d, e, f, ..] = lba.to_le_bytes();
        let ([low, high], [first, second]) = (count.to_le_bytes(), features.to_le_bytes());
        [0x27, 0x80, command, first, a, b, c, device, d, e, f, second, low, high, 0, 0, 0, 0, 0, 0]
    }

    fn put(&self, slot: u64, fis: &[u8], packet: Option<&[u8]>, regions: &[(u64, u32)]) {
        let table = TABLE + slot * 0x400;
        let flags = 5 | u64::from(packet.is_some()) << 5;
        let header = flags | (regions.len() as u64) << 16;
        self.memory.write_obj(header, GuestAddress(LIST + 32 * slot)).unwrap();
        self.memory.write_obj(table, GuestAddress(LIST + 32 * slot + 8)).unwrap();
        self.memory.write_slice(fis, GuestAddress(table)).unwrap();
        self.memory.write_slice(packet.unwrap_or(&[]), GuestAddress(table + 0x40)).unwrap();
        for (at, (address, len)) in (table + 0x80..).step_by(16).zip(regions) {
            self.memory.write_obj(*address, GuestAddress(at)).unwrap();
            self.memory.write_obj(u64::from(len - 1) << 32, GuestAddress(at + 8)).unwrap();
        }
    }

    /// Waits for the interrupt and acknowledges it; returns the port's interrupt status.
    fn wait(&self, port: u64) -> u32 {
        self.pins.wait(16);
        assert_eq!(self.read(8), 1 << port);
        let status = self.port(port, 0x10);
        self.set(port, 0x10, status);
        self.write(8, 1 << port);
        status
    }

    /// Has slot 0 carried out; returns the port's interrupt status and the command's.
    fn run(&self, port: u64, fis: &[u8], packet: Option<&[u8]>, regions: &[(u64, u32)]) -> (u32, u32) {
        self.put(0, fis, packet, regions);
        self.set(port, 0x38, 1);
        (self.wait(port), self.port(port, 0x20))
    }

    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read_slice(&mut bytes, GuestAddress(at)).unwrap();
        bytes
    }

    fn words(&self) -> Vec<u16> {
        self.bytes(DATA, 512).as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word)).collect()
    }
}

#[test]
fn registers_describe_the_controller() {
    let driver = driver();
    assert_eq!(driver.read(0) & 0x1f, 5, "six ports");
    assert_eq!((driver.read(0x0c), driver.read(0x10)), (0x3f, 0x10301));
    assert_eq!([0, 1, 2].map(|port| driver.port(port, 0x28)), [0x133, 0x133, 0]);
    assert_eq!([0, 1, 2].map(|port| driver.port(port, 0x24)), [0x101, 0xeb14_0101, u32::MAX]);
    driver.run(0, &Driver::fis(0xec, 0, 0, 0, 0), None, &[(DATA, 512)]);
    let words = driver.words();
    assert_eq!((words[0], words[60], words[100], words[76] & 0x100), (0x40, 2048, 2048, 0x100));
    assert_eq!(driver.bytes(DATA + 20, 6), b"3S1RLA", "the serial number, bytes swapped");
    assert_eq!(driver.bytes(DATA, 512).iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0);
    driver.run(1, &Driver::fis(0xa1, 0, 0, 0, 0), None, &[(DATA, 512)]);
    assert_eq!(driver.words()[0], 0x85c0);
}

#[test]
fn data_goes_both_ways_in_every_form() {
    let driver = driver();
    let all = content();
    // READ DMA EXT into scattered regions.
    let regions = [(DATA, 512), (DATA + 0x2000, 1000), (DATA + 0x3000, 24)];
    let done = driver.run(0, &Driver::fis(0x25, 0, 5, 3, 0x40), None, &regions);
    assert_eq!(done, (1, 0x50));
    assert!(driver.bytes(DATA, 512) == all[2560..3072] && driver.bytes(DATA + 0x3000, 24) == all[4072..4096]);
    assert_eq!(driver.memory.read_obj::<u32>(GuestAddress(LIST + 4)).unwrap(), 1536, "transferred");
    // WRITE DMA, then READ SECTORS through PIO.
    driver.memory.write_slice(&[0xaa; 1024], GuestAddress(DATA)).unwrap();
    assert_eq!(driver.run(0, &Driver::fis(0xca, 0, 9, 2, 0x40), None, &[(DATA, 1024)]), (1, 0x50));
    let done = driver.run(0, &Driver::fis(0x20, 0, 10, 1, 0x40), None, &[(DATA + 0x1000, 512)]);
    assert_eq!(done, (2, 0x50), "a PIO setup FIS");
    assert_eq!(driver.bytes(DATA + 0x1000, 512), [0xaa; 512]);
    assert_eq!(driver.bytes(RECEIVED + 0x20, 3)[2] & 8, 8);
    assert_eq!(driver.bytes(RECEIVED + 0x2f, 1), [0x50], "the status after it");
    for flush in [0xe7, 0xea] {
        assert_eq!(driver.run(0, &Driver::fis(flush, 0, 0, 0, 0x40), None, &[]), (1, 0x50));
    }
}

#[test]
fn a_loaded_controller_goes_on_with_what_was_issued() {
    let before = driver();
    // Without write cache, and with a command that failed.
    assert_eq!(before.run(0, &Driver::fis(0xef, 0x82, 0, 0, 0), None, &[]), (1, 0x50));
    assert_eq!(before.run(1, &Driver::fis(0xec, 0, 0, 0, 0), None, &[(DATA, 512)]).1 & 1, 1);
    before.recover(1);
    before.root.pause();
    before.put(3, &Driver::fis(0x25, 0, 5, 1, 0x40), None, &[(DATA, 512)]);
    before.set(0, 0x38, 1 << 3);
    let state = before.controller.encode().unwrap();
    let memory = before.memory.clone();
    drop(before);

    let after = machine(memory.clone());
    after.controller.decode(&state).unwrap();
    after.root.follow_loaded();
    after.controller.after_load();
    after.root.pause();
    assert_eq!(after.controller.encode().unwrap(), state);
    assert_eq!(after.port(0, 0x38), 1 << 3, "nothing is begun while it is paused");
    after.root.resume();
    assert_eq!(after.wait(0), 1);
    assert_eq!((after.port(0, 0x38), after.bytes(DATA, 512)), (0, content()[2560..3072].to_vec()));
    after.run(0, &Driver::fis(0xec, 0, 0, 0, 0), None, &[(DATA, 512)]);
    assert_eq!(after.words()[85] & 0x20, 0, "the write cache is off");

    let mut other = after.controller.encode();
    assert!(other.is_err(), "it runs");
    after.root.pause();
    other = after.controller.encode();
    let mut damaged = other.unwrap();
    let last = damaged.len() - 1;
    damaged.truncate(last);
    assert!(machine(memory).controller.decode(&damaged).is_err());
}

#[test]
fn queued_commands_complete_by_their_tags() {
    let driver = driver();
    for slot in 0..32_u16 {
        let fis = Driver::fis(0x60, 1, u64::from(slot) * 3, slot << 3, 0x40);
        driver.put(slot.into(), &fis, None, &[(DATA + u64::from(slot) * 512, 512)]);
    }
    driver.set(0, 0x34, u32::MAX);
    driver.set(0, 0x38, u32::MAX);
    while driver.port(0, 0x34) != 0 {
        driver.wait(0);
    }
    assert_eq!(driver.port(0, 0x38), 0);
    let all = content();
    for slot in 0..32 {
        assert!(driver.bytes(DATA + slot as u64 * 512, 512) == all[slot * 1536..slot * 1536 + 512], "{slot}");
    }
}

#[test]
fn a_failed_queued_command_stops_the_port_and_is_reported() {
    let driver = driver();
    driver.put(7, &Driver::fis(0x61, 1, SECTORS, 7 << 3, 0x40), None, &[(DATA, 512)]);
    driver.set(0, 0x34, 1 << 7);
    driver.set(0, 0x38, 1 << 7);
    assert_eq!(driver.wait(0) & (1 << 30 | 8), 1 << 30 | 8);
    assert_eq!((driver.port(0, 0x34), driver.port(0, 0x20) & 1), (1 << 7, 1));
    driver.recover(0);
    assert_eq!(driver.port(0, 0x34), 0);
    let (_, status) = driver.run(0, &Driver::fis(0x2f, 0, 0x10, 1, 0x40), None, &[(DATA, 512)]);
    assert_eq!((status, driver.bytes(DATA, 4)), (0x50, vec![7, 0, 0x51, 0x14]));
}

#[test]
fn what_makes_no_sense_fails_alone() {
    let driver = driver();
    let data = &[(DATA, 512)][..];
    for (fis, regions) in [
        (Driver::fis(0x25, 0, SECTORS, 1, 0x40), data),
        (Driver::fis(0x25, 0, SECTORS - 1, 2, 0x40), &[(DATA, 1024)]),
        (Driver::fis(0x25, 0, u64::MAX, 1, 0x40), data),
        (Driver::fis(0x25, 0, 0, 2, 0x40), data),
        (Driver::fis(0x25, 0, 0, 0, 0x40), data),
        (Driver::fis(0x25, 0, 0, 1, 0), data),
        (Driver::fis(0xff, 0, 0, 1, 0x40), data),
        (Driver::fis(0xa1, 0, 0, 1, 0x40), data),
        (Driver::fis(0xec, 0, 0, 0, 0), &[]),
        (Driver::fis(0x06, 1, 0, 100, 0x40), data),
        (Driver::fis(0xf1, 0, 0, 1, 0x40), data),
    ] {
        let (events, status) = driver.run(0, &fis, None, regions);
        assert_eq!((events & 1 << 30, status & 1), (1 << 30, 1), "{fis:x?}");
        driver.recover(0);
    }
    assert_eq!(driver.run(0, &Driver::fis(0x25, 0, 0, 1, 0x40), None, data), (1, 0x50));
}

#[test]
fn what_is_not_in_ram_is_an_error_of_the_bus() {
    let driver = driver();
    for regions in [&[(MEMORY - 256, 512)][..], &[(u64::MAX - 1, 512)], &[(DATA, 512), (MEMORY, 2)]] {
        driver.put(0, &Driver::fis(0x25, 0, 0, 1, 0x40), None, regions);
        driver.set(0, 0x38, 1);
        assert_eq!(driver.wait(0), 1 << 29);
        driver.recover(0);
    }
    driver.set(0, 0x04, 0x7fff_ffff);
    driver.set(0, 0x38, 1);
    assert_eq!(driver.wait(0), 1 << 29, "the command list");
    driver.set(0, 0x04, 0);
    driver.recover(0);
    driver.put(0, &Driver::fis(0x25, 0, 0, 1, 0x40), None, &[(DATA, 512)]);
    driver.memory.write_obj(MEMORY - 0x80, GuestAddress(LIST + 8)).unwrap();
    driver.set(0, 0x38, 1);
    assert_eq!(driver.wait(0), 1 << 29, "the command table");
}

#[test]
fn a_cdrom_takes_packets() {
    let driver = driver();
    let packet = |cdb: &[u8]| {
        let mut packet = [0; 16];
        packet[..cdb.len()].copy_from_slice(cdb);
        let fis = Driver::fis(0xa0, 1, 0, 0, 0);
        driver.run(1, &fis, Some(&packet), &[(DATA, 4096)])
    };
    assert_eq!(packet(&[0x28, 0, 0, 0, 0, 3, 0, 0, 2, 0]), (1, 0x50));
    assert!(driver.bytes(DATA, 4096) == content()[3 * 2048..5 * 2048]);
    let (events, status) = packet(&[0x28, 0, 0, 0xff, 0, 0, 0, 0, 1, 0]);
    assert_eq!((events & 1 << 30, status), (1 << 30, 0x5451), "illegal request");
    driver.recover(1);
    assert_eq!(packet(&[0x03, 0, 0, 0, 18, 0]), (1, 0x50));
    let sense = driver.bytes(DATA, 18);
    assert_eq!((sense[2], sense[12]), (5, 0x21));
}

#[test]
fn trimmed_sectors_are_gone() {
    let driver = driver();
    let ranges = [0x0008_0000_0000_0010_u64, 0x0001_0000_0000_0040, 0];
    driver.memory.write_slice(&[0; 512], GuestAddress(DATA)).unwrap();
    for (at, range) in (DATA..).step_by(8).zip(ranges) {
        driver.memory.write_obj(range, GuestAddress(at)).unwrap();
    }
    assert_eq!(driver.run(0, &Driver::fis(0x06, 1, 0, 1, 0x40), None, &[(DATA, 512)]), (1, 0x50));
    driver.run(0, &Driver::fis(0x25, 0, 0x10, 9, 0x40), None, &[(DATA, 9 * 512)]);
    assert_eq!(driver.bytes(DATA, 4096), [0; 4096]);
    assert!(driver.bytes(DATA + 4096, 512) == content()[0x18 * 512..0x19 * 512]);
}

#[test]
fn resets_bring_everything_back() {
    let driver = driver();
    // Software reset: the control register's bit on, then off.
    let mut fis = [0; 20];
    fis[0] = 0x27;
    fis[15] = 4;
    driver.put(0, &fis, None, &[]);
    driver.set(1, 0x38, 1);
    while driver.port(1, 0x38) != 0 {
        std::thread::yield_now();
    }
    fis[15] = 0;
    driver.put(0, &fis, None, &[]);
    driver.set(1, 0x38, 1);
    while driver.port(1, 0x38) != 0 {
        std::thread::yield_now();
    }
    assert_eq!(driver.port(1, 0x24), 0xeb14_0101);
    assert_eq!(driver.bytes(RECEIVED + 0x40, 1), [0x34]);
    // COMRESET.
    driver.set(0, 0x18, 0x10);
    driver.set(0, 0x2c, 1);
    assert_eq!((driver.port(0, 0x28), driver.port(0, 0x24)), (0, u32::MAX));
    driver.set(0, 0x2c, 0);
    assert_eq!((driver.port(0, 0x28), driver.port(0, 0x24), driver.port(0, 0x20)), (0x133, 0x101, 0x150));
    assert_eq!(driver.port(0, 0x10) & 1 << 6, 1 << 6, "connect change");
    // The controller.
    driver.write(4, 1);
    while driver.read(4) & 1 != 0 {
        std::thread::yield_now();
    }
    assert_eq!((driver.read(4), driver.port(0, 0x00), driver.port(0, 0x14)), (1 << 31, 0, 0));
    driver.write(4, 2);
    driver.start(0);
    assert_eq!(driver.run(0, &Driver::fis(0x25, 0, 0, 1, 0x40), None, &[(DATA, 512)]), (1, 0x50));
}

#[test]
fn without_bus_mastering_nothing_is_begun() {
    let driver = driver();
    driver.mmio.write(CONFIG + 4, &[2, 0]);
    driver.put(0, &Driver::fis(0x25, 0, 0, 1, 0x40), None, &[(DATA, 512)]);
    driver.set(0, 0x38, 1);
    std::thread::yield_now();
    assert_eq!((driver.port(0, 0x38), driver.bytes(DATA, 512)), (1, vec![0; 512]));
    driver.mmio.write(CONFIG + 4, &[6, 0]);
    assert_eq!(driver.wait(0), 1);
    driver.root.stop();
}

/// A port with a command that was begun and whose outcome waits, since bus mastering is off.
fn held(memory: &GuestMemory) -> (Arc<Port>, std::thread::JoinHandle<()>) {
    let mut space = ConfigSpace::new(IDENTITY);
    let hba = Arc::new(Hba::new(Msi::new(&FakeRouter::default(), &mut space).unwrap()));
    let ready = fis::Shadow { status: 0x50, error: 1, lba: 1, count: 1, device: 0 };
    let port = Arc::new(Port::new(0, hba, Some(ready)));
    port.set_bus_master(true);
    port.write(0x08, u32::try_from(RECEIVED).unwrap());
    port.write(0x18, 0x11);
    port.write(0x38, 1);
    let image = tempfile::tempfile().unwrap();
    image.set_len(512).unwrap();
    let disk = Disk::new(DiskImage::Raw(image));
    let mut server = worker::Server::new(Box::new(drive::Disk::open(&disk).unwrap()), memory.clone());
    let job = port.next(&mut server).unwrap();
    port.set_bus_master(false);
    memory.write_slice(&[0xee; 0x100], GuestAddress(RECEIVED)).unwrap();
    let (theirs, memory) = (port.clone(), memory.clone());
    let completing = std::thread::spawn(move || theirs.complete(&memory, job, port::End::Reset));
    // It rests while its outcome waits.
    port.ask_to_pause();
    assert!(port.is_paused_in_time());
    port.resume();
    (port, completing)
}

#[test]
fn without_bus_mastering_no_outcome_is_posted() {
    let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 4 << 20)]).unwrap();
    let received = || {
        let mut bytes = [0; 0x100];
        memory.read_slice(&mut bytes, GuestAddress(RECEIVED)).unwrap();
        bytes
    };
    let (port, completing) = held(&memory);
    assert_eq!((port.read(0x38), received() == [0xee; 0x100]), (1, true));
    port.set_bus_master(true);
    completing.join().unwrap();
    assert_eq!((port.read(0x38), received() == [0xee; 0x100]), (0, false));

    // Nor after a reset, which does not wait for bus mastering.
    let (port, completing) = held(&memory);
    port.reset();
    completing.join().unwrap();
    assert_eq!((port.is_busy(), received() == [0xee; 0x100]), (false, true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is written to registers and command lists, nothing panics, and after a reset the disk reads.
    #[test]
    fn wild_drivers_are_survived(
        steps in prop::collection::vec((
            prop_oneof![0_u64..0x30, 0x100_u64..0x180, 0x180_u64..0x200, 0_u64..0x1000],
            any::<u32>(), 0_u64..0x3000, prop::collection::vec(any::<u8>(), 1..40),
        ), 1..80),
    ) {
        let driver = driver();
        for (register, value, at, bytes) in steps {
            driver.memory.write_slice(&bytes, GuestAddress(LIST + at)).unwrap();
            driver.write(register & !3, value);
            driver.mmio.write(driver.bar + register, &bytes[..bytes.len().min(8)]);
            driver.read(register);
        }
        driver.write(4, 1);
        while driver.read(4) & 1 != 0 {
            std::thread::yield_now();
        }
        driver.write(4, 2);
        driver.start(0);
        driver.set(0, 0x18, 0x10);
        driver.set(0, 0x2c, 1);
        driver.set(0, 0x2c, 0);
        driver.start(0);
        driver.write(8, u32::MAX);
        let read = Driver::fis(0x25, 0, 0, 1, 0x40);
        prop_assert_eq!(driver.run(0, &read, None, &[(DATA, 512)]), (1, 0x50));
    }

    /// Any command in any slot is answered.
    #[test]
    fn any_command_is_answered(
        port in 0_u64..2, fis in prop::array::uniform20(any::<u8>()),
        packet in prop::option::of(prop::array::uniform16(any::<u8>())), regions in 0_usize..4,
    ) {
        let driver = driver();
        let mut fis = fis;
        fis[1] |= 0x80;
        let all = [(DATA, 512), (DATA + 0x1000, 0x2000), (DATA + 0x8000, 6), (DATA + 0x9000, 0x1_0000)];
        let packet = packet.as_ref().map(|packet| &packet[..]);
        let (events, _) = driver.run(port, &fis, packet, &all[..regions]);
        prop_assert_ne!(events, 0);
    }
}
