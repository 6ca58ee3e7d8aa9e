use std::sync::{Mutex, PoisonError};

use super::mode::{Mode, Wanted};
use crate::bus::BusDevice;
use crate::state::SectionError;

/// The VBE "dispi" registers, two bytes each, in the order of their numbers.
const DISPI: u64 = 0x500;
const ID: usize = 0;
const WIDTH: usize = 1;
const HEIGHT: usize = 2;
const BITS: usize = 3;
const ENABLE: usize = 4;
const VIRTUAL_WIDTH: usize = 6;
const VIRTUAL_HEIGHT: usize = 7;
const X_OFFSET: usize = 8;
const Y_OFFSET: usize = 9;
const MEMORY_64K: usize = 10;
pub(super) const COUNT: usize = 11;
/// The version that knows all of them.
const VERSION: u16 = 0xb0c5;
const ENABLED: u16 = 1;

/// QEMU's own: how many bytes of them there are, and the byte order of pixels, which is never another one.
const EXTENDED: u64 = 0x600;
const EXTENDED_VALUES: [u32; 2] = [8, 0x1e1e_1e1e];

/// Whether drivers set it. The height of the virtual display follows from the memory's size.
fn is_writable(index: usize) -> bool {
    const _: () = assert!(VIRTUAL_HEIGHT > VIRTUAL_WIDTH && VIRTUAL_HEIGHT < X_OFFSET);
    matches!(index, WIDTH..=ENABLE | VIRTUAL_WIDTH..=Y_OFFSET)
}

/// The page of registers.
pub(super) struct Registers {
    values: Mutex<[u16; COUNT]>,
    memory: usize,
}

impl Registers {
    /// For `memory` bytes of video memory.
    pub(super) fn new(memory: usize) -> Self {
        let mut values = [0; COUNT];
        values[ID] = VERSION;
        values[MEMORY_64K] = u16::try_from(memory >> 16).unwrap_or(u16::MAX);
        Self { values: Mutex::new(values), memory }
    }

    /// The values of all registers.
    pub(super) fn save(&self) -> [u16; COUNT] {
        *self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes such values over, of the same adapter.
    pub(super) fn restore(&self, saved: [u16; COUNT]) -> Result<(), SectionError> {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let fixed = values.iter().zip(saved).enumerate().filter(|(index, _)| !is_writable(*index));
        if fixed.into_iter().any(|(_, (ours, theirs))| *ours != theirs) {
            return Err(SectionError::Invalid("the adapter has other memory"));
        }
        *values = saved;
        Ok(())
    }

    /// The mode that the registers select.
    pub(super) fn mode(&self) -> Option<Mode> {
        let values = *self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if values[ENABLE] & ENABLED == 0 {
            return None;
        }
        let wanted = Wanted {
            size: (values[WIDTH], values[HEIGHT]),
            bits: values[BITS],
            virtual_width: values[VIRTUAL_WIDTH],
            offset: (values[X_OFFSET], values[Y_OFFSET]),
        };
        Mode::new(wanted, self.memory)
    }

    /// Sets a mode with 32 bits a pixel, as a driver does.
    pub(super) fn set_mode(&self, width: u16, height: u16) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        for (index, value) in
            [(WIDTH, width), (HEIGHT, height), (BITS, 32), (VIRTUAL_WIDTH, width), (ENABLE, ENABLED)]
        {
            values[index] = value;
        }
    }

    fn byte(values: &[u16; COUNT], at: u64) -> u8 {
        let part = |offset: u64, size: u64| {
            let index = usize::try_from(offset / size).ok()?;
            let byte = usize::try_from(offset % size).ok()?;
            Some((index, byte))
        };
        let byte = if let Some((index, byte)) = at.checked_sub(EXTENDED).and_then(|offset| part(offset, 4)) {
            EXTENDED_VALUES.get(index).and_then(|value| value.to_le_bytes().get(byte).copied())
        } else if let Some((index, byte)) = at.checked_sub(DISPI).and_then(|offset| part(offset, 2)) {
            values.get(index).and_then(|value| value.to_le_bytes().get(byte).copied())
        } else {
            // Where others have their EDID and VGA's ports.
            Some(0)
        };
        byte.unwrap_or(0xff)
    }
}

impl BusDevice for Registers {
    fn read(&self, offset: u64, data: &mut [u8]) {
        let values = *self.values.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, byte) in (offset..).zip(data) {
            *byte = Self::byte(&values, at);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let &[low, high] = data else { return };
        let Some(index) = offset.checked_sub(DISPI).filter(|at| at % 2 == 0) else { return };
        let Ok(index) = usize::try_from(index / 2) else { return };
        if is_writable(index) {
            let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(value) = values.get_mut(index) {
                *value = u16::from_le_bytes([low, high]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(registers: &Registers, index: u64, value: u16) {
        registers.write(DISPI + index * 2, &value.to_le_bytes());
    }

    fn get(registers: &Registers, index: u64) -> u16 {
        let mut data = [0; 2];
        registers.read(DISPI + index * 2, &mut data);
        u16::from_le_bytes(data)
    }

    #[test]
    fn drivers_recognise_it() {
        let registers = Registers::new(16 << 20);
        assert_eq!((get(&registers, 0), get(&registers, 10)), (0xb0c5, 256));
        let mut extended = [0; 8];
        registers.read(EXTENDED, &mut extended);
        assert_eq!(extended, [8, 0, 0, 0, 0x1e, 0x1e, 0x1e, 0x1e]);
        let mut edid = [0xff; 8];
        registers.read(0, &mut edid);
        assert_eq!(edid, [0; 8], "no EDID");
    }

    #[test]
    fn a_mode_is_set_register_by_register() {
        let registers = Registers::new(16 << 20);
        for (index, value) in [(1, 1024), (2, 768), (3, 32), (4, 0x41)] {
            assert_eq!(registers.mode(), None);
            set(&registers, index, value);
            assert_eq!(get(&registers, index), value);
        }
        assert_eq!(registers.mode().map(|mode| (mode.width(), mode.height())), Some((1024, 768)));
        set(&registers, 4, 0);
        assert_eq!(registers.mode(), None);
    }

    #[test]
    fn identity_and_memory_stay_what_they_are() {
        let registers = Registers::new(16 << 20);
        set(&registers, 0, 0xb0c0);
        set(&registers, 10, 1);
        set(&registers, 11, 1);
        assert_eq!((get(&registers, 0), get(&registers, 10), get(&registers, 11)), (0xb0c5, 256, 0xffff));
    }

    proptest! {
        #[test]
        fn wild_accesses_are_survived(accesses in prop::collection::vec((0_u64..4096, 1_usize..9, any::<u64>()), 0..50)) {
            let registers = Registers::new(16 << 20);
            for (at, len, value) in accesses {
                let mut data = value.to_le_bytes();
                registers.write(at, &data[..len]);
                registers.read(at, &mut data[..len]);
                let _ = registers.mode();
            }
        }
    }
}
