//! SMBIOS tables (DSP0134 3.6): what `dmidecode` and cloud-init read about the VM.

use vireo_vmconfig::{CpuTopology, Smbios};

use crate::config::MemorySize;
use crate::memory::{RamRange, ram_ranges};

/// Where a direct boot's entry point lies: at the start of the area that is searched for one.
pub(crate) const ADDRESS: u64 = 0xf_0000;
/// Bytes from the entry point's start to the table behind it.
const TABLE_OFFSET: u64 = 0x20;
/// The area ends at the reset vector below 1 MiB.
const AREA: usize = 0xfff0;

const VERSION: [u8; 3] = [3, 6, 0];
/// The limit of the 32-bit entry point.
const VERSION_32: [u8; 2] = [2, 8];
const VENDOR: &str = "Vireo";

/// Handles. Types that refer to each other need them to be known.
const MEMORY_ARRAY: u16 = 0x1000;
const CHASSIS: u16 = 0x300;

/// The entry point and the table behind it, for `ADDRESS`; `None` if the texts leave no room for them.
pub(crate) fn tables(identity: &Smbios, cpus: CpuTopology, memory: MemorySize) -> Option<Vec<u8>> {
    let mut table = Table::default();
    firmware(&mut table);
    structures(&mut table, identity, cpus, memory);

    let mut bytes = entry_point(u32::try_from(table.bytes.len()).ok()?);
    bytes.resize(usize::try_from(TABLE_OFFSET).ok()?, 0);
    bytes.append(&mut table.bytes);
    (bytes.len() <= AREA).then_some(bytes)
}

/// An entry point and its table for firmware, which places both and adds its own entries; `None` if the texts
/// are too long.
pub(crate) fn for_firmware(
    identity: &Smbios,
    cpus: CpuTopology,
    memory: MemorySize,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut table = Table::default();
    structures(&mut table, identity, cpus, memory);
    let anchor = entry_point_32(&table)?;
    (table.bytes.len() <= AREA).then_some((anchor, table.bytes))
}

/// All but type 0.
fn structures(table: &mut Table, identity: &Smbios, cpus: CpuTopology, memory: MemorySize) {
    system(table, identity);
    chassis(table, identity);
    for socket in 0..cpus.sockets() {
        vcpu(table, cpus, socket);
    }
    memory_modules(table, memory);
    table.structure(32, 0x2000, &[0; 7], &[]);
    table.structure(127, 0x7f00, &[], &[]);
}

/// The 32-bit entry point (section 5.2.1), which firmware of any age takes. The table's address is firmware's to fill.
fn entry_point_32(table: &Table) -> Option<Vec<u8>> {
    const INTERMEDIATE: usize = 0x10;
    let mut bytes = b"_SM_\0\x1f".to_vec();
    bytes.extend(VERSION_32);
    bytes.extend(u16::try_from(table.longest).ok()?.to_le_bytes());
    bytes.extend([0; 6]);
    bytes.extend(b"_DMI_\0");
    bytes.extend(u16::try_from(table.bytes.len()).ok()?.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(table.count.to_le_bytes());
    bytes.push(VERSION_32[0] << 4 | VERSION_32[1]);
    for (start, at) in [(INTERMEDIATE, INTERMEDIATE + 5), (0, 4)] {
        let sum = bytes.iter().skip(start).fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        if let Some(checksum) = bytes.get_mut(at) {
            *checksum = sum.wrapping_neg();
        }
    }
    Some(bytes)
}

/// The 64-bit entry point (section 5.2.2).
fn entry_point(table_len: u32) -> Vec<u8> {
    let mut bytes = b"_SM3_\0\x18".to_vec();
    bytes.extend(VERSION);
    bytes.extend([1, 0]);
    bytes.extend(table_len.to_le_bytes());
    bytes.extend((ADDRESS + TABLE_OFFSET).to_le_bytes());
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if let Some(checksum) = bytes.get_mut(5) {
        *checksum = sum.wrapping_neg();
    }
    bytes
}

#[derive(Default)]
struct Table {
    bytes: Vec<u8>,
    /// Structures, and the longest of them with its strings.
    count: u16,
    longest: usize,
}

impl Table {
    /// A structure of `fields` behind the header, and its strings. In the fields strings are named by number: see
    /// [`Strings`].
    fn structure(&mut self, kind: u8, handle: u16, fields: &[u8], strings: &[String]) {
        let start = self.bytes.len();
        self.bytes.push(kind);
        // The longest structure here has under 100 bytes.
        self.bytes.push(u8::try_from(fields.len() + 4).unwrap_or(u8::MAX));
        self.bytes.extend(handle.to_le_bytes());
        self.bytes.extend(fields);
        for string in strings {
            self.bytes.extend(string.as_bytes());
            self.bytes.push(0);
        }
        if strings.is_empty() {
            self.bytes.push(0);
        }
        self.bytes.push(0);
        self.count = self.count.saturating_add(1);
        self.longest = self.longest.max(self.bytes.len() - start);
    }
}

/// The strings of a structure, which its fields refer to by number.
#[derive(Default)]
struct Strings(Vec<String>);

impl Strings {
    /// The number of the string `text`; zero for an empty one.
    fn add(&mut self, text: &str) -> u8 {
        let text: String = text.chars().filter(|c| !c.is_control()).collect();
        if text.is_empty() {
            return 0;
        }
        self.0.push(text);
        u8::try_from(self.0.len()).unwrap_or(0)
    }
}

/// Type 0.
fn firmware(table: &mut Table) {
    let mut strings = Strings::default();
    let (vendor, version) = (strings.add(VENDOR), strings.add(env!("CARGO_PKG_VERSION")));
    let mut fields = vec![vendor, version];
    // Start of the runtime segment; no release date; 64 KiB.
    fields.extend(0xe800_u16.to_le_bytes());
    fields.extend([0, 0]);
    // Characteristics are not supported, but for: ACPI, and that this is a VM.
    fields.extend((1_u64 << 3).to_le_bytes());
    fields.extend([1 << 0, 1 << 4]);
    // No release numbers, and no ROM size beyond the old field.
    fields.extend([0xff; 4]);
    fields.extend([0; 2]);
    table.structure(0, 0, &fields, &strings.0);
}

/// Type 1.
fn system(table: &mut Table, identity: &Smbios) {
    let mut strings = Strings::default();
    let mut fields = vec![
        strings.add(or_default(&identity.manufacturer)),
        strings.add(or_default(&identity.product)),
        strings.add(&identity.version),
        strings.add(&identity.serial),
    ];
    // The first three fields of a UUID are little-endian here (section 7.2.1).
    let [a, b, c, d, e, f, g, h, rest @ ..] = identity.uuid.unwrap_or_default();
    fields.extend([d, c, b, a, f, e, h, g]);
    fields.extend(rest);
    const POWER_SWITCH: u8 = 6;
    fields.extend([POWER_SWITCH, strings.add(&identity.sku), strings.add(&identity.family)]);
    table.structure(1, 0x100, &fields, &strings.0);
}

fn or_default(text: &str) -> &str {
    if text.is_empty() { VENDOR } else { text }
}

/// Type 3.
fn chassis(table: &mut Table, identity: &Smbios) {
    const OTHER: u8 = 1;
    const SAFE: u8 = 3;
    const NO_SECURITY: u8 = 3;
    let mut strings = Strings::default();
    let case = &identity.chassis;
    let manufacturer =
        if case.manufacturer.is_empty() { or_default(&identity.manufacturer) } else { &case.manufacturer };
    let mut fields = vec![strings.add(manufacturer), OTHER];
    fields.extend([&case.version, &case.serial, &case.asset].map(|text| strings.add(text)));
    fields.extend([SAFE, SAFE, SAFE, NO_SECURITY]);
    // Nothing of the maker's own, no height, no power cords, no contained elements.
    fields.extend([0; 8]);
    fields.push(strings.add(&case.sku));
    table.structure(3, CHASSIS, &fields, &strings.0);
}

/// Type 4, one a socket.
fn vcpu(table: &mut Table, cpus: CpuTopology, socket: u8) {
    const CENTRAL: u8 = 3;
    const OTHER_FAMILY: u8 = 1;
    const ENABLED_POPULATED: u8 = 0x41;
    const OTHER_UPGRADE: u8 = 1;
    let mut strings = Strings::default();
    let threads = cpus.cores().saturating_mul(cpus.threads());
    let mut fields = vec![strings.add(&format!("CPU {socket}")), CENTRAL, OTHER_FAMILY, strings.add(VENDOR)];
    // Id, version, voltage, and the clocks: unknown; CPUID has more.
    fields.extend([0; 16]);
    fields.extend([ENABLED_POPULATED, OTHER_UPGRADE]);
    // No cache structures; no serial number, tag or part number.
    fields.extend([0xff; 6]);
    fields.extend([0; 3]);
    fields.extend([cpus.cores(), cpus.cores(), threads]);
    // Characteristics: 64-bit, and unknown otherwise; family.
    fields.extend((1_u16 << 2).to_le_bytes());
    fields.extend(u16::from(OTHER_FAMILY).to_le_bytes());
    for count in [cpus.cores(), cpus.cores(), threads] {
        fields.extend(u16::from(count).to_le_bytes());
    }
    table.structure(4, 0x400 + u16::from(socket), &fields, &strings.0);
}

/// Types 16, 17 and 19: one array with one module that is all the RAM there is, wherever it is mapped.
fn memory_modules(table: &mut Table, memory: MemorySize) {
    let bytes = memory.bytes();
    const OTHER_PLACE: u8 = 1;
    const SYSTEM_MEMORY: u8 = 3;
    const MULTI_BIT_ECC: u8 = 6;
    const DIMM: u8 = 9;
    const RAM: u8 = 7;
    const NO_ERRORS: u16 = 0xfffe;
    let mut array = vec![OTHER_PLACE, SYSTEM_MEMORY, MULTI_BIT_ECC];
    array.extend(0x8000_0000_u32.to_le_bytes());
    array.extend(NO_ERRORS.to_le_bytes());
    array.extend(1_u16.to_le_bytes());
    array.extend(bytes.to_le_bytes());
    table.structure(16, MEMORY_ARRAY, &array, &[]);

    let mut strings = Strings::default();
    let mib = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
    // Sizes from 32 GiB on are in the extended field.
    let short = u16::try_from(mib).ok().filter(|mib| *mib < 0x7fff).unwrap_or(0x7fff);
    let mut module = Vec::new();
    module.extend(MEMORY_ARRAY.to_le_bytes());
    module.extend(NO_ERRORS.to_le_bytes());
    // Total and data width are unknown.
    module.extend([0xff; 4]);
    module.extend(short.to_le_bytes());
    module.extend([DIMM, 0, strings.add("DIMM 0"), 0, RAM]);
    // Type details: other. Speed is unknown.
    module.extend((1_u16 << 1).to_le_bytes());
    module.extend([0; 2]);
    module.push(strings.add(VENDOR));
    // Serial number, tag, part number, attributes.
    module.extend([0; 4]);
    module.extend(mib.to_le_bytes());
    // Configured speed and voltages are unknown.
    module.extend([0; 8]);
    table.structure(17, 0x1100, &module, &strings.0);

    for (handle, RamRange { start, len }) in (0x1300..).zip(ram_ranges(memory)) {
        // The addresses are in the extended fields.
        let mut mapped = vec![0xff; 8];
        mapped.extend(MEMORY_ARRAY.to_le_bytes());
        mapped.push(1);
        mapped.extend(start.to_le_bytes());
        mapped.extend((start + len - 1).to_le_bytes());
        table.structure(19, handle, &mapped, &[]);
    }
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::Chassis;

    use super::*;

    fn identity() -> Smbios {
        Smbios {
            uuid: Some(*b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff"),
            serial: "ds=nocloud".into(),
            product: "None\0sense".into(),
            chassis: Chassis {
                manufacturer: "Case & Co".into(),
                version: "v".into(),
                serial: "s".into(),
                asset: "a".into(),
                sku: "k".into(),
            },
            ..Smbios::default()
        }
    }

    fn made(identity: &Smbios, memory: u64) -> Option<Vec<u8>> {
        tables(identity, CpuTopology::new(2, 4, 2).unwrap(), MemorySize::from_bytes(memory).unwrap())
    }

    struct Structure {
        kind: u8,
        formatted: Vec<u8>,
        strings: Vec<String>,
    }

    /// Walks the table as a reader does, and requires that it ends at its declared length.
    fn walk(bytes: &[u8]) -> Vec<Structure> {
        let len = u32::from_le_bytes(bytes[12..16].try_into().unwrap());
        let mut rest = &bytes[0x20..];
        assert_eq!(rest.len(), usize::try_from(len).unwrap());
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (formatted, tail) = rest.split_at(rest[1].into());
            let end = tail.windows(2).position(|pair| pair == [0, 0]).unwrap();
            let strings = tail[..end].split(|byte| *byte == 0).map(|s| String::from_utf8_lossy(s).into());
            found.push(Structure {
                kind: formatted[0],
                formatted: formatted.to_vec(),
                strings: strings.collect(),
            });
            rest = &tail[end + 2..];
        }
        found
    }

    #[test]
    fn a_reader_finds_every_structure_with_the_length_of_its_type() {
        let bytes = made(&identity(), 4 << 30).unwrap();
        assert_eq!(&bytes[..5], b"_SM3_");
        assert_eq!(bytes[..0x18].iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert_eq!(u64::from_le_bytes(bytes[16..24].try_into().unwrap()), ADDRESS + 0x20);
        let found: Vec<_> = walk(&bytes).iter().map(|s| (s.kind, s.formatted.len())).collect();
        let want = [
            (0, 26),
            (1, 27),
            (3, 22),
            (4, 48),
            (4, 48),
            (16, 23),
            (17, 40),
            (19, 31),
            (19, 31),
            (32, 11),
            (127, 4),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn the_identity_is_what_was_given() {
        let found = walk(&made(&identity(), 4 << 30).unwrap());
        let system = &found[1];
        assert_eq!(system.strings, ["Vireo", "Nonesense", "ds=nocloud"]);
        assert_eq!(system.formatted[4..8], [1, 2, 0, 3]);
        assert_eq!(system.formatted[8..16], [0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66]);
        assert_eq!(system.formatted[16..24], [0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
        let case = &found[2];
        assert_eq!(case.strings, ["Case & Co", "v", "s", "a", "k"]);
        // Section 7.4: manufacturer, version, serial number, asset tag; the SKU is behind the contained elements.
        assert_eq!((&case.formatted[4..9], case.formatted[21]), (&[1, 1, 2, 3, 4][..], 5));
    }

    #[test]
    fn memory_of_any_size_is_described() {
        for (bytes, short) in [(128_u64 << 20, 128), (4 << 30, 4096), (64 << 30, 0x7fff)] {
            let found = walk(&made(&identity(), bytes).unwrap());
            let module = &found.iter().find(|s| s.kind == 17).unwrap().formatted;
            assert_eq!(u16::from_le_bytes([module[12], module[13]]), short);
            let mib = u32::from_le_bytes(module[28..32].try_into().unwrap());
            assert_eq!(u64::from(mib) << 20, bytes);
        }
    }

    #[test]
    fn firmware_gets_an_entry_point_that_adds_up() {
        let (cpus, memory) = (CpuTopology::new(2, 4, 2).unwrap(), MemorySize::from_bytes(4 << 30).unwrap());
        let (anchor, table) = for_firmware(&identity(), cpus, memory).unwrap();
        let sum = |bytes: &[u8]| bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!((anchor.len(), &anchor[..4], &anchor[16..21]), (31, &b"_SM_"[..], &b"_DMI_"[..]));
        assert_eq!((sum(&anchor), sum(&anchor[16..])), (0, 0));
        assert_eq!(usize::from(u16::from_le_bytes([anchor[22], anchor[23]])), table.len());
        assert_eq!(anchor[28], 10, "all structures but type 0");
        assert_eq!(table[0], 1);
    }

    #[test]
    fn the_area_ends_at_the_reset_vector() {
        let end = ADDRESS + u64::try_from(AREA).unwrap();
        assert_eq!(end, crate::arch::x86_64::reset_vector::ADDRESS);
    }

    #[test]
    fn a_vm_without_an_identity_is_described_too() {
        let found = walk(&made(&Smbios::default(), 4 << 30).unwrap());
        assert_eq!(
            (found[1].kind, &found[1].strings[..]),
            (1, &["Vireo".to_owned(), "Vireo".to_owned()][..])
        );
        assert_eq!(found[1].formatted[8..24], [0; 16], "no UUID");
    }

    #[test]
    fn texts_that_do_not_fit_are_refused() {
        let huge = Smbios { serial: "x".repeat(AREA), ..Smbios::default() };
        assert_eq!(made(&huge, 1 << 30), None);
    }
}
