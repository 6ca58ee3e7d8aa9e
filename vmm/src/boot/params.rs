//! `boot_params`, the zero page of the Linux boot protocol (Documentation/arch/x86/zero-page.rst).

use std::ops::Range;

use linux_loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::error::LoadError;
use super::ram::Ram;
use super::{BOOT_PARAMS, COMMAND_LINE};

/// `type_of_loader` of a boot loader without a number of its own.
const LOADER_UNDEFINED: u8 = 0xff;
const LOADED_HIGH: u8 = 1 << 0;
const KASLR_FLAG: u8 = 1 << 1;
const HEADER_MAGIC: u32 = 0x5372_6448;
const BOOT_FLAG: u16 = 0xaa55;
/// Longer than any kernel reads.
const COMMAND_LINE_MAX: u32 = 0xffff;
/// 2.15: the newest protocol; every field of the header is there.
const NEWEST_PROTOCOL: u16 = 0x20f;

/// What is handed to the kernel beside itself.
pub(super) struct Handoff {
    pub(super) initrd: Option<Range<u64>>,
    pub(super) rsdp: GuestAddress,
}

/// The header of a kernel that brings none.
pub(super) fn header_for_elf() -> setup_header {
    setup_header {
        boot_flag: BOOT_FLAG,
        header: HEADER_MAGIC,
        version: NEWEST_PROTOCOL,
        loadflags: LOADED_HIGH,
        kernel_alignment: 0x20_0000,
        cmdline_size: COMMAND_LINE_MAX,
        ..Default::default()
    }
}

/// Writes the zero page. `randomised` informs the kernel that its address is random, upon which it
/// randomises its memory regions too.
pub(super) fn write(
    memory: &GuestMemoryMmap,
    ram: &Ram,
    header: setup_header,
    randomised: bool,
    handoff: &Handoff,
) -> Result<(), LoadError> {
    let mut hdr = header;
    hdr.type_of_loader = LOADER_UNDEFINED;
    hdr.loadflags &= !KASLR_FLAG;
    if randomised {
        hdr.loadflags |= KASLR_FLAG;
    }
    hdr.cmd_line_ptr = low(COMMAND_LINE)?;
    if let Some(initrd) = &handoff.initrd {
        hdr.ramdisk_image = low(initrd.start)?;
        hdr.ramdisk_size = low(initrd.end - initrd.start)?;
    }
    let mut page = boot_params { hdr, acpi_rsdp_addr: handoff.rsdp.0, ..Default::default() };
    let map = ram.map();
    for (slot, entry) in page.e820_table.iter_mut().zip(&map) {
        *slot = boot_e820_entry { addr: entry.start, size: entry.size, r#type: entry.usage as u32 };
        page.e820_entries += 1;
    }
    memory.write_obj(page, GuestAddress(BOOT_PARAMS)).map_err(LoadError::Memory)
}

fn low(value: u64) -> Result<u32, LoadError> {
    u32::try_from(value).map_err(|_| LoadError::Damaged("an address lies above 4 GiB"))
}
