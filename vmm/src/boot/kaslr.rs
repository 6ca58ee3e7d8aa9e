//! Where the kernel goes, in physical and in virtual memory.

use std::io;

use super::error::LoadError;
use super::ram::HIGH_START;

/// A source of random numbers.
pub(super) type Draw<'a> = dyn FnMut() -> io::Result<u64> + 'a;

/// The kernel map of a kernel that can randomise its address: 1 GiB from `__START_KERNEL_map`.
const KERNEL_IMAGE_SIZE: u64 = 1 << 30;
/// The kernel's own decompressor starts its search for a random address no higher than this.
const HIGHEST_MINIMUM: u64 = 512 << 20;

/// Random bits from the system.
pub(super) fn from_system() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(u64::from_ne_bytes(bytes))
}

/// Free memory for the kernel below 4 GiB, and the kernel's requirements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// End of free memory: the initrd or the end of RAM.
    pub(super) end: u64,
    /// Where the kernel is linked to run.
    pub(super) preferred: u64,
    /// What it needs there until it has set up its own memory map.
    pub(super) size: u64,
    /// A power of two.
    pub(super) align: u64,
    /// Whether it runs anywhere else.
    pub(super) relocatable: bool,
}

impl Room {
    /// A fixed address: the preferred one, else the lowest that fits.
    pub(super) fn fixed(&self) -> Result<u64, LoadError> {
        if self.preferred >= HIGH_START && slots(self.preferred, self.end, self.size, self.align) > 0 {
            return Ok(self.preferred);
        }
        let lowest = HIGH_START.next_multiple_of(self.align);
        if self.relocatable && slots(lowest, self.end, self.size, self.align) > 0 {
            return Ok(lowest);
        }
        let from = if self.relocatable { lowest } else { self.preferred };
        Err(LoadError::MemoryTooSmall { needed: self.size, from, ram: self.end })
    }

    /// A random address; the fixed one where there is no choice.
    pub(super) fn random(&self, draw: &mut Draw<'_>) -> Result<u64, LoadError> {
        let minimum = self
            .preferred
            .clamp(HIGH_START, HIGHEST_MINIMUM)
            .checked_next_multiple_of(self.align)
            .unwrap_or(u64::MAX);
        match slots(minimum, self.end, self.size, self.align) {
            0 => self.fixed(),
            count => Ok(minimum + pick(count, draw)? * self.align),
        }
    }
}

/// A random offset in the kernel map for a kernel linked at `preferred`, relative to that.
pub(super) fn slide(preferred: u64, size: u64, align: u64, draw: &mut Draw<'_>) -> Result<u64, LoadError> {
    match slots(preferred, KERNEL_IMAGE_SIZE, size, align) {
        0 => Ok(0),
        count => Ok(pick(count, draw)? * align),
    }
}

/// Whether the command line allows random addresses. Words are separated by anything up to a space, as the
/// kernel's decompressor has it.
pub(super) fn wanted(command_line: &str) -> bool {
    words(command_line).all(|word| word != b"nokaslr")
}

/// Whether the command line reserves no physical memory that a random address could collide with.
pub(super) fn physical_wanted(command_line: &str) -> bool {
    let prefixes: [&[u8]; 4] = [b"mem=", b"memmap=", b"hugepagesz=", b"hugepages="];
    words(command_line).all(|word| !prefixes.iter().any(|prefix| word.starts_with(prefix)))
}

fn words(command_line: &str) -> impl Iterator<Item = &[u8]> {
    command_line.as_bytes().split(|byte| *byte <= b' ')
}

/// The number of aligned addresses for `size` bytes in `start..end`, where `start` is aligned.
fn slots(start: u64, end: u64, size: u64, align: u64) -> u64 {
    match end.checked_sub(start).and_then(|room| room.checked_sub(size)) {
        Some(slack) => slack / align + 1,
        None => 0,
    }
}

/// A number below `count`.
fn pick(count: u64, draw: &mut Draw<'_>) -> Result<u64, LoadError> {
    let random = draw().map_err(LoadError::Random)?;
    let scaled = (u128::from(random) * u128::from(count)) >> 64;
    Ok(u64::try_from(scaled).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(end: u64, size: u64) -> Room {
        Room { end, preferred: 16 * MIB, size, align: 2 * MIB, relocatable: true }
    }

    #[test]
    fn random_addresses_cover_the_free_range() {
        let room = room(256 * MIB, 60 * MIB);
        assert_eq!(room.random(&mut || Ok(0)).unwrap(), 16 * MIB);
        assert_eq!(room.random(&mut || Ok(u64::MAX)).unwrap(), 196 * MIB);
    }

    #[test]
    fn a_tight_range_gives_its_only_address() {
        assert_eq!(room(76 * MIB, 60 * MIB).random(&mut || Ok(u64::MAX)).unwrap(), 16 * MIB);
        assert_eq!(room(70 * MIB, 60 * MIB).random(&mut || Ok(u64::MAX)).unwrap(), 2 * MIB);
        assert_eq!(room(76 * MIB, 60 * MIB).fixed().unwrap(), 16 * MIB);
        let refused = room(61 * MIB, 60 * MIB).fixed();
        assert!(matches!(refused, Err(LoadError::MemoryTooSmall { .. })), "{refused:?}");
        let stuck = Room { relocatable: false, ..room(70 * MIB, 60 * MIB) };
        assert!(matches!(stuck.fixed(), Err(LoadError::MemoryTooSmall { from, .. }) if from == 16 * MIB));
    }

    #[test]
    fn the_slide_keeps_the_image_inside_the_kernel_map() {
        assert_eq!(slide(16 * MIB, 60 * MIB, 2 * MIB, &mut || Ok(0)).unwrap(), 0);
        assert_eq!(slide(16 * MIB, 60 * MIB, 2 * MIB, &mut || Ok(u64::MAX)).unwrap(), (1024 - 60 - 16) * MIB);
        assert_eq!(slide(1000 * MIB, 60 * MIB, 2 * MIB, &mut || Ok(u64::MAX)).unwrap(), 0);
    }

    #[test]
    fn the_command_line_decides_by_whole_words() {
        assert!(wanted("quiet console=ttyS0"));
        assert!(!wanted("quiet\tnokaslr"));
        assert!(wanted("xnokaslr nokaslr=1 nokaslrs"));
        assert!(!physical_wanted("quiet mem=64M"));
        assert!(physical_wanted("quiet meme=1"));
    }
}
