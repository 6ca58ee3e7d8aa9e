//! Rings and requests that no driver makes.

use crate::hardware::{Dice, peek, poke};
use crate::pci::{Function, Virtio};
use crate::{BUFFERS, BUFFERS_SIZE, RAM_END, RINGS};

const NEXT: u64 = 1;
const WRITE: u64 = 2;
const INDIRECT: u64 = 4;

const NET: u16 = 1;
const BLOCK: u16 = 2;
const CONSOLE: u16 = 3;
const SCSI: u16 = 8;
const GPU: u16 = 16;

/// How far apart rings are, and their parts in them.
const RING_SIZE: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x8000;
const USED: u64 = 0xc000;

pub struct Driver<'a> {
    registers: Virtio,
    dice: &'a mut Dice,
    queues: u64,
    size: u64,
    /// By queue, what was made available.
    available: [u16; 16],
}

impl<'a> Driver<'a> {
    pub fn new(registers: Virtio, dice: &'a mut Dice) -> Self {
        Self { registers, dice, queues: 0, size: 0, available: [0; 16] }
    }

    fn write(&self, at: u64, width: u64, value: u64) {
        poke(self.registers.common + at, width, value);
    }

    fn read(&self, at: u64, width: u64) -> u64 {
        peek(self.registers.common + at, width)
    }

    /// From the handshake to a device that is left alone, in whatever state.
    pub fn run(&mut self) {
        if self.registers.common == 0 || self.registers.notify == 0 {
            return;
        }
        if !self.dice.one_in(8) {
            self.reset();
        }
        self.negotiate();
        for _ in 0..self.dice.below(24) {
            match self.dice.below(16) {
                0 => self.corrupt(),
                1 => {
                    let (at, width, value) = (self.dice.below(0x40), self.dice.width(), self.dice.value());
                    self.write(at, width, value);
                }
                2 if self.registers.device != 0 => {
                    let (at, width, value) = (self.dice.below(0x40), self.dice.width(), self.dice.value());
                    poke(self.registers.device + at, width, value);
                    peek(self.registers.device + at, width);
                }
                3 => {
                    peek(self.registers.isr, 1);
                }
                _ => self.request(),
            }
        }
    }

    fn reset(&self) {
        self.write(0x14, 1, 0);
        // A device that never comes back is the test's business, which waits for what is said in the end.
        for _ in 0..20_000 {
            if matches!(self.read(0x14, 1), 0 | 0xff) {
                return;
            }
        }
    }

    fn negotiate(&mut self) {
        self.write(0x14, 1, 1);
        self.write(0x14, 1, 3);
        for half in 0..2 {
            self.write(0, 4, half);
            let offered = self.read(4, 4);
            let wild = if self.dice.one_in(32) { u64::MAX } else { offered };
            // With VERSION_1, or the device would not start.
            let wanted =
                if self.dice.one_in(2) { u64::MAX } else { self.dice.roll() } | if half == 1 { 1 } else { 0 };
            self.write(8, 4, half);
            self.write(12, 4, wild & wanted);
        }
        self.write(0x14, 1, 0xb);
        self.queues = self.read(0x12, 2).clamp(1, 16);
        self.size = 1 << self.dice.below(9);
        self.available = [0; 16];
        for queue in 0..self.queues {
            let base = RINGS + queue * RING_SIZE;
            for at in (0..RING_SIZE).step_by(8) {
                poke(base + at, 8, 0);
            }
            self.write(0x16, 2, queue);
            let size = if self.dice.one_in(16) { self.dice.value() } else { self.size };
            let vector = if self.dice.one_in(4) { self.dice.value() } else { queue };
            self.write(0x18, 2, size);
            self.write(0x1a, 2, vector);
            for (register, part) in [(0x20, 0), (0x28, AVAILABLE), (0x30, USED)] {
                let address = if self.dice.one_in(64) { self.address() } else { base + part };
                self.write(register, 4, address & 0xffff_ffff);
                self.write(register + 4, 4, address >> 32);
            }
            if !self.dice.one_in(16) {
                self.write(0x1c, 2, 1);
            }
        }
        if !self.dice.one_in(16) {
            self.write(0x14, 1, 0xf);
        }
    }

    /// Of a buffer, mostly; else outside of RAM, or where RAM ends.
    fn address(&mut self) -> u64 {
        match self.dice.below(32) {
            0 => self.dice.value() | RAM_END,
            1 => RAM_END - self.dice.below(0x100),
            2 => u64::MAX - self.dice.below(0x1000),
            3 => RINGS + self.dice.below(RING_SIZE * 4),
            _ => BUFFERS + self.dice.below(BUFFERS_SIZE),
        }
    }

    fn length(&mut self) -> u64 {
        match self.dice.below(16) {
            0 => 0,
            1 => self.dice.value() & 0xffff_ffff,
            2 => self.dice.below(BUFFERS_SIZE),
            3..8 => 512 << self.dice.below(5),
            _ => 1 + self.dice.below(2048),
        }
    }

    fn descriptor(&mut self, table: u64, index: u64, (address, len, flags): (u64, u64, u64)) {
        let at = table + 16 * index;
        let next = if self.dice.one_in(64) { self.dice.value() } else { index + 1 };
        let flags = if self.dice.one_in(64) { self.dice.value() } else { flags };
        poke(at, 8, address);
        poke(at + 8, 4, len);
        poke(at + 12, 2, flags);
        poke(at + 14, 2, next);
    }

    /// A header that the device knows, or nearly.
    fn header(&mut self, at: u64) -> u64 {
        for word in 0..16 {
            poke(at + 4 * word, 4, self.dice.value());
        }
        match self.registers.kind {
            BLOCK => {
                const KINDS: [u64; 8] = [0, 1, 4, 8, 11, 13, 2, 0];
                poke(at, 4, KINDS[self.dice.below(8) as usize]);
                if !self.dice.one_in(4) {
                    poke(at + 8, 8, self.dice.below(40_000));
                }
                16
            }
            NET => {
                // A header without offloads, mostly; or a control command.
                for word in 0..3 {
                    poke(at + 4 * word, 4, if self.dice.one_in(3) { self.dice.value() } else { 0 });
                }
                if self.dice.one_in(2) { 12 } else { 12 + self.dice.below(1600) }
            }
            SCSI => {
                const OPCODES: [u64; 12] =
                    [0x00, 0x03, 0x12, 0x1a, 0x25, 0x28, 0x2a, 0x35, 0x41, 0x42, 0x9e, 0xa0];
                poke(at, 4, 0x0040_0001 | self.dice.below(4) << 8);
                poke(at + 4, 4, 0);
                poke(at + 19, 1, OPCODES[self.dice.below(12) as usize]);
                51
            }
            GPU => {
                let kind = if self.dice.one_in(8) { 0x300 } else { 0x100 } + self.dice.below(12);
                poke(at, 4, kind);
                poke(at + 24, 4, 1 + self.dice.below(3));
                poke(at + 32, 4, self.dice.below(256));
                poke(at + 36, 4, self.dice.below(256));
                24 + 8 * self.dice.below(5)
            }
            CONSOLE => {
                poke(at, 4, 0);
                poke(at + 4, 4, self.dice.below(9) | 1 << 16);
                8
            }
            _ => 1 + self.dice.below(64),
        }
    }

    /// Chains, made available and announced.
    fn request(&mut self) {
        let queue = self.dice.below(self.queues);
        let base = RINGS + queue * RING_SIZE;
        for _ in 0..1 + self.dice.below(4) {
            let head = self.dice.below(self.size);
            let count = 1 + self.dice.below(6);
            let at = BUFFERS + self.dice.below(64) * 0x1000;
            let len = self.header(at);
            let indirect = self.dice.one_in(6);
            let (table, first) = if indirect { (BUFFERS + BUFFERS_SIZE, 0) } else { (base, head) };
            for step in 0..count {
                let more = if step + 1 < count { NEXT } else { 0 };
                let writes = if step * 2 >= count { WRITE } else { 0 };
                let buffer = match step {
                    0 => (at, len, more),
                    _ if step + 1 == count && self.registers.kind == BLOCK => (at + 0x800, 1, WRITE),
                    _ => (self.address(), self.length(), more | writes),
                };
                self.descriptor(table, (first + step) % 256, buffer);
            }
            if indirect {
                self.descriptor(base, head, (table, count * 16, INDIRECT));
            }
            let head = if self.dice.one_in(64) { self.dice.value() } else { head };
            let slot = u64::from(self.available[queue as usize]) % self.size;
            poke(base + AVAILABLE + 4 + 2 * slot, 2, head);
            let jump = if self.dice.one_in(256) { self.dice.value() as u16 } else { 1 };
            self.available[queue as usize] = self.available[queue as usize].wrapping_add(jump);
            poke(base + AVAILABLE + 2, 2, self.available[queue as usize].into());
        }
        let queue = if self.dice.one_in(32) { self.dice.below(64) } else { queue };
        poke(self.registers.notify + queue * self.registers.multiplier, 2, queue);
    }

    /// Changes rings and buffers while the device may read them.
    fn corrupt(&mut self) {
        for _ in 0..self.dice.below(16) {
            let at = if self.dice.one_in(2) {
                RINGS + self.dice.below(self.queues * RING_SIZE)
            } else {
                BUFFERS + self.dice.below(64 << 12)
            };
            let (width, value) = (self.dice.width(), self.dice.value());
            poke(at, width, value);
        }
    }
}

/// Command lists of the SATA controller: tables with commands, and registers that start them.
pub fn ahci(function: &Function, dice: &mut Dice) {
    const LIST: u64 = RINGS;
    const RECEIVED: u64 = RINGS + 0x1000;
    const TABLES: u64 = RINGS + 0x2000;
    const COMMANDS: [u64; 10] = [0xec, 0x25, 0x35, 0xc8, 0xca, 0xea, 0xa0, 0x06, 0x60, 0x61];
    if function.ids != 0x2922_8086 {
        return;
    }
    let port = function.bars[5] + 0x100 + 0x80 * dice.below(6);
    poke(function.bars[5] + 4, 4, 2);
    for slot in 0..32 {
        let (header, table) = (LIST + 32 * slot, TABLES + 0x1000 * slot);
        let length =
            if dice.one_in(16) { dice.value() } else { 5 | dice.below(4) << 5 | dice.below(8) << 16 };
        poke(header, 4, length);
        poke(header + 8, 8, if dice.one_in(32) { dice.value() } else { table });
        for word in 0..8 {
            poke(table + 8 * word, 8, dice.value());
        }
        poke(table, 4, 0x8027 | COMMANDS[dice.below(10) as usize] << 16);
        for entry in 0..8 {
            let at = table + 0x80 + 16 * entry;
            poke(
                at,
                8,
                if dice.one_in(16) { dice.value() | RAM_END } else { BUFFERS + dice.below(BUFFERS_SIZE) },
            );
            poke(at + 12, 4, if dice.one_in(16) { dice.value() } else { dice.below(0x2000) | 1 });
        }
    }
    for (register, value) in
        [(0, LIST), (4, 0), (8, RECEIVED), (12, 0), (0x30, u64::MAX), (0x10, u64::MAX), (0x14, u64::MAX)]
    {
        poke(port + register, 4, value);
    }
    poke(port + 0x18, 4, 0x11);
    for _ in 0..dice.below(8) {
        poke(port + 0x38, 4, dice.value());
    }
    for _ in 0..dice.below(4) {
        poke(port + 4 * dice.below(0x20), 4, dice.value());
    }
}
