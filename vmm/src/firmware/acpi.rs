use crate::arch::x86_64::acpi::{Blob, Blobs, Link, Sum};

const TABLES: &str = "etc/acpi/tables";
const RSDP: &str = "etc/acpi/rsdp";
const LOADER: &str = "etc/table-loader";

/// A command of the loader file, with its padding.
const COMMAND: usize = 128;
/// A file's name in a command.
const NAME: usize = 56;
const ALLOCATE: u32 = 1;
const ADD_POINTER: u32 = 2;
const ADD_CHECKSUM: u32 = 3;
/// Anywhere below 4 GiB.
const ZONE_HIGH: u8 = 1;
/// The last 64 KiB below 1 MiB, which are searched for the root pointer.
const ZONE_F_SEGMENT: u8 = 2;
const TABLES_ALIGN: u32 = 64;
const RSDP_ALIGN: u32 = 16;

/// The tables come in steps of this, and with at least half of it to spare: they may still grow after their size was
/// informed, when firmware has chosen other windows.
const STEP: usize = 4096;

/// The ACPI tables as firmware takes them: two blobs, and what is to be done to them in memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AcpiFiles {
    tables: Vec<u8>,
    rsdp: Vec<u8>,
    loader: Vec<u8>,
}

impl AcpiFiles {
    /// Translates `blobs`.
    pub(crate) fn new(blobs: &Blobs) -> Self {
        let mut loader = Vec::new();
        loader.extend(command(ALLOCATE, &[&name(TABLES), &TABLES_ALIGN.to_le_bytes(), &[ZONE_HIGH]]));
        loader.extend(command(ALLOCATE, &[&name(RSDP), &RSDP_ALIGN.to_le_bytes(), &[ZONE_F_SEGMENT]]));
        for Link { blob, at, size } in blobs.links() {
            let size = u8::try_from(*size).unwrap_or(0);
            loader.extend(command(ADD_POINTER, &[&name(file(*blob)), &name(TABLES), &word(*at), &[size]]));
        }
        for Sum { blob, at, start, len } in blobs.sums() {
            loader
                .extend(command(ADD_CHECKSUM, &[&name(file(*blob)), &word(*at), &word(*start), &word(*len)]));
        }
        let (rsdp, tables) = blobs.bytes();
        Self { tables: tables.to_vec(), rsdp: rsdp.to_vec(), loader }
    }

    /// The files with the sizes of the directory, for tables that may yet change a little.
    pub(crate) fn sizes(&self) -> [(&'static str, u32); 3] {
        let tables = (self.tables.len() + STEP / 2).next_multiple_of(STEP);
        let size = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        [(TABLES, size(tables)), (RSDP, size(self.rsdp.len())), (LOADER, size(self.loader.len()))]
    }

    /// Whether tables of `sizes` hold these.
    pub(crate) fn fits(&self, sizes: &[(&'static str, u32); 3]) -> bool {
        let lens = [&self.tables, &self.rsdp, &self.loader].map(Vec::len);
        lens.iter().zip(sizes).all(|(len, (_, size))| u32::try_from(*len).is_ok_and(|len| len <= *size))
    }

    /// Their bytes, in the order of [`Self::sizes`].
    pub(crate) fn into_files(self) -> Vec<Vec<u8>> {
        vec![self.tables, self.rsdp, self.loader]
    }
}

fn file(blob: Blob) -> &'static str {
    match blob {
        Blob::Rsdp => RSDP,
        Blob::Tables => TABLES,
    }
}

fn name(text: &str) -> [u8; NAME] {
    let mut field = [0; NAME];
    field.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    field
}

/// Offsets into tables of some KiB.
fn word(at: usize) -> [u8; 4] {
    u32::try_from(at).unwrap_or(u32::MAX).to_le_bytes()
}

fn command(number: u32, fields: &[&[u8]]) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    fields.iter().for_each(|field| bytes.extend_from_slice(field));
    bytes.resize(COMMAND, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::x86_64::acpi::{Platform, Windows};

    fn blobs() -> Blobs {
        Blobs::new(&Platform {
            apic_ids: &[0, 1],
            windows: Windows::above(1 << 30),
            ps2: true,
            panic_port: true,
            hotplug: 0,
            numa: None,
            tables: &[],
        })
    }

    fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
        bytes[at..at + size].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn index(bytes: &[u8], at: usize) -> usize {
        usize::try_from(number(bytes, at, 4)).unwrap()
    }

    /// Does what firmware does, as OVMF does it: a checksum is set, whatever was there.
    fn load(files: &AcpiFiles, tables_at: u64) -> (Vec<u8>, Vec<u8>) {
        let (mut tables, mut rsdp) = (files.tables.clone(), files.rsdp.clone());
        for command in files.loader.chunks(COMMAND) {
            let of = |at: usize| std::str::from_utf8(&command[at..at + NAME]).unwrap().trim_end_matches('\0');
            let target = if of(4) == RSDP { &mut rsdp } else { &mut tables };
            match u32::try_from(number(command, 0, 4)).unwrap() {
                ALLOCATE => {}
                ADD_POINTER => {
                    assert_eq!(of(4 + NAME), TABLES);
                    let (at, size) = (index(command, 116), usize::from(command[120]));
                    let value = number(target, at, size) + tables_at;
                    target[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
                }
                ADD_CHECKSUM => {
                    let (at, start, len) = (index(command, 60), index(command, 64), index(command, 68));
                    let sum =
                        target[start..start + len].iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
                    target[at] = sum.wrapping_neg();
                }
                other => panic!("command {other}"),
            }
        }
        (rsdp, tables)
    }

    #[test]
    fn firmware_ends_with_what_a_direct_boot_has() {
        let files = AcpiFiles::new(&blobs());
        assert_eq!(files.loader.len() % COMMAND, 0);
        let placed = blobs().place(0xe_0040).unwrap();
        assert_eq!(load(&files, 0xe_0040), (placed.rsdp, placed.tables));
    }

    #[test]
    fn there_is_room_to_grow() {
        let files = AcpiFiles::new(&blobs());
        let sizes = files.sizes();
        assert!(files.fits(&sizes));
        assert_eq!(sizes[0].1 % 4096, 0);
        let mut grown = AcpiFiles::new(&blobs());
        grown.tables.resize(grown.tables.len() + STEP / 2, 0);
        assert!(grown.fits(&sizes));
        grown.tables.resize(grown.tables.len() + STEP, 0);
        assert!(!grown.fits(&sizes));
    }
}
