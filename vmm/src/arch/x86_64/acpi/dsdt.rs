//! The differentiated system description table: what cannot be found by looking.

use acpi_tables::Aml;
use acpi_tables::aml::{
    AddressSpace, AddressSpaceCacheable, And, Arg, CreateDWordField, Device, EISAName, Else, Equal, IO, If,
    Interrupt, Memory32Fixed, Method, Name, NotEqual, ONE, Or, Package, PackageBuilder, Path,
    ResourceTemplate, Return, Scope, Store, Uuid, ZERO,
};
use acpi_tables::sdt::Sdt;

use super::{OEM_ID, OEM_REVISION, OEM_TABLE_ID, Platform, Windows, hotplug};
use crate::bus::BusRange;
use crate::layout;
use crate::pci::{Address, pirq};

const HEADER: u32 = 36;
/// Integers are 64 bits wide from this revision on.
const DSDT_REVISION: u8 = 2;

/// `_OSC` of a PCI root (PCI Firmware 3.3, section 4.5.1).
const PCI_OSC: &str = "33DB4D5B-1FF7-401C-9657-7441C03DD766";
/// Hot-plug, SHPC, PME, AER, capability structures and LTR: all are controlled by the guest.
const OSC_ALL_CONTROLS: u32 = 0x3f;
const OSC_UNKNOWN_UUID: u32 = 1 << 2;
const OSC_UNKNOWN_REVISION: u32 = 1 << 3;

/// The table of a platform.
pub(super) fn table(platform: &Platform<'_>) -> Sdt {
    let windows = &platform.windows;
    let mut dsdt = Sdt::new(*b"DSDT", HEADER, DSDT_REVISION, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    let mut body = Vec::new();
    soft_off().to_aml_bytes(&mut body);
    interrupt_model(&mut body);
    pci_root(windows, &mut body);
    motherboard(platform, &mut body);
    hotplug::slots(platform.hotplug, &mut body);
    serial(&mut body);
    rtc(&mut body);
    if platform.ps2 {
        keyboard_and_mouse(&mut body);
    }
    if platform.panic_port {
        pvpanic(&mut body);
    }
    dsdt.append_slice(&body);
    dsdt
}

/// `\_S5`: the sleep type that switches the VM off.
fn soft_off() -> Name {
    Name::new(Path::new("_S5_"), &Package::new(vec![&ZERO, &ZERO, &ZERO, &ZERO]))
}

/// A device on the system bus and the objects in it.
fn declare(name: &str, objects: &[(&str, &dyn Aml)], body: &mut Vec<u8>) {
    let objects: Vec<_> = objects.iter().map(|(name, value)| Name::new(Path::new(name), *value)).collect();
    let device = Device::new(Path::new(name), objects.iter().map(|object| object as &dyn Aml).collect());
    Scope::new(Path::new("_SB_"), vec![&device]).to_aml_bytes(body);
}

fn pci_root(windows: &Windows, body: &mut Vec<u8>) {
    let buses = AddressSpace::<u16>::new_bus_number(0, u16::from(layout::PCI_LAST_BUS));
    let config = IO::new(layout::PCI_CONFIG_PORT, layout::PCI_CONFIG_PORT, 1, 8);
    // All ports but those of the configuration space: the LPC bridge behind this root decodes the low ones.
    let low_ports = AddressSpace::<u16>::new_io(0, layout::PCI_CONFIG_PORT - 1, None);
    let ports = AddressSpace::<u16>::new_io(layout::PCI_CONFIG_PORT + 8, u16::MAX, None);
    let memory32: Vec<_> = windows.memory32().iter().map(|window| memory32(*window)).collect();
    let memory64 = AddressSpace::<u64>::new_memory(
        AddressSpaceCacheable::NotCacheable,
        true,
        windows.memory64().start(),
        windows.memory64().last(),
        None,
    );
    let mut resources: Vec<&dyn Aml> = vec![&buses, &config, &low_ports, &ports];
    resources.extend(memory32.iter().map(|window| window as &dyn Aml));
    resources.push(&memory64);
    let resources = ResourceTemplate::new(resources);
    declare(
        "PCI0",
        &[
            ("_HID", &EISAName::new("PNP0A08")),
            ("_CID", &EISAName::new("PNP0A03")),
            ("_UID", &ZERO),
            ("_SEG", &ZERO),
            ("_BBN", &ZERO),
            ("_CRS", &resources),
        ],
        body,
    );
    Scope::new(Path::new("_SB_.PCI0"), vec![&OperatingSystemCapabilities, &InterruptRouting])
        .to_aml_bytes(body);
}

/// `_PRT`: where INTA# of each slot leads, with the IOAPIC or with the PICs. No function has another pin.
struct InterruptRouting;

impl Aml for InterruptRouting {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        let lines = |gsi: fn(u8) -> u8| -> PackageBuilder {
            let mut all = PackageBuilder::new();
            for device in 1..32_u8 {
                // The device in the upper half, any function in the lower.
                let address = u32::from(device) << 16 | 0xffff;
                let gsi = gsi(pirq(Address::root(device)));
                all.add_element(&Package::new(vec![&address, &ZERO, &ZERO, &gsi]));
            }
            all
        };
        let ioapic = lines(|pirq| u8::try_from(layout::PIRQ_GSI_START).unwrap_or(0) + pirq);
        let pics = lines(|pirq| layout::PIRQ_ISA.get(usize::from(pirq % 4)).copied().unwrap_or(0));
        let mode = Path::new("\\PICF");
        Method::new(
            Path::new("_PRT"),
            0,
            false,
            vec![&If::new(&mode, vec![&Return::new(&ioapic)]), &Return::new(&pics)],
        )
        .to_aml_bytes(sink);
    }
}

/// `\_PIC`: the guest selects an interrupt controller model (ACPI 6.5, section 5.8.1).
fn interrupt_model(body: &mut Vec<u8>) {
    let mode = Path::new("PICF");
    Name::new(Path::new("PICF"), &ZERO).to_aml_bytes(body);
    Method::new(Path::new("_PIC"), 1, false, vec![&Store::new(&mode, &Arg(0))]).to_aml_bytes(body);
}

fn memory32(window: BusRange) -> AddressSpace<u32> {
    let low = |address: u64| u32::try_from(address).unwrap_or(u32::MAX);
    let (start, last) = (low(window.start()), low(window.last()));
    AddressSpace::<u32>::new_memory(AddressSpaceCacheable::NotCacheable, true, start, last, None)
}

/// `_OSC`: the guest is granted every control it requests.
struct OperatingSystemCapabilities;

impl Aml for OperatingSystemCapabilities {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        let (status, control) = (Path::new("CDW1"), Path::new("CDW3"));
        let uuid = Uuid::new(PCI_OSC);
        let known = Equal::new(&Arg(0), &uuid);
        let create_control = CreateDWordField::new(&control, &Arg(3), &8_u8);
        let grant = And::new(&control, &control, &OSC_ALL_CONTROLS);
        let other_revision = NotEqual::new(&Arg(1), &ONE);
        let refuse_revision = Or::new(&status, &status, &OSC_UNKNOWN_REVISION);
        let check_revision = If::new(&other_revision, vec![&refuse_revision]);
        let refuse_uuid = Or::new(&status, &status, &OSC_UNKNOWN_UUID);
        Method::new(
            Path::new("_OSC"),
            4,
            true,
            vec![
                &CreateDWordField::new(&status, &Arg(3), &ZERO),
                &If::new(&known, vec![&create_control, &grant, &check_revision]),
                &Else::new(vec![&refuse_uuid]),
                &Return::new(&Arg(3)),
            ],
        )
        .to_aml_bytes(sink);
    }
}

/// Addresses that no other device claims: without this a kernel does not trust the MCFG.
fn motherboard(platform: &Platform<'_>, body: &mut Vec<u8>) {
    let config = platform.windows.config();
    let ecam = Memory32Fixed::new(
        true,
        u32::try_from(config.start()).unwrap_or(u32::MAX),
        u32::try_from(config.last() - config.start() + 1).unwrap_or(0),
    );
    let power =
        IO::new(layout::PM_PORT, layout::PM_PORT, 1, u8::try_from(layout::PM_SIZE).unwrap_or(u8::MAX));
    let hotplug = hotplug::ports();
    let mut resources: Vec<&dyn Aml> = vec![&ecam, &power];
    if platform.hotplug != 0 {
        resources.push(&hotplug);
    }
    let resources = ResourceTemplate::new(resources);
    declare("MBRD", &[("_HID", &EISAName::new("PNP0C02")), ("_UID", &ZERO), ("_CRS", &resources)], body);
}

fn serial(body: &mut Vec<u8>) {
    let ports = IO::new(layout::COM1_PORT, layout::COM1_PORT, 1, 8);
    let line = Interrupt::new(true, true, false, false, layout::COM1_IRQ);
    let resources = ResourceTemplate::new(vec![&ports, &line]);
    declare("COM1", &[("_HID", &EISAName::new("PNP0501")), ("_UID", &ONE), ("_CRS", &resources)], body);
}

fn keyboard_and_mouse(body: &mut Vec<u8>) {
    let (keyboard, mouse) = layout::PS2_IRQS;
    let port = |offset: u16| IO::new(layout::I8042_PORT + offset, layout::I8042_PORT + offset, 1, 1);
    let line = |gsi| Interrupt::new(true, true, false, false, gsi);
    let (data, command) = (port(0), port(4));
    let keyboard = line(keyboard);
    let resources = ResourceTemplate::new(vec![&data, &command, &keyboard]);
    declare("PS2K", &[("_HID", &EISAName::new("PNP0303")), ("_CRS", &resources)], body);
    let mouse = line(mouse);
    let resources = ResourceTemplate::new(vec![&mouse]);
    declare("PS2M", &[("_HID", &EISAName::new("PNP0F13")), ("_CRS", &resources)], body);
}

/// Where the guest's driver looks for the port (QEMU's `docs/specs/pvpanic.rst`).
fn pvpanic(body: &mut Vec<u8>) {
    let port = IO::new(layout::PANIC_PORT, layout::PANIC_PORT, 1, 1);
    let resources = ResourceTemplate::new(vec![&port]);
    declare("PEVT", &[("_HID", &"QEMU0001"), ("_CRS", &resources)], body);
}

fn rtc(body: &mut Vec<u8>) {
    let ports = IO::new(layout::RTC_PORT, layout::RTC_PORT, 1, 2);
    let line = Interrupt::new(true, true, false, false, layout::RTC_IRQ);
    let resources = ResourceTemplate::new(vec![&ports, &line]);
    declare("RTC_", &[("_HID", &EISAName::new("PNP0B00")), ("_CRS", &resources)], body);
}
