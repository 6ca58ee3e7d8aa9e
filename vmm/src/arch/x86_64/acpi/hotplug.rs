//! The hotplug slots: a device for each, and the event by which the guest learns of changes (ACPI 6.5, sections 5.6.6 and
//! 6.3).

use acpi_tables::Aml;
use acpi_tables::aml::{
    Acquire, And, Arg, Device, Field, FieldAccessType, FieldEntry, FieldLockRule, FieldUpdateRule, IO, If,
    Local, Method, MethodCall, Mutex, Name, Notify, ONE, OpRegion, OpRegionSpace, Path, Release, Scope,
    ShiftLeft, Store,
};

use crate::layout;

/// Notifications (ACPI 6.5, table 5.70): the slot is to be looked at, and it is to be ejected.
const DEVICE_CHECK: u8 = 1;
const EJECT_REQUEST: u8 = 3;
/// Of a mutex: for ever.
const NO_TIMEOUT: u16 = 0xffff;

/// The ports of the controller.
pub(super) fn ports() -> IO {
    let size = u8::try_from(layout::HOTPLUG_SIZE).unwrap_or(u8::MAX);
    IO::new(layout::HOTPLUG_PORT, layout::HOTPLUG_PORT, 1, size)
}

fn name(slot: u8) -> Path {
    Path::new(&format!("S{slot:02X}_"))
}

/// The slots whose bits are set in `mask`.
pub(super) fn slots(mask: u32, body: &mut Vec<u8>) {
    if mask == 0 {
        return;
    }
    let slots: Vec<Slot> = crate::hotplug::slots(mask).map(Slot).collect();
    let mut objects: Vec<&dyn Aml> = vec![&Registers];
    objects.extend(slots.iter().map(|slot| slot as &dyn Aml));
    let check = Check(&slots);
    objects.push(&check);
    Scope::new(Path::new("_SB_.PCI0"), objects).to_aml_bytes(body);
    let check = MethodCall::new(Path::new("\\_SB_.PCI0.PCNT"), vec![]);
    // `_Exx` is called for each edge of the event (ACPI 6.5, section 5.6.4.1).
    let handler = format!("_E{:02X}", layout::HOTPLUG_GPE);
    let handler = Method::new(Path::new(&handler), 0, false, vec![&check]);
    Scope::new(Path::new("_GPE"), vec![&handler]).to_aml_bytes(body);
}

/// The registers of the controller, and `PEJ`, which ejects a slot.
struct Registers;

impl Aml for Registers {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        let (port, size) = (layout::HOTPLUG_PORT, layout::HOTPLUG_SIZE);
        OpRegion::new(Path::new("HPRG"), OpRegionSpace::SystemIO, &port, &size).to_aml_bytes(sink);
        let fields = [*b"HPUP", *b"HPDN", *b"HPEJ"].map(|name| FieldEntry::Named(name, 32));
        Field::new(
            Path::new("HPRG"),
            FieldAccessType::DWord,
            FieldLockRule::NoLock,
            FieldUpdateRule::WriteAsZeroes,
            fields.to_vec(),
        )
        .to_aml_bytes(sink);
        Mutex::new(Path::new("HPLK"), 0).to_aml_bytes(sink);
        let register = Path::new("HPEJ");
        Method::new(
            Path::new("PEJ_"),
            1,
            false,
            vec![
                &Acquire::new(Path::new("HPLK"), NO_TIMEOUT),
                &ShiftLeft::new(&register, &ONE, &Arg(0)),
                &Release::new(Path::new("HPLK")),
            ],
        )
        .to_aml_bytes(sink);
    }
}

struct Slot(u8);

impl Aml for Slot {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        let address = u32::from(self.0) << 16;
        let eject = MethodCall::new(Path::new("PEJ_"), vec![&self.0]);
        Device::new(
            name(self.0),
            vec![
                &Name::new(Path::new("_ADR"), &address),
                &Name::new(Path::new("_SUN"), &self.0),
                &Method::new(Path::new("_EJ0"), 1, false, vec![&eject]),
            ],
        )
        .to_aml_bytes(sink);
    }
}

/// `PCNT`: notifies the slots of what the registers say. Reading them clears them.
struct Check<'a>(&'a [Slot]);

impl Aml for Check<'_> {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        let (up, down) = (Path::new("HPUP"), Path::new("HPDN"));
        let (read_up, read_down) = (Store::new(&Local(0), &up), Store::new(&Local(1), &down));
        let (acquire, release) =
            (Acquire::new(Path::new("HPLK"), NO_TIMEOUT), Release::new(Path::new("HPLK")));
        let notices: Vec<_> = self
            .0
            .iter()
            .flat_map(|slot| {
                let notice = |local, event| Notice { slot: slot.0, local, event };
                [notice(0, DEVICE_CHECK), notice(1, EJECT_REQUEST)]
            })
            .collect();
        let mut steps: Vec<&dyn Aml> = vec![&acquire, &read_up, &read_down, &release];
        steps.extend(notices.iter().map(|notice| notice as &dyn Aml));
        Method::new(Path::new("PCNT"), 0, false, steps).to_aml_bytes(sink);
    }
}

/// Notifies a slot of an event, if its bit is set in the local variable of that number.
struct Notice {
    slot: u8,
    local: u8,
    event: u8,
}

impl Aml for Notice {
    fn to_aml_bytes(&self, sink: &mut dyn acpi_tables::AmlSink) {
        let Self { slot, local, event } = *self;
        let (bit, path) = (1_u32 << slot, name(slot));
        let (no_target, local) = (acpi_tables::aml::ZERO, Local(local));
        let set = And::new(&no_target, &local, &bit);
        let notify = Notify::new(&path, &event);
        If::new(&set, vec![&notify]).to_aml_bytes(sink);
    }
}
