//! What firmware finds on the VM: its own image below 4 GiB, and `fw_cfg`, through which it learns of memory,
//! vCPUs, boot order, ACPI and SMBIOS.
//!
//! The interface is the one that stock SeaBIOS and OVMF know (QEMU's `docs/specs/fw_cfg.rst`). Everything here is
//! read by code that the guest may have replaced: its accesses are untrusted, as all of the guest's.

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
mod log_scanner;
mod memory_map;

pub(crate) use acpi::AcpiFiles;
pub(crate) use boot_order::BootOrder;
pub(crate) use cmos::cmos;
pub(crate) use contents::{Contents, FileError, Key};
pub(crate) use debug::{DebugConsole, NothingToStart, ScannedOutput};
pub(crate) use flash::{Flash, Window};
pub(crate) use fw_cfg::{Dma, FwCfg, Ports};
pub(crate) use image::{Image, ImageError, shadow};
pub use log_scanner::LogScanner;
pub(crate) use memory_map::e820;
