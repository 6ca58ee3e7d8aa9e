//! Ports, memory and random numbers.

use core::arch::asm;

/// xorshift64: the same for the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit.max(1)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Ends of ranges more often than their middle.
    pub fn value(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << self.below(64),
            3 => u64::MAX - self.below(0x1_0000),
            4 | 5 => self.below(0x100),
            _ => self.roll(),
        }
    }

    /// 1, 2, 4 or 8.
    pub fn width(&mut self) -> u64 {
        1 << self.below(4)
    }
}

pub fn out(port: u16, width: u64, value: u32) {
    // SAFETY: a port access changes no memory of this kernel but by a device, which has none of it that Rust knows.
    unsafe {
        match width {
            1 => asm!("out dx, al", in("dx") port, in("al") value as u8, options(nomem, nostack)),
            2 => asm!("out dx, ax", in("dx") port, in("ax") value as u16, options(nomem, nostack)),
            _ => asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack)),
        }
    }
}

pub fn input(port: u16, width: u64) -> u32 {
    let mut value = 0_u32;
    // SAFETY: as in `out`.
    unsafe {
        match width {
            1 => asm!("in al, dx", in("dx") port, inout("eax") value, options(nomem, nostack)),
            2 => asm!("in ax, dx", in("dx") port, inout("eax") value, options(nomem, nostack)),
            _ => asm!("in eax, dx", in("dx") port, inout("eax") value, options(nomem, nostack)),
        }
    }
    value
}

/// Many bytes at once by a string instruction, from memory of the buffers.
pub fn out_string(port: u16, from: u64, count: u64) {
    // SAFETY: it reads what lies in memory that is nothing of Rust's.
    unsafe {
        asm!("rep outsb", in("dx") port, inout("rsi") from => _, inout("rcx") count => _, options(nostack))
    };
}

/// Writes any address: registers, and memory of rings and buffers.
pub fn poke(at: u64, width: u64, value: u64) {
    // SAFETY: everything is mapped; callers keep to registers and to memory that is nothing of Rust's. Instructions, since
    // the compiler may split what is not aligned.
    unsafe {
        match width {
            1 => asm!("mov [{0}], {1}", in(reg) at, in(reg_byte) value as u8, options(nostack)),
            2 => asm!("mov [{0}], {1:x}", in(reg) at, in(reg) value, options(nostack)),
            4 => asm!("mov [{0}], {1:e}", in(reg) at, in(reg) value, options(nostack)),
            _ => asm!("mov [{0}], {1}", in(reg) at, in(reg) value, options(nostack)),
        }
    }
}

pub fn peek(at: u64, width: u64) -> u64 {
    let mut value = 0_u64;
    // SAFETY: as in `poke`.
    unsafe {
        match width {
            1 => asm!("movzx {1:e}, byte ptr [{0}]", in(reg) at, out(reg) value, options(nostack)),
            2 => asm!("movzx {1:e}, word ptr [{0}]", in(reg) at, out(reg) value, options(nostack)),
            4 => asm!("mov {1:e}, [{0}]", in(reg) at, out(reg) value, options(nostack)),
            _ => asm!("mov {1}, [{0}]", in(reg) at, out(reg) value, options(nostack)),
        }
    }
    value
}

/// The serial port, for what the test waits for.
pub fn say(text: &str) {
    const PORT: u16 = 0x3f8;
    // No interrupts, eight bits, no loopback: whatever it was made before.
    for (register, value) in [(1, 0), (3, 3), (4, 0), (2, 7)] {
        out(PORT + register, 1, value);
    }
    for byte in text.bytes() {
        out(PORT, 1, byte.into());
    }
}

pub fn say_number(mut number: u64) {
    let mut digits = [b'0'; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    say(core::str::from_utf8(&digits[at..]).unwrap_or("?"));
}

/// The timer of the power management block, which nothing can be written to.
pub struct Clock {
    last: u32,
    ticks: u64,
}

impl Clock {
    const HZ: u64 = 3_579_545;

    pub fn new() -> Self {
        Self { last: input(0x608, 4), ticks: 0 }
    }

    pub fn seconds(&mut self) -> u64 {
        let now = input(0x608, 4);
        self.ticks += u64::from(now.wrapping_sub(self.last));
        self.last = now;
        self.ticks / Self::HZ
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack))
    };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("al") byte as u8, options(nostack))
    };
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    for at in 0..count {
        // SAFETY: the caller's promise.
        let (left, right) = unsafe { (left.add(at).read_volatile(), right.add(at).read_volatile()) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(left, right, count) }
}
