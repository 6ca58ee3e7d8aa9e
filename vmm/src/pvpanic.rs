//! The pvpanic device, by which a guest reports that its kernel panicked (QEMU's `docs/specs/pvpanic.rst`): at an I/O port
//! that ACPI names, or as a PCI function.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::bus::BusDevice;
use crate::config::{Notice, Notices};
use crate::exit::{Exit, Outcome};
use crate::pci::{
    BarKind, Bars, ConfigSpace, ConfigState, Decoding, Function, FunctionSpace, Identity, RootError, Slot,
};
use crate::state::{AnySection, Section, SectionError};

/// The guest's kernel panicked, and nothing handles that.
const PANICKED: u8 = 1 << 0;
/// It panicked, and starts its crash kernel.
const CRASH_LOADED: u8 = 1 << 1;
/// It shuts down.
const SHUTDOWN: u8 = 1 << 2;

const BAR: (usize, BarKind) = (0, BarKind::Memory32 { prefetchable: false });
/// Of one register: a page of its own.
const BAR_SIZE: u64 = 4096;

/// The one register: reads as the events that are supported, and takes events.
pub(crate) struct PanicEvents {
    outcome: Arc<Outcome>,
    notices: Notices,
    /// A guest may report it again and again.
    crash_loaded: AtomicBool,
}

impl PanicEvents {
    /// Reports the end of the guest to `outcome`, and what does not end it to `notices`.
    pub(crate) fn new(outcome: Arc<Outcome>, notices: Notices) -> Self {
        Self { outcome, notices, crash_loaded: AtomicBool::new(false) }
    }
}

impl BusDevice for PanicEvents {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let (0, Some(byte)) = (offset, data.first_mut()) {
            *byte = PANICKED | CRASH_LOADED | SHUTDOWN;
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let (0, Some(event)) = (offset, data.first()) else { return };
        if event & PANICKED != 0 {
            self.outcome.report(Exit::Panicked);
        } else if event & CRASH_LOADED != 0 {
            if !self.crash_loaded.swap(true, Ordering::Relaxed) {
                self.notices.notify(Notice::CrashKernelLoaded);
            }
        } else if event & SHUTDOWN != 0 {
            self.outcome.report(Exit::PowerOff);
        }
    }
}

/// The device as a PCI function.
pub(crate) struct PvPanic {
    space: FunctionSpace,
    /// The BAR knows it weakly.
    _events: Arc<PanicEvents>,
}

impl PvPanic {
    /// A function for `events`.
    pub(crate) fn new(events: Arc<PanicEvents>) -> Self {
        let mut config = ConfigSpace::new(Identity {
            vendor: 0x1b36,
            device: 0x0011,
            revision: 1,
            class: 0x08_80_00,
            subsystem: (0x1af4, 0x1100),
        });
        let mut bars = Bars::default();
        let weak: Arc<dyn BusDevice> = events.clone();
        bars.add(&mut config, BAR, BAR_SIZE, Arc::downgrade(&weak));
        Self { space: FunctionSpace::new(config, bars), _events: events }
    }
}

impl Section for PvPanic {
    const TAG: &'static str = "pvpanic";
    const VERSION: u16 = 1;
    type State = ConfigState;

    fn save(&self) -> Result<ConfigState, SectionError> {
        Ok(self.space.save())
    }

    fn load(&self, state: ConfigState) -> Result<(), SectionError> {
        self.space.load(&state)
    }
}

impl Function for PvPanic {
    fn name(&self) -> &'static str {
        "pvpanic"
    }

    fn read_config(&self, register: u16, data: &mut [u8]) {
        self.space.read(register, data);
    }

    fn write_config(&self, register: u16, data: &[u8]) -> Decoding {
        self.space.write(register, data)
    }

    fn attach(&self, slot: &Slot) -> Result<(), RootError> {
        self.space.attach(slot)
    }

    fn retry(&self) {
        self.space.retry();
    }

    fn section(&self) -> Result<&dyn AnySection, SectionError> {
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::bus::Bus;
    use crate::layout::ECAM_START;
    use crate::memory::RamRange;
    use crate::pci::Root;
    use crate::pci::tests::FakePins;

    const CONFIG: u64 = ECAM_START + (1 << 15);

    struct Guest {
        outcome: Arc<Outcome>,
        notices: Arc<Mutex<Vec<Notice>>>,
        events: Arc<PanicEvents>,
    }

    fn guest() -> Guest {
        let (outcome, notices) = (Arc::new(Outcome::default()), Arc::<Mutex<Vec<_>>>::default());
        let listener = {
            let notices = notices.clone();
            Notices::new(move |notice| notices.lock().unwrap().push(notice))
        };
        Guest { events: Arc::new(PanicEvents::new(outcome.clone(), listener)), outcome, notices }
    }

    #[test]
    fn each_event_has_its_consequence() {
        let guest = guest();
        let mut supported = [0xff; 4];
        guest.events.read(0, &mut supported);
        assert_eq!(supported, [7, 0, 0, 0]);
        guest.events.write(0, &[0xf8]);
        guest.events.write(1, &[PANICKED]);
        for _ in 0..3 {
            guest.events.write(0, &[CRASH_LOADED]);
        }
        assert_eq!(*guest.notices.lock().unwrap(), [Notice::CrashKernelLoaded], "reported once");
        assert!(!guest.outcome.is_over());
        guest.events.write(0, &[PANICKED | CRASH_LOADED]);
        assert!(matches!(guest.outcome.wait(), Exit::Panicked));

        let guest = self::guest();
        guest.events.write(0, &[SHUTDOWN, 0, 0, 0]);
        assert!(matches!(guest.outcome.wait(), Exit::PowerOff));
    }

    #[test]
    fn a_driver_finds_the_register_behind_its_bar() {
        let Guest { outcome, events, .. } = guest();
        let (mmio, pio) = (Arc::new(Bus::default()), Arc::new(Bus::default()));
        let ram = [RamRange { start: 0, len: 16 << 20 }];
        let root = Root::new((&mmio, &pio), &ram, Arc::new(FakePins::default())).unwrap();
        let function = Arc::new(PvPanic::new(events));
        root.add(function.clone()).unwrap();
        let mut word = [0; 4];
        mmio.read(CONFIG, &mut word);
        assert_eq!(u32::from_le_bytes(word), 0x0011_1b36);
        mmio.read(CONFIG + 0x10, &mut word);
        let bar = u64::from(u32::from_le_bytes(word) & !0xf);
        assert!(!mmio.write(bar, &[PANICKED]), "decoding is off");
        mmio.write(CONFIG + 4, &[2, 0]);

        let other = PvPanic::new(guest().events);
        other.load(function.save().unwrap()).unwrap();
        assert_eq!(other.save().unwrap(), function.save().unwrap());
        assert!(other.load(vec![0; 256]).is_err(), "that is the state of another function");

        assert!(mmio.write(bar, &[PANICKED]));
        assert!(matches!(outcome.wait(), Exit::Panicked));
    }
}
