use std::fmt;

/// Where a function is (PCI 3.0, section 3.2.2.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    bus: u8,
    devfn: u8,
}

/// A configuration register of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register {
    pub(super) address: Address,
    pub(super) offset: u16,
}

impl Address {
    /// Function 0 of `device` (0 to 31) on the root bus.
    pub const fn root(device: u8) -> Self {
        Self { bus: 0, devfn: (device & 0x1f) << 3 }
    }

    /// `function` (0 to 7) of `device` (0 to 31) on the root bus.
    pub const fn root_function(device: u8, function: u8) -> Self {
        Self { bus: 0, devfn: (device & 0x1f) << 3 | function & 7 }
    }

    /// The bus.
    pub fn bus(self) -> u8 {
        self.bus
    }

    /// The device, 0 to 31.
    pub fn device(self) -> u8 {
        self.devfn >> 3
    }

    /// The function, 0 to 7.
    pub fn function(self) -> u8 {
        self.devfn & 7
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}:{:02x}.{}", self.bus, self.device(), self.function())
    }
}

impl Register {
    /// From an offset into the memory-mapped window: bits 27-20 bus, 19-12 device and function, 11-0 register.
    pub(super) fn from_ecam(offset: u64) -> Self {
        let [low, mid, high, top, ..] = offset.to_le_bytes();
        Self {
            address: Address { bus: (top & 0x0f) << 4 | high >> 4, devfn: (high & 0x0f) << 4 | mid >> 4 },
            offset: u16::from_le_bytes([low, mid & 0x0f]),
        }
    }

    /// From the value of port 0xCF8, where its enable bit is set; `byte` is the offset into port 0xCFC.
    pub(super) fn from_ports(value: u32, byte: u8) -> Option<Self> {
        let [register, devfn, bus, top] = value.to_le_bytes();
        let offset = u16::from(register & 0xfc) + u16::from(byte & 3);
        (top & 0x80 != 0).then_some(Self { address: Address { bus, devfn }, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_name_the_same_register() {
        let want = Register { address: Address { bus: 0xab, devfn: 0x1f << 3 | 5 }, offset: 0x42 };
        assert_eq!(Register::from_ecam(0xab << 20 | 0x1f << 15 | 5 << 12 | 0x42), want);
        assert_eq!(Register::from_ports(0x80ab_fd40, 2), Some(want));
        assert_eq!(Register::from_ports(0x00ab_fd40, 2), None);
        assert_eq!(Register::from_ecam(0x0fff_ffff).address.to_string(), "ff:1f.7");
    }
}
