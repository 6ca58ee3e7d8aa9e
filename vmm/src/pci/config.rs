//! The 256 registers every function has (PCI 3.0, section 6.1), and which of their bits the guest may change.

/// COMMAND: responds to memory accesses.
const COMMAND_MEMORY: u8 = 1 << 1;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u8 = 1 << 4;
const BAR0: usize = 0x10;
const CAPABILITIES_POINTER: usize = 0x34;
/// The header ends here; capabilities follow.
const HEADER_END: usize = 0x40;
const SIZE: usize = 256;

/// What a function says it is.
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

    /// Says which bits the guest may change. For constants: panics beyond the 256 bytes.
    pub fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Makes BAR 0 and 1 one 64-bit memory BAR of `size` bytes, a power of two from 16.
    pub fn set_bar64(&mut self, size: u64) {
        let mask = !(size - 1);
        self.allow(BAR0, &mask.to_le_bytes());
        self.set_bar64_address(0);
    }

    /// Programs the BAR of [`Self::set_bar64`].
    pub fn set_bar64_address(&mut self, address: u64) {
        const MEMORY64: u64 = 0b100;
        self.set(BAR0, &(address & !0xf | MEMORY64).to_le_bytes());
    }

    /// Where BAR 0 (64-bit) points, while the function answers to memory accesses.
    pub fn bar64(&self) -> Option<u64> {
        let on = self.bytes[COMMAND] & COMMAND_MEMORY != 0;
        on.then(|| self.u64(BAR0) & !0xf)
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

    /// A dword at a constant place.
    pub fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]))
    }

    /// A word at a constant place.
    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// A qword at a constant place.
    pub fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        config.set_bar64(0x8000);
        config.write(0x10, &[0xff; 8]);
        assert_eq!((read32(&config, 0x10), read32(&config, 0x14)), (0xffff_8004, 0xffff_ffff));
        assert_eq!(config.bar64(), None, "memory decoding is off");
        config.write(0x10, &0x12_3456_7890_u64.to_le_bytes());
        config.write(0x04, &[2]);
        assert_eq!(config.bar64(), Some(0x12_3456_0000));
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
