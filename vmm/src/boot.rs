//! Kernel images into guest memory: a bzImage as a distribution ships it, or an ELF `vmlinux`.
//!
//! A bzImage carries a decompressor that would run in the guest, one page fault at a time. The host does that work
//! instead: it decompresses the payload into place, picks random addresses and applies the kernel's relocations as
//! the decompressor would have done (so KASLR survives), and enters the kernel proper. Where the payload is of a
//! kind unknown here, the image is left to decompress itself.
//!
//! Guest memory must be fresh (zero): pages of the image that hold only zeros are not touched.

mod bzimage;
mod decompress;
mod elf;
mod error;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod identify;
mod image;
mod initrd;
mod kaslr;
mod params;
mod pvh;
mod ram;
mod relocs;
#[cfg(any(test, fuzzing))]
mod sample;
mod vmlinux;

#[cfg(test)]
mod tests;

use std::fs::File;

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::config::KernelBoot;

use self::bzimage::BzImage;
use self::identify::Kind;
use self::image::Image;
use self::kaslr::{Draw, Room};
use self::params::Handoff;
use self::ram::Ram;

pub use self::error::LoadError;

/// The zero page (`struct boot_params`), one page.
const BOOT_PARAMS: u64 = 0x7000;
/// PVH's `hvm_start_info`; its module list and memory map follow in the same page.
const START_INFO: u64 = 0x6000;
/// The command line; room up to the ACPI area's reserved hole.
const COMMAND_LINE: u64 = 0x2_0000;
/// The longest command line that any kernel gets, with its NUL.
const COMMAND_LINE_MAX: usize = 0x1_0000;

/// Where the first vCPU starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The 64-bit Linux boot protocol: long mode, flat segments, low 4 GiB identity-mapped with four-level tables,
    /// interrupts off, `boot_params` in RSI (Documentation/arch/x86/boot.rst, "64-bit Boot Protocol").
    Linux64 {
        /// First instruction.
        rip: GuestAddress,
        /// The zero page.
        boot_params: GuestAddress,
    },
    /// PVH: 32-bit protected mode without paging, flat segments, `start_info` in EBX (Xen's pvh.h).
    Pvh {
        /// First instruction.
        rip: GuestAddress,
        /// The `hvm_start_info`.
        start_info: GuestAddress,
    },
}

/// Puts the kernel, its initrd, its command line and its parameters into fresh guest memory.
///
/// `rsdp` is where the guest finds its ACPI tables. Files are read from their start, whatever their position; what
/// is needed on the host to decompress is given back before this returns.
///
/// # Errors
///
/// Names what the file is when it is not a kernel for this VM, and sizes when something does not fit.
pub fn load(memory: &GuestMemoryMmap, kernel: &KernelBoot, rsdp: GuestAddress) -> Result<Entry, LoadError> {
    load_with(memory, kernel, rsdp, &mut kaslr::from_system)
}

fn load_with(
    memory: &GuestMemoryMmap,
    kernel: &KernelBoot,
    rsdp: GuestAddress,
    draw: &mut Draw<'_>,
) -> Result<Entry, LoadError> {
    let image = Image::open(&kernel.kernel)?;
    let ram = Ram::of(memory);
    match identify::identify(&image)? {
        Kind::BzImage => {
            let kernel_image = BzImage::parse(&image)?;
            let limit = kernel_image.command_line_max();
            write_command_line(memory, &kernel.command_line, limit)?;
            load_bzimage(memory, &ram, (&image, &kernel_image), kernel, (rsdp, draw))
        }
        Kind::Elf => {
            write_command_line(memory, &kernel.command_line, COMMAND_LINE_MAX - 1)?;
            load_elf(memory, &ram, &image, kernel, rsdp)
        }
    }
}

fn load_bzimage(
    memory: &GuestMemoryMmap,
    ram: &Ram,
    (image, bz): (&Image<'_>, &BzImage),
    kernel: &KernelBoot,
    (rsdp, draw): (GuestAddress, &mut Draw<'_>),
) -> Result<Entry, LoadError> {
    let initrd = initrd::place(ram, kernel.initrd.as_ref(), bz.initrd_max())?;
    let room = Room {
        end: initrd.as_ref().map_or(ram.low_end(), |initrd| initrd.start),
        preferred: bz.preferred(),
        size: bz.init_size(),
        align: bz.alignment(),
        relocatable: bz.relocatable(),
    };
    let loaded = vmlinux::load_payload(memory, image, bz, &room, &kernel.command_line, draw)?;
    let (rip, randomised) = match loaded {
        Some(loaded) => (loaded.entry, loaded.randomised),
        None => (bzimage::load_classic(memory, image, bz, &room)?, false),
    };
    initrd::read(memory, kernel.initrd.as_ref(), initrd.as_ref())?;
    let handoff = Handoff { initrd, rsdp };
    params::write(memory, ram, bz.header(), randomised, &handoff)?;
    Ok(Entry::Linux64 { rip, boot_params: GuestAddress(BOOT_PARAMS) })
}

fn load_elf(
    memory: &GuestMemoryMmap,
    ram: &Ram,
    image: &Image<'_>,
    kernel: &KernelBoot,
    rsdp: GuestAddress,
) -> Result<Entry, LoadError> {
    let vmlinux = vmlinux::open_elf(image)?;
    let span = vmlinux.physical_span();
    if span.start < ram::HIGH_START || span.end > ram.low_end() {
        return Err(LoadError::KernelOutsideMemory { start: span.start, end: span.end, ram: ram.low_end() });
    }
    let initrd = initrd::place(ram, kernel.initrd.as_ref(), u64::from(u32::MAX))?;
    if let Some(initrd) = &initrd
        && initrd.start < span.end
    {
        return Err(LoadError::InitrdTooLarge {
            size: initrd.end - initrd.start,
            room: ram.low_end().saturating_sub(span.end),
        });
    }
    vmlinux::load_elf(memory, image, &vmlinux)?;
    initrd::read(memory, kernel.initrd.as_ref(), initrd.as_ref())?;
    let handoff = Handoff { initrd, rsdp };
    match vmlinux.pvh_entry {
        Some(rip) => {
            pvh::write(memory, ram, &handoff)?;
            Ok(Entry::Pvh { rip: GuestAddress(rip), start_info: GuestAddress(START_INFO) })
        }
        None => {
            params::write(memory, ram, params::header_for_elf(), false, &handoff)?;
            Ok(Entry::Linux64 { rip: GuestAddress(vmlinux.entry), boot_params: GuestAddress(BOOT_PARAMS) })
        }
    }
}

fn write_command_line(memory: &GuestMemoryMmap, text: &str, limit: usize) -> Result<(), LoadError> {
    let limit = limit.min(COMMAND_LINE_MAX - 1);
    if text.len() > limit {
        return Err(LoadError::CommandLineTooLong { length: text.len(), limit });
    }
    if text.bytes().any(|byte| byte == 0) {
        return Err(LoadError::CommandLineNul);
    }
    memory.write_slice(text.as_bytes(), GuestAddress(COMMAND_LINE)).map_err(LoadError::Memory)?;
    let end = COMMAND_LINE + text.len() as u64;
    memory.write_obj(0_u8, GuestAddress(end)).map_err(LoadError::Memory)
}

fn file_size(file: &File) -> std::io::Result<u64> {
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(std::io::ErrorKind::IsADirectory.into());
    }
    Ok(metadata.len())
}
