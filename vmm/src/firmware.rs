//! What firmware finds on the machine: its own image below 4 GiB, and `fw_cfg`, through which it learns of memory,
//! processors, boot order, ACPI and SMBIOS.
//!
//! The interface is the one that stock SeaBIOS and OVMF know (QEMU's `docs/specs/fw_cfg.rst`). Everything here is
//! read by code that the guest may have replaced: nothing is trusted because firmware should be the one to ask.

mod acpi;
mod boot_order;
mod cmos;
mod contents;
mod debug;
mod dma;
mod flash;
mod flash_query;
mod fw_cfg;
mod image;
mod memory_map;
mod talk;

pub(crate) use acpi::AcpiFiles;
pub(crate) use boot_order::BootOrder;
pub(crate) use cmos::cmos;
pub(crate) use contents::{Contents, FileError, Key};
pub(crate) use debug::{DebugConsole, NothingToStart, Overheard};
pub(crate) use flash::{Flash, Window};
pub(crate) use fw_cfg::{Dma, FwCfg, Ports};
pub(crate) use image::{Image, ImageError, shadow};
pub(crate) use memory_map::e820;
pub use talk::Talk;
