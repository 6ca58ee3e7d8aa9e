use std::fs::File;
use std::io;
use std::sync::Arc;

use proptest::prelude::*;
use vireo_vmconfig::CpuTopology;
use vm_memory::{Bytes, GuestAddress};

use super::file::{self, Payload, Record};
use super::{AnySection, LoadError, SavedVm, Section, SectionError, ram};
use crate::bus::BusDevice;
use crate::config::{Boot, Firmware, MemorySize, VmConfig};
use crate::exit::Outcome;
use crate::irq::IrqLine;
use crate::legacy::{PowerEvents, PowerManagement, ResetControl, Rtc};
use crate::memory;
use crate::serial::Uart;

struct NoLine;

impl IrqLine for NoLine {
    fn pulse(&self) -> io::Result<()> {
        Ok(())
    }
    fn set_level(&self, _high: bool) -> io::Result<()> {
        Ok(())
    }
}

struct Number(std::sync::Mutex<(u32, String)>);

impl Number {
    fn new(value: u32) -> Self {
        Self(std::sync::Mutex::new((value, "text".to_owned())))
    }
}

impl Section for Number {
    const TAG: &'static str = "number";
    const VERSION: u16 = 3;
    type State = (u32, String);

    fn save(&self) -> Result<Self::State, SectionError> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn load(&self, state: Self::State) -> Result<(), SectionError> {
        *self.0.lock().unwrap() = state;
        Ok(())
    }
}

struct Newer;

impl Section for Newer {
    const TAG: &'static str = "number";
    const VERSION: u16 = 4;
    type State = u32;

    fn save(&self) -> Result<u32, SectionError> {
        Ok(1)
    }

    fn load(&self, _state: u32) -> Result<(), SectionError> {
        Ok(())
    }
}

fn config(mib: u64) -> VmConfig {
    let memory = MemorySize::from_bytes(mib << 20).unwrap();
    let boot = Boot::Firmware(Firmware::new(tempfile::tempfile().unwrap()));
    VmConfig::new(CpuTopology::new(1, 1, 1).unwrap(), memory, boot)
}

fn saved(sections: &[(&str, &dyn AnySection)]) -> Vec<u8> {
    let sections = sections.iter().map(|(name, section)| Record::of(name, *section).unwrap()).collect();
    let configuration = super::description::describe(&config(16));
    let mut bytes = Vec::new();
    file::write(&Payload { id: [7; 16], configuration, sections }, &mut bytes).unwrap();
    bytes
}

fn read(bytes: &[u8]) -> Result<SavedVm, LoadError> {
    SavedVm::read(&mut &*bytes, tempfile::tempfile().unwrap())
}

#[test]
fn sections_are_found_by_their_names_and_all_are_wanted() {
    let bytes = saved(&[("one", &Number::new(1)), ("two", &Number::new(2))]);
    let vm = read(&bytes).unwrap();
    let (first, second) = (Number::new(0), Number::new(0));
    let mut sections = vm.sections();
    sections.load("two", &second).unwrap();
    assert!(matches!(sections.load("two", &second), Err(LoadError::Missing(name)) if name == "two"));
    assert!(matches!(sections.finish(), Err(LoadError::Unknown(name)) if name == "one"));
    let mut sections = vm.sections();
    sections.load("one", &first).unwrap();
    sections.load("two", &second).unwrap();
    sections.finish().unwrap();
    assert_eq!((first.save().unwrap().0, second.save().unwrap().0), (1, 2));
    let error = vm.sections().load("one", &Newer).unwrap_err();
    let message = r#"section "one" is "number" version 3: supported: "number" version 4"#;
    assert_eq!(error.to_string(), message);
}

#[test]
fn what_is_not_such_a_file_is_rejected_by_name() {
    let bytes = saved(&[("one", &Number::new(1))]);
    let with = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        read(&bytes).unwrap_err()
    };
    assert!(matches!(read(b"").unwrap_err(), LoadError::Magic));
    assert!(matches!(with(0, b'X'), LoadError::Magic));
    assert!(matches!(with(8, 9), LoadError::Format { found: 9, supported: 1 }));
    assert!(matches!(with(19, 1), LoadError::TooLong(_)));
    for at in [12, 20, 60, bytes.len() - 1] {
        assert!(matches!(with(at, bytes[at] ^ 0x55), LoadError::Checksum), "byte {at}");
    }
    assert!(matches!(read(&bytes[..bytes.len() - 1]).unwrap_err(), LoadError::Checksum));
}

#[test]
fn a_state_of_another_length_is_rejected() {
    let mut bytes = Number::new(5).encode().unwrap();
    bytes.push(0);
    assert!(matches!(Number::new(0).decode(&bytes), Err(SectionError::Invalid(_))));
    bytes.truncate(2);
    assert!(matches!(Number::new(0).decode(&bytes), Err(SectionError::Encoding(_))));
}

#[test]
fn another_configuration_is_named() {
    let vm = read(&saved(&[])).unwrap();
    vm.check(&config(16)).unwrap();
    let error = vm.check(&config(32)).unwrap_err().to_string();
    assert_eq!(error, r#"RAM differs: the saved VM has "16777216 bytes", this one has "33554432 bytes""#);
    let huge = config(16).with_huge_pages(Some(vireo_vmconfig::HugePage::Mib2));
    assert!(matches!(vm.check(&huge), Err(LoadError::HugePages)));
    let error = vm.check(&config(16).with_rng(true)).unwrap_err().to_string();
    assert_eq!(error, r#"entropy device differs: the saved VM has "", this one has "present""#);
}

#[test]
fn ram_is_mapped_as_it_was_written_and_stays_private() {
    let size = MemorySize::from_bytes(16 << 20).unwrap();
    let memory = memory::create(size, None).unwrap();
    let places = [0, 0xfff, 0x12_3456, (16 << 20) - 1];
    places.iter().for_each(|at| memory.write_obj(0xa5_u8, GuestAddress(*at)).unwrap());
    let file = tempfile::tempfile().unwrap();
    ram::write(&memory, [7; 16], &file).unwrap();
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    assert!(blocks < 2048, "pages of zeros are holes: {blocks} blocks");

    let vm = |file: &File| SavedVm::read(&mut &*saved(&[]), file.try_clone().unwrap()).unwrap();
    let loaded = vm(&file).map_ram(size).unwrap();
    let all = |memory: &memory::GuestMemory| {
        let mut bytes = vec![0; 16 << 20];
        memory.read_slice(&mut bytes, GuestAddress(0)).unwrap();
        bytes
    };
    assert!(all(&loaded) == all(&memory));
    loaded.write_obj(1_u8, GuestAddress(0)).unwrap();
    assert_eq!(vm(&file).map_ram(size).unwrap().read_obj::<u8>(GuestAddress(0)).unwrap(), 0xa5);

    let larger = MemorySize::from_bytes(32 << 20).unwrap();
    assert!(matches!(vm(&file).map_ram(larger), Err(LoadError::RamSize { .. })));
    ram::write(&memory, [8; 16], &file).unwrap();
    assert!(matches!(vm(&file).map_ram(size), Err(LoadError::OtherRam)));
}

/// Saves one part and loads the state into another, which then has the same state.
fn carry_over<S: Section>(from: &S, to: &S) {
    let state = from.encode().unwrap();
    to.decode(&state).unwrap();
    assert_eq!(to.encode().unwrap(), state);
}

fn power() -> Arc<PowerManagement> {
    Arc::new(PowerManagement::new(Arc::new(NoLine), Arc::default()))
}

fn clock() -> Rtc {
    Rtc::new(Arc::new(NoLine), power(), config(16).clock, &[(0x5b, 3)]).unwrap()
}

fn uart() -> Uart {
    Uart::new(Arc::new(NoLine), Box::new(|_: &[u8]| {})).unwrap()
}

fn read_port(device: &dyn BusDevice, offset: u64) -> u8 {
    let mut byte = [0];
    device.read(offset, &mut byte);
    byte[0]
}

#[test]
fn the_serial_port_keeps_what_was_received() {
    let (from, to) = (uart(), uart());
    for (register, value) in [(3, 0x83), (0, 12), (1, 0), (3, 3), (1, 1), (7, 0x5a)] {
        from.write(register, &[value]);
    }
    from.push(&[b'x'; 100]);
    from.send_break();
    from.push(b"y");
    carry_over(&from, &to);
    assert_eq!(read_port(&to, 7), 0x5a);
    let all: Vec<u8> =
        std::iter::from_fn(|| (read_port(&to, 5) & 1 == 1).then(|| read_port(&to, 0))).collect();
    assert_eq!(all, [&[b'x'; 100][..], &[0, b'y']].concat());
    let mut state = from.save().unwrap();
    state.overfill();
    assert!(matches!(to.load(state), Err(SectionError::Invalid(_))));
}

#[test]
fn the_clock_and_its_memory_go_on() {
    let (from, to) = (clock(), clock());
    for (register, value) in [(0x0b, 0x82), (0x09, 0x31), (0x0b, 0x12), (0x40, 0x77)] {
        from.write(0, &[register]);
        from.write(1, &[value]);
    }
    // No flag is set between the two.
    from.write(0, &[0x0b]);
    from.write(1, &[0x82]);
    carry_over(&from, &to);
    for (register, value) in [(0x40, 0x77), (0x5b, 3), (0x09, 0x31)] {
        to.write(0, &[register]);
        assert_eq!(read_port(&to, 1), value, "{register:#x}");
    }
}

#[test]
fn power_management_and_reset_keep_their_registers() {
    let (from, to) = (power(), power());
    from.write(2, &0x0100_u16.to_le_bytes());
    from.press_power_button();
    let state = from.save().unwrap();
    to.load(state).unwrap();
    let word = |device: &PowerManagement, offset| {
        let mut bytes = [0; 4];
        device.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    };
    assert_eq!(word(&to, 0), 0x0100_0100);
    assert!(word(&to, 8) >= word(&power(), 8), "the timer goes on");

    let reset = |value: u8| {
        let reset = ResetControl::new(Arc::new(Outcome::default()));
        reset.write(0, &[value]);
        reset
    };
    let to = reset(0);
    carry_over(&reset(0x0a), &to);
    assert_eq!(read_port(&to, 0), 0x0a);
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let _ = SavedVm::decode(&bytes, tempfile::tempfile().unwrap());
        let (uart, power) = (uart(), power());
        for section in [&uart as &dyn AnySection, &*power, &Number::new(0)] {
            let _ = section.decode(&bytes);
        }
        read_port(&uart, 0);
        let clock = clock();
        let _ = clock.decode(&bytes);
        for register in [0, 0x0a, 0x0c] {
            clock.write(0, &[register]);
            read_port(&clock, 1);
        }
    }
}
