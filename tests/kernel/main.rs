//! A guest without an operating system that does to its VM's devices what no driver does, for a time: registers, ports,
//! configuration space, BARs, and rings with descriptors of all kinds.
//!
//! Command line: `seed=N seconds=N`. The same seed does the same. It prints `HOSTILE BEGIN`, and in the end `HOSTILE DONE`
//! with the number of its actions, and switches the VM off; whatever it does before may end or reset the VM earlier.
//!
//! `vireo_tests::kernel` builds it with rustc alone.
#![no_std]
#![no_main]

mod driver;
mod hardware;
mod pci;

use core::arch::global_asm;
use core::panic::PanicInfo;

use driver::Driver;
use hardware::{Clock, Dice, input, out, out_string, peek, poke, say, say_number};
use pci::Function;

global_asm!(include_str!("boot.s"), options(att_syntax));

/// RAM that is nothing of Rust's: rings, then buffers.
pub const RINGS: u64 = 16 << 20;
pub const BUFFERS: u64 = 20 << 20;
pub const BUFFERS_SIZE: u64 = 8 << 20;
/// The VM has no more RAM.
pub const RAM_END: u64 = 64 << 20;

/// Where nothing is, or nothing a driver looks at.
const HOLES: [u64; 10] = [
    0xa_0000,
    0xb000_0000,
    0xc000_0000,
    0xe000_0000,
    0xfec0_0000,
    0xfed0_0000,
    0xfee0_1000,
    0xffc0_0000,
    0x1_0000_0000,
    0x10_0000_0000,
];

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    say("HOSTILE PANIC\n");
    loop {
        core::hint::spin_loop();
    }
}

/// A number of the command line.
fn option(line: u64, name: &[u8]) -> Option<u64> {
    let byte = |at: u64| peek(line + at, 1) as u8;
    for start in 0..256 {
        if byte(start) == 0 {
            return None;
        }
        let is_here = (0_u64..).zip(name).all(|(at, wanted)| byte(start + at) == *wanted);
        if is_here {
            let mut number = 0_u64;
            let mut at = start + name.len() as u64;
            while byte(at).is_ascii_digit() {
                number = number.wrapping_mul(10).wrapping_add(u64::from(byte(at) - b'0'));
                at += 1;
            }
            return Some(number);
        }
    }
    None
}

/// Whether an access would reset the VM, or switch it off.
fn ends_it(port: u16, width: u64) -> bool {
    [0x64, 0x92, 0xcf9, 0x604, 0x605]
        .iter()
        .any(|end| (port..port.saturating_add(width as u16)).contains(end))
}

struct Guest {
    dice: Dice,
    functions: [Function; 32],
    count: usize,
    actions: u64,
}

impl Guest {
    fn ports(&mut self) {
        const KNOWN: [u16; 10] = [0x20, 0x40, 0x60, 0x70, 0x80, 0x3f8, 0x510, 0x600, 0xcf8, 0xc000];
        let dice = &mut self.dice;
        for _ in 0..64 {
            let base = KNOWN[dice.below(10) as usize];
            let port =
                if dice.one_in(4) { dice.roll() as u16 } else { base.wrapping_add(dice.below(16) as u16) };
            let width = dice.width().min(4);
            if ends_it(port, width) && !dice.one_in(2000) {
                continue;
            }
            match dice.below(8) {
                0..4 => out(port, width, dice.value() as u32),
                4 => out_string(port, BUFFERS, dice.below(64)),
                _ => {
                    input(port, width);
                }
            }
        }
    }

    fn holes(&mut self) {
        let dice = &mut self.dice;
        for _ in 0..16 {
            let hole = HOLES[dice.below(10) as usize] + dice.below(0x2000);
            let width = dice.width();
            let value = dice.value();
            if dice.one_in(2) {
                poke(hole, width, value);
            } else {
                peek(hole, width);
            }
        }
    }

    fn configuration(&mut self) {
        let function = self.functions[self.dice.below(self.count as u64) as usize];
        let dice = &mut self.dice;
        for _ in 0..dice.below(32) {
            let register = dice.below(256) as u32;
            // BARs and the command register more often.
            let register = if dice.one_in(3) { 4 + 4 * dice.below(9) as u32 } else { register };
            if dice.one_in(3) {
                function.read(register);
            } else {
                function.write(register, dice.width().min(4), dice.value() as u32);
            }
        }
        if !dice.one_in(4) {
            function.restore();
        }
    }

    fn bars(&mut self) {
        let function = self.functions[self.dice.below(self.count as u64) as usize];
        let dice = &mut self.dice;
        let bar = function.bars[dice.below(6) as usize];
        if bar < 1 << 20 {
            return;
        }
        let size = if dice.one_in(8) { 16 << 20 } else { 0x6000 };
        for _ in 0..32 {
            let width = dice.width();
            let page = dice.below(size) & !0xfff;
            let at =
                bar + page + if dice.one_in(4) { dice.below(0xff8) } else { dice.below(0x40) & !(width - 1) };
            let value = dice.value();
            if dice.one_in(3) {
                peek(at, width);
            } else {
                poke(at, width, value);
            }
        }
    }

    /// One of what a driver does, or would not.
    fn act(&mut self) {
        self.actions += 1;
        match self.dice.below(32) {
            0..2 => self.ports(),
            2 => self.holes(),
            3..5 => self.configuration(),
            5..8 => self.bars(),
            _ => {
                let function = self.functions[self.dice.below(self.count as u64) as usize];
                function.restore();
                if let Some(virtio) = function.virtio {
                    Driver::new(virtio, &mut self.dice).run();
                } else {
                    driver::ahci(&function, &mut self.dice);
                }
            }
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn kernel_main(start_info: u64) {
    let line = peek(start_info + 24, 8);
    let seed = option(line, b"seed=").unwrap_or(1);
    let seconds = option(line, b"seconds=").unwrap_or(10);
    say("HOSTILE BEGIN\n");
    let mut guest =
        Guest { dice: Dice::new(seed), functions: [Function::default(); 32], count: 0, actions: 0 };
    for (device, function) in (0..32).flat_map(|device| (0..8).map(move |function| (device, function))) {
        if let (Some(found), Some(slot)) =
            (Function::at(device, function), guest.functions.get_mut(guest.count))
        {
            *slot = found;
            guest.count += 1;
        }
    }
    let mut clock = Clock::new();
    while clock.seconds() < seconds {
        guest.act();
    }
    say("HOSTILE DONE ");
    say_number(guest.actions);
    say(" actions on ");
    say_number(guest.count as u64);
    say(" functions\n");
    // S5.
    out(0x604, 2, 0x2000);
}
