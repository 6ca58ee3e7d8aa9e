//! The 256 registers every function has (PCI 3.0, section 6.1), and which of their bits the guest may change.

use super::BarKind;
use crate::state::SectionError;

/// The registers of a function, as they are saved.
pub(crate) type ConfigState = Vec<u8>;

/// COMMAND: responds to port accesses.
const COMMAND_IO: u16 = 1 << 0;
/// COMMAND: responds to memory accesses.
const COMMAND_MEMORY: u16 = 1 << 1;
/// COMMAND: may access memory by itself.
const COMMAND_MASTER: u16 = 1 << 2;
/// COMMAND: must not raise its interrupt line.
const COMMAND_NO_INTX: u16 = 1 << 10;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const STATUS_INTERRUPT: u8 = 1 << 3;
const STATUS_CAPABILITIES: u8 = 1 << 4;
const HEADER_TYPE: usize = 0x0e;
const MULTIFUNCTION: u8 = 1 << 7;
const BAR0: usize = 0x10;
const ROM_BAR: usize = 0x30;
const ROM_ENABLE: u64 = 1;
const CAPABILITIES_POINTER: usize = 0x34;
const INTERRUPT_PIN: usize = 0x3d;
const INTA: u8 = 1;
/// The header ends here; capabilities follow.
const HEADER_END: usize = 0x40;
const SIZE: usize = 256;

/// The identity of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Vendor.
    pub vendor: u16,
    /// Device.
    pub device: u16,
    /// Revision.
    pub revision: u8,
    /// Base class, sub-class and interface in the upper three bytes order of the register: `0xBBSSII`.
    pub class: u32,
    /// Subsystem vendor and id.
    pub subsystem: (u16, u16),
}

/// A function's configuration registers.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: [u8; SIZE],
    writable: [u8; SIZE],
    /// Where the next capability goes, and where the pointer to it is.
    next_capability: usize,
    link: usize,
}

impl ConfigSpace {
    /// A type 0 header whose COMMAND takes memory, I/O, bus master and interrupt disable bits.
    pub fn new(identity: Identity) -> Self {
        let mut config = Self {
            bytes: [0; SIZE],
            writable: [0; SIZE],
            next_capability: HEADER_END,
            link: CAPABILITIES_POINTER,
        };
        config.set(0x00, &identity.vendor.to_le_bytes());
        config.set(0x02, &identity.device.to_le_bytes());
        config.set(0x08, &[identity.revision]);
        let [interface, sub, base, _] = identity.class.to_le_bytes();
        config.set(0x09, &[interface, sub, base]);
        config.set(0x2c, &identity.subsystem.0.to_le_bytes());
        config.set(0x2e, &identity.subsystem.1.to_le_bytes());
        config.allow(COMMAND, &0x0407_u16.to_le_bytes());
        // The interrupt line is firmware's scratch byte.
        config.allow(0x3c, &[0xff]);
        config
    }

    /// Sets registers as reset leaves them. For constants: panics beyond the 256 bytes.
    pub fn set(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// Sets which bits the guest may change. For constants: panics beyond the 256 bytes.
    pub fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Sets the multi-function bit (section 6.2.1).
    pub fn set_multifunction(&mut self) {
        self.bytes[HEADER_TYPE] |= MULTIFUNCTION;
    }

    /// Sets the interrupt pin: INTA#.
    pub fn set_interrupt_pin(&mut self) {
        self.bytes[INTERRUPT_PIN] = INTA;
    }

    /// Sets the interrupt status bit (section 6.2.3), before a read.
    pub fn set_interrupt_status(&mut self, wanted: bool) {
        self.bytes[STATUS] &= !STATUS_INTERRUPT;
        if wanted {
            self.bytes[STATUS] |= STATUS_INTERRUPT;
        }
    }

    /// The number of the expansion ROM among the BARs.
    pub const ROM: usize = 6;

    /// Makes BAR `index` (0 to 5, or [`Self::ROM`]) one of `size` bytes: a power of two, of memory at least 16.
    pub fn add_bar(&mut self, index: usize, kind: BarKind, size: u64) {
        let mask = !(size - 1) & !fixed_bits(kind) | enable_bit(kind);
        self.allow(bar_register(index), &mask.to_le_bytes()[..bar_width(kind)]);
        self.set_bar(index, kind, 0);
    }

    /// Programs a BAR of [`Self::add_bar`].
    pub fn set_bar(&mut self, index: usize, kind: BarKind, address: u64) {
        let value = address & !fixed_bits(kind) | type_bits(kind);
        self.set(bar_register(index), &value.to_le_bytes()[..bar_width(kind)]);
    }

    /// Where a BAR of [`Self::add_bar`] points, while the function answers to such accesses.
    pub fn bar(&self, index: usize, kind: BarKind) -> Option<u64> {
        let at = bar_register(index);
        let value = if bar_width(kind) == 8 { self.u64(at) } else { self.u32(at).into() };
        let needed = match kind {
            BarKind::Memory32 { .. } | BarKind::Memory64 { .. } | BarKind::Rom => COMMAND_MEMORY,
            BarKind::Io => COMMAND_IO,
        };
        let enabled = self.command() & needed != 0 && value & enable_bit(kind) == enable_bit(kind);
        enabled.then_some(value & !fixed_bits(kind) & !enable_bit(kind))
    }

    /// Whether it may access memory by itself.
    pub fn is_bus_master(&self) -> bool {
        self.command() & COMMAND_MASTER != 0
    }

    /// Whether it must not raise its interrupt line.
    pub fn is_intx_disabled(&self) -> bool {
        self.command() & COMMAND_NO_INTX != 0
    }

    fn command(&self) -> u16 {
        self.u16(COMMAND)
    }

    /// Appends a capability; `body` begins behind the id and the pointer to the next. Answers where it begins.
    /// For constants: panics when the 192 bytes are used up.
    pub fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> u8 {
        let at = self.next_capability;
        self.set(at, &[id, 0]);
        self.set(at + 2, body);
        self.allow(at + 2, writable);
        let offset = u8::try_from(at).expect("capabilities lie in the first 256 bytes");
        self.set(self.link, &[offset]);
        self.bytes[STATUS] |= STATUS_CAPABILITIES;
        self.link = at + 1;
        self.next_capability = (at + 2 + body.len()).next_multiple_of(4);
        offset
    }

    /// What the guest reads. Registers of the extended space (from 256) read as zeros: no extended capability.
    pub fn read(&self, register: u16, data: &mut [u8]) {
        for (at, byte) in (usize::from(register)..).zip(data) {
            *byte = self.bytes.get(at).copied().unwrap_or(0);
        }
    }

    /// What the guest writes, as far as it may.
    pub fn write(&mut self, register: u16, data: &[u8]) {
        for (at, new) in (usize::from(register)..).zip(data) {
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = *byte & !mask | new & mask;
            }
        }
    }

    /// The registers now.
    pub(crate) fn save(&self) -> ConfigState {
        self.bytes.to_vec()
    }

    /// Takes the bits that a guest can change. The others have to be as they are: they are what the function is.
    pub(crate) fn load(&mut self, state: &[u8]) -> Result<(), SectionError> {
        const OTHER: SectionError = SectionError::Invalid("it is the state of another PCI function");
        let Ok(saved) = <&[u8; SIZE]>::try_from(state) else { return Err(OTHER) };
        let registers = || self.bytes.iter().zip(&self.writable).zip(saved).enumerate();
        let fixed = |at: usize| if at == STATUS { !STATUS_INTERRUPT } else { 0xff };
        if registers().any(|(at, ((ours, mask), theirs))| (ours ^ theirs) & !mask & fixed(at) != 0) {
            return Err(OTHER);
        }
        for ((byte, mask), saved) in self.bytes.iter_mut().zip(&self.writable).zip(saved) {
            *byte = *byte & !mask | saved & mask;
        }
        Ok(())
    }

    /// A dword at a constant offset.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]))
    }

    /// A word at a constant offset.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// A qword at a constant offset.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]))
    }
}

fn bar_register(index: usize) -> usize {
    if index == ConfigSpace::ROM { ROM_BAR } else { BAR0 + 4 * index }
}

/// In bytes.
fn bar_width(kind: BarKind) -> usize {
    match kind {
        BarKind::Memory64 { .. } => 8,
        BarKind::Memory32 { .. } | BarKind::Io | BarKind::Rom => 4,
    }
}

/// The low bits that are not part of the address.
fn fixed_bits(kind: BarKind) -> u64 {
    match kind {
        BarKind::Memory32 { .. } | BarKind::Memory64 { .. } => 0xf,
        BarKind::Io => 0x3,
        BarKind::Rom => 0x7ff,
    }
}

/// What the fixed bits read as.
fn type_bits(kind: BarKind) -> u64 {
    match kind {
        BarKind::Memory32 { prefetchable } => u64::from(prefetchable) << 3,
        BarKind::Memory64 { prefetchable } => u64::from(prefetchable) << 3 | 0b100,
        BarKind::Io => 1,
        BarKind::Rom => 0,
    }
}

fn enable_bit(kind: BarKind) -> u64 {
    if kind == BarKind::Rom { ROM_ENABLE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY64: BarKind = BarKind::Memory64 { prefetchable: false };

    const IDENTITY: Identity =
        Identity { vendor: 0x1af4, device: 0x1042, revision: 1, class: 0x01_00_00, subsystem: (1, 2) };

    fn read32(config: &ConfigSpace, register: u16) -> u32 {
        let mut data = [0; 4];
        config.read(register, &mut data);
        u32::from_le_bytes(data)
    }

    #[test]
    fn the_size_of_a_bar_reads_back_from_ones() {
        let mut config = ConfigSpace::new(IDENTITY);
        let memory32 = BarKind::Memory32 { prefetchable: true };
        config.add_bar(0, MEMORY64, 0x8000);
        config.add_bar(2, memory32, 0x100_0000);
        config.add_bar(4, BarKind::Io, 32);
        config.add_bar(ConfigSpace::ROM, BarKind::Rom, 0x1_0000);
        config.write(0x10, &[0xff; 24]);
        config.write(0x30, &[0xff; 4]);
        let read = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x30].map(|at| read32(&config, at));
        assert_eq!(read, [0xffff_8004, 0xffff_ffff, 0xff00_0008, 0, 0xffff_ffe1, 0, 0xffff_0001]);
        for (index, kind) in [(0, MEMORY64), (2, memory32), (4, BarKind::Io), (6, BarKind::Rom)] {
            assert_eq!(config.bar(index, kind), None, "decoding is off");
        }
    }

    #[test]
    fn a_bar_points_somewhere_while_its_kind_is_decoded() {
        let mut config = ConfigSpace::new(IDENTITY);
        config.add_bar(0, MEMORY64, 0x8000);
        config.add_bar(4, BarKind::Io, 32);
        config.add_bar(ConfigSpace::ROM, BarKind::Rom, 0x1_0000);
        config.write(0x10, &0x12_3456_7890_u64.to_le_bytes());
        config.write(0x20, &0xc047_u32.to_le_bytes());
        config.write(0x30, &0xc012_0000_u32.to_le_bytes());
        let bars = |config: &ConfigSpace| {
            [(0, MEMORY64), (4, BarKind::Io), (6, BarKind::Rom)].map(|(at, kind)| config.bar(at, kind))
        };
        assert_eq!(bars(&config), [None; 3]);
        config.write(0x04, &[1]);
        assert_eq!(bars(&config), [None, Some(0xc040), None]);
        config.write(0x04, &[2]);
        assert_eq!(bars(&config), [Some(0x12_3456_0000), None, None], "the ROM has a bit of its own");
        config.write(0x30, &[1]);
        assert_eq!(bars(&config), [Some(0x12_3456_0000), None, Some(0xc012_0000)]);
        config.write(0x04, &[1]);
        assert_eq!(bars(&config), [None, Some(0xc040), None]);
    }

    #[test]
    fn capabilities_are_linked_and_announced() {
        let mut config = ConfigSpace::new(IDENTITY);
        assert_eq!(read32(&config, 0x34), 0);
        assert_eq!(config.add_capability(0x09, &[16, 1], &[]), 0x40);
        assert_eq!(config.add_capability(0x11, &[0; 10], &[0, 0xc0]), 0x44);
        assert_eq!(read32(&config, 0x34), 0x40);
        assert_eq!(read32(&config, 0x40), 0x0110_4409);
        assert_eq!(read32(&config, 0x44), 0x0000_0011);
        assert_eq!(config.u16(0x06) & 0x10, 0x10);
        config.write(0x46, &[0xff, 0xff]);
        assert_eq!(read32(&config, 0x44), 0xc000_0011);
    }

    #[test]
    fn identity_is_read_only_and_the_extended_space_is_empty() {
        let mut config = ConfigSpace::new(IDENTITY);
        config.write(0, &[0; 4]);
        assert_eq!(read32(&config, 0), 0x1042_1af4);
        assert_eq!(read32(&config, 8), 0x0100_0001);
        config.write(0xffe, &[0; 4]);
        assert_eq!(read32(&config, 0x100), 0);
    }
}
