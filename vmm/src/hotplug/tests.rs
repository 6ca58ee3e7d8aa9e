use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use vireo_vmconfig::{DiskDevice, MacAddr};

use super::*;
use crate::bus::{Bus, BusDevice};
use crate::config::{DiskImage, MemorySize, ThreadHook};
use crate::exit::Outcome;
use crate::irq::IrqLine;
use crate::layout::{ECAM_START, GPE0_OFFSET};
use crate::legacy::PowerManagement;
use crate::memory::{self, RamRange};
use crate::pci::tests::{FakePins, FakeRouter};
use crate::state::AnySection;
use crate::virtio::testing::FakeDoorbells;

/// Slots 2, 3 and 4.
const MASK: u32 = 0b11100;
const RAM: u64 = 64 << 20;
const UP: u64 = 0;
const DOWN: u64 = 4;
const EJECT: u64 = 8;
/// What an empty slot reads as, and a virtio disk and SCSI controller.
const EMPTY: u32 = u32::MAX;
const BLOCK: u32 = 0x1042_1af4;
const SCSI: u32 = 0x1048_1af4;

struct Line;

impl IrqLine for Line {
    fn pulse(&self) -> std::io::Result<()> {
        Ok(())
    }
    fn set_level(&self, _high: bool) -> std::io::Result<()> {
        Ok(())
    }
}

/// A VM as far as hotplug goes, and what the guest does to it.
struct World {
    mmio: Arc<Bus>,
    _pio: Arc<Bus>,
    root: Arc<Root>,
    power: Arc<PowerManagement>,
    slots: Arc<Slots>,
}

impl World {
    fn new(hotplug: &Hotplug) -> Self {
        let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
        let range = [RamRange { start: 0, len: RAM }];
        let root = Arc::new(Root::new((&mmio, &pio), &range, Arc::new(FakePins::default())).unwrap());
        let power = Arc::new(PowerManagement::new(Arc::new(Line), Arc::new(Outcome::default())));
        let ejected = Box::new(hotplug.eject_handler());
        let controller = Arc::new(Controller::new(&root, power.clone(), MASK, ejected));
        let host = DeviceContext {
            memory: memory::create(MemorySize::from_bytes(RAM).unwrap(), None).unwrap(),
            router: Arc::new(FakeRouter::default()),
            doorbells: Arc::new(FakeDoorbells::default()),
            threads: ThreadHook::default(),
        };
        let slots = Arc::new(Slots::new(controller, host));
        hotplug.begin(&slots, &root).unwrap();
        Self { mmio, _pio: pio, root, power, slots }
    }

    /// The IDs of what is in a slot.
    fn ids(&self, slot: u8) -> u32 {
        let mut ids = [0; 4];
        assert!(self.mmio.read(ECAM_START + (u64::from(slot) << 15), &mut ids));
        u32::from_le_bytes(ids)
    }

    /// Writes a register of configuration space.
    fn config(&self, slot: u8, register: u64, value: u32) {
        self.mmio.write(ECAM_START + (u64::from(slot) << 15) + register, &value.to_le_bytes());
    }

    fn register(&self, offset: u64) -> u32 {
        let mut value = [0; 4];
        self.slots.controller.read(offset, &mut value);
        u32::from_le_bytes(value)
    }

    fn eject(&self, slots: u32) {
        self.slots.controller.write(EJECT, &slots.to_le_bytes());
    }

    /// Whether the event is pending; acknowledges it.
    fn take_event(&self) -> bool {
        let mut status = [0];
        self.power.read(GPE0_OFFSET.into(), &mut status);
        self.power.write(GPE0_OFFSET.into(), &status);
        status == [2]
    }
}

fn disk() -> Disk {
    let mut image = tempfile::tempfile().unwrap();
    image.write_all(&[7; 4096]).unwrap();
    Disk::new(DiskImage::Raw(image))
}

/// With a list of the slots that were released.
fn hotplug() -> (Hotplug, Arc<Mutex<Vec<u8>>>) {
    let released = Arc::new(Mutex::new(Vec::new()));
    let list = released.clone();
    (Hotplug::new(move |slot| list.lock().unwrap().push(slot)), released)
}

#[test]
fn a_nic_without_a_tap_takes_no_slot() {
    let (hotplug, _) = hotplug();
    let vm = World::new(&hotplug);
    let mac = MacAddr::local([0, 0, 0, 0, 7]);
    let nic = Net::new(tempfile::tempfile().unwrap().into(), mac);
    assert!(matches!(hotplug.attach(nic), Err(HotplugError::Net(_))));
    assert_eq!(hotplug.attach(disk()).unwrap(), 2, "the first slot is free");
    assert_eq!(vm.ids(2), BLOCK);
}

#[test]
fn a_disk_comes_and_goes_when_the_guest_lets_it() {
    let (hotplug, released) = hotplug();
    let vm = World::new(&hotplug);
    assert_eq!(hotplug.attach(disk()).unwrap(), 2);
    let scsi = disk().attach(Attachment::Scsi(DiskDevice::Disk));
    assert_eq!(hotplug.attach(scsi).unwrap(), 3);
    assert_eq!((vm.ids(2), vm.ids(3), vm.ids(4)), (BLOCK, SCSI, EMPTY));
    assert!(vm.take_event() && !vm.take_event());
    assert_eq!((vm.register(UP), vm.register(UP), vm.register(DOWN)), (0b1100, 0, 0));

    // The guest assigns an address and decodes it.
    let bar = vm.root.window64().start();
    assert!(!vm.mmio.read(bar, &mut [0; 4]));
    vm.config(2, 0x14, u32::try_from(bar >> 32).unwrap());
    vm.config(2, 0x10, u32::try_from(bar & 0xffff_ffff).unwrap());
    vm.config(2, 0x04, 6);
    assert!(vm.mmio.read(bar, &mut [0; 4]));

    hotplug.detach(2).unwrap();
    assert!(vm.take_event());
    assert_eq!((vm.register(DOWN), vm.register(DOWN)), (0b100, 0));
    assert_eq!((vm.ids(2), released.lock().unwrap().len()), (BLOCK, 0), "the guest has it still");
    vm.eject(0b100);
    assert_eq!(vm.ids(2), EMPTY);
    assert!(hotplug.state().ejected[0].1.is_some(), "its file is not closed by the vCPU");
    assert!(!vm.mmio.read(bar, &mut [0; 4]), "nothing is left where its BAR was");
    vm.config(2, 0x04, 6);
    assert!(!vm.mmio.read(bar, &mut [0; 4]));
    hotplug.close_released();
    assert_eq!(*released.lock().unwrap(), [2]);
    assert!(matches!(hotplug.detach(2), Err(HotplugError::Absent(2))));
    assert_eq!(hotplug.attach(disk()).unwrap(), 2, "the slot is free");
}

#[test]
fn what_does_not_fit_is_rejected() {
    let (hotplug, _) = hotplug();
    assert!(matches!(hotplug.attach(disk()), Err(HotplugError::NoVm)));
    let vm = World::new(&hotplug);
    let sata = disk().attach(Attachment::Sata(DiskDevice::Disk));
    assert!(matches!(hotplug.attach(sata), Err(HotplugError::Bus)));
    let broken = Disk::new(DiskImage::Qcow2 { image: tempfile::tempfile().unwrap(), backing: None });
    assert!(matches!(hotplug.attach(broken), Err(HotplugError::Image(_))));
    assert_eq!((vm.ids(2), vm.register(UP)), (EMPTY, 0));
    for slot in 2..5 {
        assert_eq!(hotplug.attach(disk()).unwrap(), slot);
    }
    assert!(matches!(hotplug.attach(disk()), Err(HotplugError::Full)));
    drop(vm);
    assert!(matches!(hotplug.attach(disk()), Err(HotplugError::NoVm)));
}

#[test]
fn a_reset_keeps_disks_but_those_that_are_to_go() {
    let (hotplug, released) = hotplug();
    let vm = World::new(&hotplug);
    for _ in 0..3 {
        hotplug.attach(disk()).unwrap();
    }
    hotplug.detach(3).unwrap();
    vm.root.stop();
    drop(vm);
    let vm = World::new(&hotplug);
    assert_eq!((2..5).map(|slot| vm.ids(slot)).collect::<Vec<_>>(), [BLOCK, EMPTY, BLOCK]);
    assert_eq!((vm.register(UP), vm.register(DOWN)), (0, 0), "they are there from the start");
    assert_eq!(*released.lock().unwrap(), [3]);
    hotplug.detach(4).unwrap();
    vm.eject(vm.register(DOWN));
    assert_eq!(*released.lock().unwrap(), [3, 4]);
}

#[test]
fn a_disk_that_cannot_be_opened_again_is_lost_by_a_reset_and_no_other() {
    let (hotplug, released) = hotplug();
    let vm = World::new(&hotplug);
    let image = tempfile::tempfile().unwrap();
    image.set_len(4096).unwrap();
    hotplug.attach(Disk::new(DiskImage::Raw(image.try_clone().unwrap()))).unwrap();
    hotplug.attach(disk()).unwrap();
    // It is no image any more.
    image.set_len(0).unwrap();
    vm.root.stop();
    drop(vm);
    let vm = World::new(&hotplug);
    assert_eq!(((2..5).map(|slot| vm.ids(slot)).collect::<Vec<_>>()), [EMPTY, BLOCK, EMPTY]);
    assert_eq!(*released.lock().unwrap(), [2]);
}

#[test]
fn a_request_to_eject_is_not_for_the_next_disk() {
    let (hotplug, _) = hotplug();
    let vm = World::new(&hotplug);
    vm.slots.controller.request_eject(2);
    assert_eq!(hotplug.attach(disk()).unwrap(), 2);
    assert_eq!((vm.register(UP), vm.register(DOWN)), (0b100, 0));
}

#[test]
fn a_vm_with_attached_disks_is_not_saved() {
    let (hotplug, _) = hotplug();
    let vm = World::new(&hotplug);
    let saved = vm.slots.controller.encode().unwrap();
    vm.slots.controller.decode(&saved).unwrap();
    hotplug.attach(disk()).unwrap();
    let why = vm.slots.controller.encode().unwrap_err().to_string();
    assert!(why.contains("detach them first"), "{why}");
    vm.eject(MASK);
    assert_eq!(vm.slots.controller.encode().unwrap(), saved);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever guest and caller do: only hotplug slots are ejected, each disk is released once, and a slot has a function as
    /// long as it has a disk.
    #[test]
    fn random_accesses_lose_no_disk_and_eject_nothing_else(
        steps in prop::collection::vec((0_u8..6, any::<u32>(), 0_u64..12, 1_usize..9), 1..60)
    ) {
        let count = Arc::new(AtomicU64::new(0));
        let counter = count.clone();
        let hotplug = Hotplug::new(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let vm = World::new(&hotplug);
        let fixed: Vec<_> = vm.root.addresses();
        let mut attached = 0;
        for (kind, value, offset, len) in steps {
            match kind {
                0 => attached += u64::from(hotplug.attach(disk()).is_ok()),
                1 => drop(hotplug.detach(u8::try_from(value % 40).unwrap())),
                2 => vm.slots.controller.read(offset, &mut vec![0; len]),
                3 => vm.slots.controller.write(offset, &value.to_le_bytes().repeat(2)[..len]),
                4 => vm.eject(value),
                _ => hotplug.close_released(),
            }
            let there: Vec<u8> = vm.root.addresses().iter().map(|at| at.device()).collect();
            let known: Vec<u8> = hotplug.state().devices.keys().copied().collect();
            let in_slots: Vec<u8> = there.iter().copied().filter(|slot| MASK >> slot & 1 != 0).collect();
            prop_assert_eq!(&in_slots, &known);
            prop_assert!(fixed.iter().all(|at| there.contains(&at.device())));
            prop_assert_eq!(attached, count.load(Ordering::Relaxed) + known.len() as u64);
        }
        hotplug.close_released();
        prop_assert!(hotplug.state().ejected.is_empty());
    }
}
