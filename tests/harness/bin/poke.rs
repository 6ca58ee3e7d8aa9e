//! Runs in a test guest as root and accesses the VM's hardware as no driver would. Deterministic for a seed.

use std::arch::asm;
use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const USAGE: &str = "usage: poke config|ports|bars|holes SEED COUNT";
const PAGE: usize = 4096;
/// Where nothing, or nothing a driver looks at, answers: below the firmware, around the interrupt controllers, in
/// the 32-bit and the 64-bit PCI windows.
const HOLES: &[u64] = &[
    0xa_0000,
    0xc_0000,
    0xe000_0000,
    0xe800_0000,
    0xefff_f000,
    0xf000_0000,
    0xfc00_0000,
    0xfeb0_0000,
    0xfec0_1000,
    0xfed0_0000,
    0xfed4_0000,
    0xfee0_1000,
    0xffc0_0000,
    0xffff_f000,
    0x3f_ffff_f000,
    0x40_0000_0000,
];

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
    let (Some(what), [seed, count]) = (words.first(), numbers.as_slice()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let done = match what.as_str() {
        "config" => config(&mut dice, *count),
        "ports" => ports(&mut dice, *count),
        "bars" => bars(&mut dice, *count),
        "holes" => HOLES.iter().try_for_each(|hole| {
            let memory = OpenOptions::new().read(true).write(true).open("/dev/mem")?;
            poke(&memory, *hole, PAGE, &mut dice, *count)
        }),
        _ => Err(io::Error::other(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("poke {what}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// xorshift64: the same pokes for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.roll() % (limit.max(1) as u64)).unwrap_or_default()
    }

    /// Ends of ranges more often than their middle.
    fn value(&mut self) -> u64 {
        match self.roll() % 6 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << (self.roll() % 64),
            3 => u64::MAX - (self.roll() % 0x1_0000),
            _ => self.roll(),
        }
    }

    fn width(&mut self) -> usize {
        1 << self.below(4)
    }
}

fn pci_functions() -> io::Result<Vec<PathBuf>> {
    let mut functions: Vec<_> =
        fs::read_dir("/sys/bus/pci/devices")?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    functions.sort();
    Ok(functions)
}

fn config(dice: &mut Dice, count: u64) -> io::Result<()> {
    for function in pci_functions()? {
        let space = OpenOptions::new().read(true).write(true).open(function.join("config"))?;
        let size = usize::try_from(space.metadata()?.len()).unwrap_or(256);
        for _ in 0..count {
            let width = dice.width().min(4);
            let at = dice.below(size) as u64;
            let value = dice.value().to_le_bytes();
            let mut seen = [0; 8];
            // Writes past the end are rejected by the kernel, not by the VM.
            let _ = space.write_at(value.get(..width).unwrap_or_default(), at);
            let _ = space.read_at(seen.get_mut(..width).unwrap_or_default(), at);
        }
    }
    Ok(())
}

fn ports(dice: &mut Dice, count: u64) -> io::Result<()> {
    let ports = OpenOptions::new().read(true).write(true).open("/dev/port")?;
    for _ in 0..count {
        let port = dice.roll() & 0xffff;
        let [value, ..] = dice.value().to_le_bytes();
        // The line with the outcome, and the guest's clock, stay.
        if !(0x3f8..0x400).contains(&port) && !(0x40..0x44).contains(&port) {
            ports.write_at(&[value], port)?;
            ports.read_at(&mut [0], port)?;
        }
    }
    Ok(())
}

fn bars(dice: &mut Dice, count: u64) -> io::Result<()> {
    let mut found = 0;
    for function in pci_functions()? {
        let resources = fs::read_to_string(function.join("resource"))?;
        for (index, line) in resources.lines().take(6).enumerate() {
            let number = |word: Option<&str>| {
                word.and_then(|text| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()).unwrap_or(0)
            };
            let mut words = line.split_whitespace();
            let (start, end, flags) = (number(words.next()), number(words.next()), number(words.next()));
            let memory = flags & 0x200 != 0;
            if !memory || end <= start {
                continue;
            }
            found += 1;
            let size = usize::try_from(end - start + 1).unwrap_or(PAGE).min(16 << 20);
            let path = function.join(format!("resource{index}"));
            poke(&open(&path)?, 0, size, dice, count)?;
        }
    }
    if found == 0 { Err(io::Error::other("no PCI function has a memory BAR")) } else { Ok(()) }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Writes and reads back at `count` places of a mapped range, aligned and not, one to eight bytes wide.
#[expect(unsafe_code, reason = "device memory is reached by mapping it")]
fn poke(file: &File, offset: u64, size: usize, dice: &mut Dice, count: u64) -> io::Result<()> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of this process.
    let base = unsafe { mmap(std::ptr::null_mut(), size, access, flags, file, offset) }?;
    for _ in 0..count {
        let width = dice.width();
        let at = if dice.roll().is_multiple_of(4) {
            dice.below(size - width)
        } else {
            // Where registers are.
            dice.below((size - width).min(0x100)) & !(width - 1)
        };
        let value = dice.value();
        // SAFETY: `at + width <= size`, so the place is inside the mapping made above.
        let place = unsafe { base.byte_add(at) };
        // SAFETY: as above; `write` and `read` take any alignment on x86_64, and no Rust object is in these bytes.
        unsafe { touch(place, width, value) };
    }
    // SAFETY: it unmaps exactly the mapping made above, which nothing refers to any more.
    unsafe { munmap(base, size) }?;
    Ok(())
}

/// Writes `value` and reads it back, by instructions, for a compiler may leave out or split what looks useless.
///
/// # Safety
/// `width` bytes at `place` are mapped for reading and writing.
#[expect(unsafe_code, reason = "device memory is reached through raw pointers")]
unsafe fn touch(place: *mut c_void, width: usize, value: u64) {
    macro_rules! access {
        ($write:literal, $read:literal, $class:ident) => {
            // SAFETY: the caller's promise; x86_64 stores and loads at any alignment.
            unsafe {
                asm!($write, $read, place = in(reg) place, value = inout($class) value => _, options(nostack));
            }
        };
    }
    match width {
        1 => {
            let [low, ..] = value.to_le_bytes();
            // SAFETY: the caller's promise.
            unsafe {
                asm!("mov [{place}], {value}", "mov {value}, [{place}]",
                    place = in(reg) place, value = inout(reg_byte) low => _, options(nostack));
            }
        }
        2 => access!("mov [{place}], {value:x}", "mov {value:x}, [{place}]", reg),
        4 => access!("mov [{place}], {value:e}", "mov {value:e}, [{place}]", reg),
        _ => access!("mov [{place}], {value:r}", "mov {value:r}, [{place}]", reg),
    }
}
