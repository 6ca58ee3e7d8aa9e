use std::sync::atomic::{AtomicU8, Ordering};

use super::super::DeviceConfig;
use super::super::device::copy_from;
use super::events::{
    ABS_MAX, ABS_X, ABS_Y, BUTTONS, EV_ABS, EV_KEY, EV_LED, EV_REL, EV_REP, REL_HWHEEL, REL_WHEEL,
};
use crate::display::Key;
use crate::state::{Section, SectionError};

// The selectors (section 5.8.4).
const ID_NAME: u8 = 0x01;
const ID_DEVIDS: u8 = 0x03;
const EV_BITS: u8 = 0x11;
const ABS_INFO: u8 = 0x12;
/// `select`, `subsel`, `size`, five reserved bytes, and the answer.
const ANSWER: usize = 8;
const MAX_ANSWER: usize = 128;
const SIZE: usize = ANSWER + MAX_ANSWER;
/// Linux's bus type for virtual devices.
const BUS_VIRTUAL: u16 = 6;
const VENDOR: u16 = 0x1af4;
const VERSION: u16 = 1;
/// Num, caps and scroll lock.
const LEDS: [u16; 3] = [0, 1, 2];

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tablet,
    Keyboard,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tablet => "tablet",
            Self::Keyboard => "keyboard",
        }
    }

    /// PCI's class for it.
    pub(super) fn class(self) -> u32 {
        match self {
            Self::Tablet => 0x09_80_00,
            Self::Keyboard => 0x09_00_00,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Tablet => "Vireo tablet",
            Self::Keyboard => "Vireo keyboard",
        }
    }

    fn product(self) -> u16 {
        match self {
            Self::Keyboard => 1,
            Self::Tablet => 3,
        }
    }

    /// The selected item; empty if there is none.
    fn answer(self, select: u8, about: u8) -> Vec<u8> {
        match (select, u16::from(about)) {
            (ID_NAME, 0) => self.title().into(),
            (ID_DEVIDS, 0) => [BUS_VIRTUAL, VENDOR, self.product(), VERSION]
                .into_iter()
                .flat_map(u16::to_le_bytes)
                .collect(),
            (EV_BITS, kind) => self.codes(kind),
            (ABS_INFO, ABS_X | ABS_Y) if self == Self::Tablet => {
                // min, max, fuzz, flat, res
                [0, ABS_MAX, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect()
            }
            // No serial number, and none of the properties that Linux knows.
            _ => Vec::new(),
        }
    }

    /// The codes that events of this kind have.
    fn codes(self, kind: u16) -> Vec<u8> {
        match (self, kind) {
            (Self::Tablet, EV_KEY) => bits(BUTTONS.map(|(_, code)| code)),
            (Self::Tablet, EV_REL) => bits([REL_WHEEL, REL_HWHEEL]),
            (Self::Tablet, EV_ABS) => bits([ABS_X, ABS_Y]),
            (Self::Keyboard, EV_KEY) => bits(Key::all().filter_map(Key::evdev)),
            (Self::Keyboard, EV_LED) => bits(LEDS),
            // The delay and the period.
            (Self::Keyboard, EV_REP) => bits([0, 1]),
            _ => Vec::new(),
        }
    }
}

/// A bit for each code, lowest first.
fn bits(codes: impl IntoIterator<Item = u16>) -> Vec<u8> {
    let mut bits = Vec::new();
    for code in codes {
        let at = usize::from(code / 8);
        if bits.len() <= at {
            bits.resize(at + 1, 0);
        }
        if let Some(byte) = bits.get_mut(at) {
            *byte |= 1 << (code % 8);
        }
    }
    bits
}

/// What is saved: what the driver selected.
impl Section for Config {
    const TAG: &'static str = "virtio-input";
    const VERSION: u16 = 1;
    type State = (u8, u8);

    fn save(&self) -> Result<(u8, u8), SectionError> {
        Ok((self.select.load(Ordering::SeqCst), self.about.load(Ordering::SeqCst)))
    }

    fn load(&self, (select, about): (u8, u8)) -> Result<(), SectionError> {
        self.select.store(select, Ordering::SeqCst);
        self.about.store(about, Ordering::SeqCst);
        Ok(())
    }
}

/// The configuration space: the driver selects what it reads.
#[derive(Debug)]
pub(super) struct Config {
    kind: Kind,
    select: AtomicU8,
    about: AtomicU8,
}

impl Config {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, select: AtomicU8::new(0), about: AtomicU8::new(0) }
    }
}

impl DeviceConfig for Config {
    fn size(&self) -> usize {
        SIZE
    }

    fn read(&self, offset: usize, data: &mut [u8]) {
        let (select, about) = (self.select.load(Ordering::SeqCst), self.about.load(Ordering::SeqCst));
        let mut answer = self.kind.answer(select, about);
        answer.truncate(MAX_ANSWER);
        let size = u8::try_from(answer.len()).unwrap_or(0);
        let mut space = vec![select, about, size, 0, 0, 0, 0, 0];
        space.extend(answer);
        copy_from(&space, offset, data);
    }

    fn write(&self, offset: usize, data: &[u8]) -> bool {
        for (at, byte) in (offset..).zip(data) {
            match at {
                0 => self.select.store(*byte, Ordering::SeqCst),
                1 => self.about.store(*byte, Ordering::SeqCst),
                _ => {}
            }
        }
        false
    }
}
