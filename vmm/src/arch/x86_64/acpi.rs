//! The ACPI tables (ACPI 6.5, chapter 5), made once as relocatable blobs.
//!
//! Inside the blobs every pointer is an offset. [`Blobs::place`] turns them into a direct boot's tables at their
//! addresses; the links and checksums are also just what firmware wants as loader commands (`firmware::acpi`).

mod dsdt;
mod hotplug;
mod tables;
mod windows;

#[cfg(test)]
mod tests;

use acpi_tables::Aml;
use acpi_tables::facs::FACS;
use vireo_vmconfig::{AcpiTable, GuestNuma};

use crate::layout;
use crate::memory::RamRange;

pub(crate) use windows::Windows;

const OEM_ID: [u8; 6] = *b"VIREO ";
const OEM_TABLE_ID: [u8; 8] = *b"VIREOPC ";
const OEM_REVISION: u32 = 1;

/// Where the checksum is in a table's header.
const TABLE_CHECKSUM: usize = 9;
/// Alignment of tables; the FACS requires it.
const TABLE_ALIGN: usize = 64;

/// What the tables describe.
pub(crate) struct Platform<'a> {
    /// Local APIC ids, in vCPU order.
    pub(crate) apic_ids: &'a [u8],
    /// What the PCI root hands out.
    pub(crate) windows: Windows,
    /// Whether there is a PS/2 keyboard and mouse.
    pub(crate) ps2: bool,
    /// Whether a pvpanic device is at its I/O port.
    pub(crate) panic_port: bool,
    /// The slots that disks may be attached in while the guest runs, a bit for each.
    pub(crate) hotplug: u32,
    /// NUMA nodes, where the guest has some.
    pub(crate) numa: Option<&'a Numa>,
    /// More tables.
    pub(crate) tables: &'a [AcpiTable],
}

/// NUMA nodes, and which node each range of RAM is of.
#[derive(Clone, Debug)]
pub(crate) struct Numa {
    pub(crate) nodes: GuestNuma,
    pub(crate) ram: Vec<(usize, RamRange)>,
}

/// One of the two blobs. Firmware wants them apart: the RSDP has to lie where it is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blob {
    Rsdp,
    Tables,
}

/// A little-endian pointer of `size` bytes at `at` in `blob`, which holds an offset into the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) blob: Blob,
    pub(crate) at: usize,
    pub(crate) size: usize,
}

/// A byte at `at` in `blob` that makes `len` bytes from `start` sum to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) blob: Blob,
    pub(crate) at: usize,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// All tables, not yet at any address.
#[derive(Debug)]
pub(crate) struct Blobs {
    rsdp: Vec<u8>,
    tables: Vec<u8>,
    links: Vec<Link>,
    sums: Vec<Sum>,
}

/// Tables do not lie below 4 GiB, where their 32-bit pointers reach.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("ACPI tables at {0:#x} are out of reach of 32-bit pointers")]
pub struct PlaceError(u64);

impl Blobs {
    /// Makes the tables for `platform`.
    pub(crate) fn new(platform: &Platform<'_>) -> Self {
        let mut blobs = Self { rsdp: Vec::new(), tables: Vec::new(), links: Vec::new(), sums: Vec::new() };
        let mut facs = Vec::new();
        FACS::new().to_aml_bytes(&mut facs);
        let facs = blobs.append(&facs);
        let dsdt = blobs.append_table(dsdt::table(platform).as_slice());
        let fadt = blobs.append_table(&tables::fadt(facs, dsdt, platform));
        for (field, size) in tables::FADT_POINTERS {
            blobs.links.push(Link { blob: Blob::Tables, at: fadt + field, size });
        }
        let madt = blobs.append_table(tables::madt(platform.apic_ids).as_slice());
        let mcfg = blobs.append_table(&tables::mcfg(platform.windows.config()));
        let mut entries = vec![fadt, madt, mcfg];
        if let Some(numa) = platform.numa {
            entries.push(blobs.append_table(tables::srat(numa, platform.apic_ids).as_slice()));
            entries.push(blobs.append_table(tables::slit(numa.nodes.distances()).as_slice()));
        }
        entries.extend(platform.tables.iter().map(|table| blobs.append_table(table.bytes())));
        let rsdt = blobs.append_table(tables::rsdt(&entries).as_slice());
        let xsdt = blobs.append_table(&tables::xsdt(&entries));
        for index in 0..entries.len() {
            for (list, size) in [(rsdt + tables::RSDT_ENTRIES, 4), (xsdt + tables::XSDT_ENTRIES, 8)] {
                blobs.links.push(Link { blob: Blob::Tables, at: list + index * size, size });
            }
        }
        blobs.rsdp = tables::rsdp(rsdt, xsdt);
        // Windows takes a SLIC only from the manufacturer of the VM.
        if let Some(license) = platform.tables.iter().find(|table| table.signature() == *b"SLIC") {
            [fadt, rsdt, xsdt]
                .into_iter()
                .for_each(|at| tables::copy_oem(&mut blobs.tables, at, license.bytes()));
        }
        blobs.links.push(Link { blob: Blob::Rsdp, at: tables::RSDP_RSDT, size: 4 });
        blobs.links.push(Link { blob: Blob::Rsdp, at: tables::RSDP_XSDT, size: 8 });
        let (short, whole) = (tables::RSDP_V1_LENGTH, blobs.rsdp.len());
        for (at, len) in [(tables::RSDP_CHECKSUM, short), (tables::RSDP_EXTENDED_CHECKSUM, whole)] {
            blobs.sums.push(Sum { blob: Blob::Rsdp, at, start: 0, len });
        }
        blobs.clear_sums();
        blobs
    }

    /// Some firmware adds to the bytes of a checksum, and some ignores them: so they are zeros.
    fn clear_sums(&mut self) {
        for Sum { blob, at, .. } in self.sums.clone() {
            if let Some(checksum) = self.blob(blob).get_mut(at) {
                *checksum = 0;
            }
        }
    }

    /// What holds an offset into the tables.
    pub(crate) fn links(&self) -> &[Link] {
        &self.links
    }

    /// What is summed up once all links are addresses, in this order.
    pub(crate) fn sums(&self) -> &[Sum] {
        &self.sums
    }

    /// The root pointer, and the tables.
    pub(crate) fn bytes(&self) -> (&[u8], &[u8]) {
        (&self.rsdp, &self.tables)
    }

    /// Both blobs as they have to be in memory with the RSDP anywhere and the tables at `tables_at`.
    pub(crate) fn place(mut self, tables_at: u64) -> Result<Placed, PlaceError> {
        let end = u64::try_from(self.tables.len()).ok().and_then(|len| tables_at.checked_add(len));
        if end.is_none_or(|end| end > 1 << 32) {
            return Err(PlaceError(tables_at));
        }
        for Link { blob, at, size } in std::mem::take(&mut self.links) {
            let Some(field) = self.blob(blob).get_mut(at..at + size) else { continue };
            let mut offset = [0; 8];
            offset.iter_mut().zip(field.iter()).for_each(|(to, from)| *to = *from);
            let address = u64::from_le_bytes(offset).wrapping_add(tables_at);
            field.iter_mut().zip(address.to_le_bytes()).for_each(|(to, from)| *to = from);
        }
        for Sum { blob, at, start, len } in std::mem::take(&mut self.sums) {
            let bytes = self.blob(blob);
            let sum = bytes.iter().skip(start).take(len).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
            if let Some(checksum) = bytes.get_mut(at) {
                *checksum = sum.wrapping_neg();
            }
        }
        Ok(Placed { rsdp: self.rsdp, tables: self.tables })
    }

    fn blob(&mut self, blob: Blob) -> &mut Vec<u8> {
        match blob {
            Blob::Rsdp => &mut self.rsdp,
            Blob::Tables => &mut self.tables,
        }
    }

    fn append(&mut self, bytes: &[u8]) -> usize {
        let at = self.tables.len().next_multiple_of(TABLE_ALIGN);
        self.tables.resize(at, 0);
        self.tables.extend_from_slice(bytes);
        at
    }

    fn append_table(&mut self, bytes: &[u8]) -> usize {
        let at = self.append(bytes);
        self.sums.push(Sum { blob: Blob::Tables, at: at + TABLE_CHECKSUM, start: at, len: bytes.len() });
        at
    }
}

/// Tables ready to be written to guest memory.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) rsdp: Vec<u8>,
    pub(crate) tables: Vec<u8>,
}

/// Where the RSDP of a direct boot lies: at the start of the area that is searched for one.
pub(crate) const RSDP_ADDRESS: u64 = 0xe_0000;
/// Where the tables of a direct boot lie, up to the SMBIOS area.
pub(crate) const TABLES_ADDRESS: u64 = 0xe_0040;

/// A port of the power management block.
fn pm_port(offset: u16) -> u16 {
    layout::PM_PORT + offset
}
