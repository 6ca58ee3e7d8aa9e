//! `hvm_start_info`, what a PVH kernel finds its surroundings by (Xen's public/arch-x86/hvm/start_info.h).

use linux_loader::start_info::{hvm_memmap_table_entry, hvm_modlist_entry, hvm_start_info};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::error::LoadError;
use super::params::Handoff;
use super::ram::Ram;
use super::{COMMAND_LINE, START_INFO};

const MAGIC: u32 = 0x336e_c578;
const MODULES: u64 = START_INFO + 0x40;
const MEMORY_MAP: u64 = START_INFO + 0x80;
const MEMORY_MAP_ENTRY: u64 = 24;

/// Writes the start info with its module list and memory map.
pub(super) fn write(memory: &GuestMemoryMmap, ram: &Ram, handoff: &Handoff) -> Result<(), LoadError> {
    let mut info = hvm_start_info {
        magic: MAGIC,
        version: 1,
        cmdline_paddr: COMMAND_LINE,
        rsdp_paddr: handoff.rsdp.0,
        memmap_paddr: MEMORY_MAP,
        ..Default::default()
    };
    if let Some(initrd) = &handoff.initrd {
        let module =
            hvm_modlist_entry { paddr: initrd.start, size: initrd.end - initrd.start, ..Default::default() };
        memory.write_obj(module, GuestAddress(MODULES)).map_err(LoadError::Memory)?;
        info.nr_modules = 1;
        info.modlist_paddr = MODULES;
    }
    let mut at = MEMORY_MAP;
    for entry in ram.map() {
        let row = hvm_memmap_table_entry {
            addr: entry.start,
            size: entry.size,
            type_: entry.usage as u32,
            ..Default::default()
        };
        memory.write_obj(row, GuestAddress(at)).map_err(LoadError::Memory)?;
        at += MEMORY_MAP_ENTRY;
        info.memmap_entries += 1;
    }
    memory.write_obj(info, GuestAddress(START_INFO)).map_err(LoadError::Memory)
}
