//! The relocation table behind a compressed kernel (arch/x86/tools/relocs.c writes it, the kernel's decompressor
//! reads it): words of 32 bits, each the low half of a virtual address whose content depends on where the kernel
//! runs. A zero stands before each list: 64-bit relocations, on older kernels relocations of a negative offset, then
//! 32-bit relocations.

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory, VolatileSlice};

use super::elf::KERNEL_MAP;
use super::error::LoadError;

const WORD: usize = 4;

/// The lists, in the byte order of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Relocs<'a> {
    wide: &'a [u8],
    inverse: &'a [u8],
    narrow: &'a [u8],
}

/// Where the image is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// Physical address of what is linked at `preferred`.
    pub(super) physical: u64,
    /// Physical address it is linked for.
    pub(super) preferred: u64,
    /// Its extent from there.
    pub(super) size: u64,
    /// How much higher than linked it runs in virtual memory.
    pub(super) slide: u64,
}

impl<'a> Relocs<'a> {
    /// `None` if the table is none of those known. An empty one is a kernel that is not to be slid.
    pub(super) fn parse(table: &'a [u8]) -> Option<Self> {
        if table.is_empty() || !table.len().is_multiple_of(WORD) {
            return None;
        }
        let zeros: Vec<usize> = table
            .chunks_exact(WORD)
            .enumerate()
            .filter(|(_, word)| **word == [0; WORD])
            .map(|(index, _)| index * WORD)
            .take(4)
            .collect();
        let list = |start: usize, end: usize| table.get(start + WORD..end);
        match *zeros {
            [0, narrow] => {
                Some(Self { wide: list(0, narrow)?, inverse: &[], narrow: list(narrow, table.len())? })
            }
            [0, inverse, narrow] => Some(Self {
                wide: list(0, inverse)?,
                inverse: list(inverse, narrow)?,
                narrow: list(narrow, table.len())?,
            }),
            _ => None,
        }
    }

    /// Adds the slide at each location of the table.
    pub(super) fn apply(&self, memory: &GuestMemoryMmap, placed: Placed) -> Result<(), LoadError> {
        let size =
            usize::try_from(placed.size).map_err(|_| LoadError::Damaged("it is larger than memory"))?;
        let image = memory.get_slice(GuestAddress(placed.physical), size).map_err(LoadError::Memory)?;
        let base = KERNEL_MAP.wrapping_add(placed.preferred);
        // 32-bit relocations hold sign-extended addresses; the slide is below 1 GiB.
        let [a, b, c, d, ..] = placed.slide.to_le_bytes();
        let narrow = u32::from_le_bytes([a, b, c, d]);
        for word in words(self.narrow) {
            add_u32(&image, offset_of(word, base)?, narrow)?;
        }
        for word in words(self.inverse) {
            add_u32(&image, offset_of(word, base)?, narrow.wrapping_neg())?;
        }
        for word in words(self.wide) {
            add_u64(&image, offset_of(word, base)?, placed.slide)?;
        }
        Ok(())
    }
}

fn words(list: &[u8]) -> impl Iterator<Item = u32> {
    list.as_chunks::<WORD>().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

/// The offset in the image of the relocation `word`.
fn offset_of(word: u32, base: u64) -> Result<usize, LoadError> {
    let address = i64::from(word.cast_signed()).cast_unsigned();
    address.checked_sub(base).and_then(|offset| usize::try_from(offset).ok()).ok_or(OUTSIDE)
}

const OUTSIDE: LoadError = LoadError::Damaged("a relocation points outside its image");

fn add_u32(image: &VolatileSlice<'_>, offset: usize, delta: u32) -> Result<(), LoadError> {
    let value = image.get_ref::<u32>(offset).map_err(|_| OUTSIDE)?;
    value.store(value.load().wrapping_add(delta));
    Ok(())
}

fn add_u64(image: &VolatileSlice<'_>, offset: usize, delta: u64) -> Result<(), LoadError> {
    let value = image.get_ref::<u64>(offset).map_err(|_| OUTSIDE)?;
    value.store(value.load().wrapping_add(delta));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn both_shapes_of_the_table_are_read() {
        let old = table(&[0, 0x8100_0000, 0, 0x8100_0010, 0x8100_0014, 0, 0x8100_0020]);
        let relocs = Relocs::parse(&old).unwrap();
        let lists = [relocs.wide, relocs.inverse, relocs.narrow].map(|list| words(list).collect::<Vec<_>>());
        assert_eq!(lists, [vec![0x8100_0000], vec![0x8100_0010, 0x8100_0014], vec![0x8100_0020]]);
        let new = table(&[0, 0x8100_0000, 0, 0x8100_0020]);
        let relocs = Relocs::parse(&new).unwrap();
        assert_eq!((relocs.wide.len(), relocs.inverse.len(), relocs.narrow.len()), (4, 0, 4));
    }

    #[test]
    fn other_tables_are_not_guessed_at() {
        for words in [&[][..], &[1, 0, 2], &[0, 1], &[0, 1, 0, 2, 0, 3, 0, 4]] {
            assert_eq!(Relocs::parse(&table(words)), None, "{words:?}");
        }
        assert_eq!(Relocs::parse(&[0; 9]), None);
    }

    #[test]
    fn each_list_relocates_its_addresses() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x20_0000)]).unwrap();
        let words = table(&[0, 0x8100_0000, 0, 0x8100_0009, 0, 0x8100_0010]);
        let image = memory.get_slice(GuestAddress(0x10_0000), 0x20).unwrap();
        image.get_ref::<u64>(0).unwrap().store(0xffff_ffff_8123_4567);
        image.get_ref::<u32>(9).unwrap().store(0x10);
        image.get_ref::<u32>(0x10).unwrap().store(0x8123_4567);
        let placed = Placed { physical: 0x10_0000, preferred: 0x100_0000, size: 0x20, slide: 0x20_0000 };
        Relocs::parse(&words).unwrap().apply(&memory, placed).unwrap();
        assert_eq!(image.get_ref::<u64>(0).unwrap().load(), 0xffff_ffff_8143_4567);
        assert_eq!(image.get_ref::<u32>(9).unwrap().load(), 0xffe0_0010);
        assert_eq!(image.get_ref::<u32>(0x10).unwrap().load(), 0x8143_4567);
    }

    #[test]
    fn places_outside_the_image_are_refused() {
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x20_0000)]).unwrap();
        let placed = Placed { physical: 0x10_0000, preferred: 0x100_0000, size: 0x20, slide: 0x20_0000 };
        for word in [0x80ff_ffff, 0x8100_0019, 0x8200_0000, 1] {
            let words = table(&[0, word, 0]);
            let outcome = Relocs::parse(&words).unwrap().apply(&memory, placed);
            assert!(matches!(outcome, Err(LoadError::Damaged(_))), "{word:#x}: {outcome:?}");
        }
    }
}
