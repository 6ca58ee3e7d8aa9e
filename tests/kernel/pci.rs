//! Functions on the first bus, by ports.

use crate::hardware::{input, out};

#[derive(Clone, Copy, Default)]
pub struct Function {
    address: u32,
    pub ids: u32,
    /// Addresses that the monitor gave its BARs, and how they are written.
    pub bars: [u64; 6],
    words: [u32; 6],
    pub virtio: Option<Virtio>,
}

/// Where a virtio function has its registers.
#[derive(Clone, Copy, Default)]
pub struct Virtio {
    pub kind: u16,
    pub common: u64,
    pub notify: u64,
    pub multiplier: u64,
    pub isr: u64,
    pub device: u64,
}

impl Function {
    /// The function at an address, if there is one.
    pub fn at(device: u32, function: u32) -> Option<Self> {
        let mut found = Self { address: 1 << 31 | device << 11 | function << 8, ..Self::default() };
        found.ids = found.read(0);
        if found.ids as u16 == 0xffff {
            return None;
        }
        for index in 0..6 {
            found.words[index] = found.read(0x10 + 4 * index as u32);
        }
        let mut index = 0;
        while index < 6 {
            let word = found.words[index];
            let wide = word & 7 == 4 && index < 5;
            let high = if wide { u64::from(found.words[index + 1]) << 32 } else { 0 };
            let mask = if word & 1 == 0 { !0xf } else { !3 };
            found.bars[index] = high | u64::from(word & mask);
            index += if wide { 2 } else { 1 };
        }
        if found.ids as u16 == 0x1af4 {
            found.virtio = Some(found.registers());
        }
        Some(found)
    }

    pub fn read(&self, register: u32) -> u32 {
        out(0xcf8, 4, self.address | register & 0xfc);
        input(0xcfc, 4)
    }

    pub fn write(&self, register: u32, width: u64, value: u32) {
        out(0xcf8, 4, self.address | register & 0xfc);
        out(0xcfc + (register & 3) as u16, width, value);
    }

    /// Undoes what was written to its BARs and its command register.
    pub fn restore(&self) {
        self.write(4, 2, 0);
        for (index, word) in (0..).zip(self.words) {
            self.write(0x10 + 4 * index, 4, word);
        }
        self.write(4, 2, 7);
    }

    fn registers(&self) -> Virtio {
        let mut virtio = Virtio { kind: ((self.ids >> 16) as u16).wrapping_sub(0x1040), ..Virtio::default() };
        let mut at = self.read(0x34) & 0xfc;
        for _ in 0..48 {
            let head = self.read(at);
            if at == 0 {
                break;
            }
            if head as u8 == 9 {
                let bar = (self.read(at + 4) & 7) as usize;
                let address = self.bars.get(bar).copied().unwrap_or(0) + u64::from(self.read(at + 8));
                match head >> 24 {
                    1 => virtio.common = address,
                    2 => {
                        virtio.notify = address;
                        virtio.multiplier = u64::from(self.read(at + 16));
                    }
                    3 => virtio.isr = address,
                    4 => virtio.device = address,
                    _ => {}
                }
            }
            at = head >> 8 & 0xfc;
        }
        virtio
    }
}
