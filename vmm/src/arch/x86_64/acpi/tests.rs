use vireo_vmconfig::{HostNode, HugePage};

use super::*;
use crate::config::MemorySize;
use crate::memory::node_ranges;

const BASE: u64 = 0xe_0040;

fn placed(apic_ids: &[u8]) -> Placed {
    with_tables(apic_ids, &[])
}

fn with_tables(apic_ids: &[u8], tables: &[AcpiTable]) -> Placed {
    with_hotplug(apic_ids, tables, SLOTS)
}

/// Eight slots.
const SLOTS: u32 = 0xff << 4;

fn with_hotplug(apic_ids: &[u8], tables: &[AcpiTable], hotplug: u32) -> Placed {
    let windows = Windows::above(6 << 30);
    let platform = Platform { apic_ids, windows, ps2: false, panic_port: true, hotplug, numa: None, tables };
    Blobs::new(&platform).place(BASE).unwrap()
}

fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    bytes[at..at + size].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
}

/// The table that a pointer leads to, checked.
fn table<'a>(placed: &'a Placed, address: u64, signature: &[u8; 4]) -> &'a [u8] {
    let at = usize::try_from(address - BASE).unwrap();
    let len = usize::try_from(number(&placed.tables, at + 4, 4)).unwrap();
    let table = &placed.tables[at..at + len];
    assert_eq!(&table[..4], signature);
    if signature != b"FACS" {
        assert_eq!(sum(table), 0, "checksum of {}", String::from_utf8_lossy(signature));
    }
    table
}

fn listed<'a>(placed: &'a Placed, signature: &[u8; 4]) -> &'a [u8] {
    let xsdt = table(placed, number(&placed.rsdp, 24, 8), b"XSDT");
    let address = (36..xsdt.len())
        .step_by(8)
        .map(|at| number(xsdt, at, 8))
        .find(|address| {
            let at = usize::try_from(address - BASE).unwrap();
            placed.tables[at..].starts_with(signature)
        })
        .expect("the table is in the XSDT");
    table(placed, address, signature)
}

#[test]
fn every_table_is_reached_from_the_root_and_sums_to_zero() {
    let placed = placed(&[0, 1, 4]);
    assert_eq!(&placed.rsdp[..8], b"RSD PTR ");
    assert_eq!((sum(&placed.rsdp[..20]), sum(&placed.rsdp)), (0, 0));
    let fadt = listed(&placed, b"FACP");
    listed(&placed, b"APIC");
    let mcfg = listed(&placed, b"MCFG");
    assert_eq!(number(mcfg, 54, 2), 0, "the first and last bus: there is but one");
    let dsdt = number(fadt, 40, 4);
    assert_eq!(dsdt, number(fadt, 140, 8));
    table(&placed, dsdt, b"DSDT");
    let facs = number(fadt, 36, 4);
    assert_eq!(facs % 64, 0);
    assert_eq!(number(fadt, 132, 8), 0, "X_FIRMWARE_CTRL beside FIRMWARE_CTRL is an error");
    assert_eq!(table(&placed, facs, b"FACS").len(), 64);
}

#[test]
fn both_lists_of_tables_have_the_same() {
    let placed = placed(&[0, 1]);
    let rsdt = table(&placed, number(&placed.rsdp, 16, 4), b"RSDT");
    let xsdt = table(&placed, number(&placed.rsdp, 24, 8), b"XSDT");
    let pointers = |list: &[u8], size| {
        (36..list.len()).step_by(size).map(|at| number(list, at, size)).collect::<Vec<_>>()
    };
    assert_eq!(pointers(rsdt, 4).len(), 3);
    assert_eq!(pointers(rsdt, 4), pointers(xsdt, 8));
}

#[test]
fn the_fadt_names_the_power_block_and_the_reset_register() {
    let placed = placed(&[0]);
    let fadt = listed(&placed, b"FACP");
    assert_eq!((fadt.len(), fadt[8]), (276, 6));
    assert_eq!(number(fadt, 46, 2), 9, "SCI");
    assert_eq!((number(fadt, 56, 4), number(fadt, 64, 4), number(fadt, 76, 4)), (0x600, 0x604, 0x608));
    assert_eq!(fadt[108], 0x32);
    let flags = number(fadt, 112, 4);
    assert_eq!(flags & (1 << 20), 0, "not hardware-reduced");
    assert_eq!(flags & (1 << 4), 0, "the power button is a fixed feature");
    assert_eq!(flags & (1 << 6), 0, "and so is the clock's alarm");
    assert_ne!(flags & (1 << 10), 0, "the reset register is there");
    assert_eq!((fadt[116], number(fadt, 120, 8), fadt[128]), (1, 0xcf9, 6));
    // X_PM1a_EVT_BLK: I/O space, 32 bits wide.
    assert_eq!((fadt[148], fadt[149], number(fadt, 152, 8)), (1, 32, 0x600));
}

#[test]
fn hotplug_slots_are_devices_and_have_an_event() {
    let dsdt = |placed: &Placed| {
        let address = number(listed(placed, b"FACP"), 40, 4);
        table(placed, address, b"DSDT").to_vec()
    };
    let count = |of: &[u8], what: &[u8]| of.windows(what.len()).filter(|bytes| *bytes == what).count();
    let placed = with_hotplug(&[0], &[], 1 << 4 | 1 << 30);
    let fadt = listed(&placed, b"FACP");
    // GPE0_BLK, its length and X_GPE0_BLK: I/O space, 128 bits.
    assert_eq!((number(fadt, 80, 4), fadt[92]), (0x620, 16));
    assert_eq!((fadt[220], fadt[221], number(fadt, 224, 8)), (1, 128, 0x620));
    let with = dsdt(&placed);
    for (name, times) in [("S04_", 3), ("S1E_", 3), ("S05_", 0), ("_EJ0", 2), ("_E01", 1), ("PCNT", 2)] {
        assert_eq!(count(&with, name.as_bytes()), times, "{name}");
    }
    // Name(_ADR, 0x001E0000)
    assert_eq!(count(&with, b"_ADR\x0c\x00\x00\x1e\x00"), 1);
    // The ports of the controller belong to the motherboard: IO with the first address twice.
    assert_eq!(count(&with, &[0x47, 1, 0xc0, 0xc, 0xc0, 0xc, 1, 12]), 1);
    let without = with_hotplug(&[0], &[], 0);
    let fadt = listed(&without, b"FACP");
    assert_eq!((number(fadt, 80, 4), fadt[92], number(fadt, 224, 8)), (0, 0, 0));
    assert_eq!(count(&dsdt(&without), b"_EJ0"), 0);
}

#[test]
fn the_madt_lists_each_vcpu_once() {
    let placed = placed(&[0, 1, 4]);
    let madt = listed(&placed, b"APIC");
    assert_eq!((number(madt, 36, 4), number(madt, 40, 4)), (0xfee0_0000, 1));
    let (mut at, mut lapics, mut overrides) = (44, Vec::new(), Vec::new());
    while at < madt.len() {
        match madt[at] {
            0 => lapics.push((madt[at + 2], madt[at + 3])),
            1 => assert_eq!((number(madt, at + 4, 4), number(madt, at + 8, 4)), (0xfec0_0000, 0)),
            2 => overrides.push((madt[at + 3], number(madt, at + 4, 4), number(madt, at + 8, 2))),
            _ => {}
        }
        at += usize::from(madt[at + 1]);
    }
    assert_eq!(at, madt.len());
    assert_eq!(lapics, [(0, 0), (1, 1), (2, 4)]);
    assert_eq!(overrides, [(0, 2, 0), (9, 9, 0xd)]);
}

#[test]
fn the_most_vcpus_leave_room_for_smbios() {
    let apic_ids: Vec<u8> = (0..254).collect();
    let placed = placed(&apic_ids);
    assert!(BASE + u64::try_from(placed.tables.len()).unwrap() <= 0xf_0000);
}

/// A guest whose vCPUs are one by one of so many nodes.
fn numa(nodes: u32, vcpus: u32) -> Numa {
    let host = (0..nodes).map(|id| HostNode {
        id,
        cpus: (id..vcpus).step_by(usize::try_from(nodes).unwrap()).collect(),
        ..HostNode::default()
    });
    let host: Vec<_> = host.collect();
    let cpus: Vec<usize> = (0..usize::try_from(vcpus).unwrap()).collect();
    let bytes = 3 << 30;
    let nodes = GuestNuma::of(&host, &cpus, bytes, HugePage::Mib2).unwrap();
    let ram = node_ranges(MemorySize::from_bytes(bytes).unwrap(), nodes.nodes());
    Numa { nodes, ram }
}

fn with_numa(apic_ids: &[u8], numa: &Numa, tables: &[AcpiTable]) -> Placed {
    let windows = Windows::above(6 << 30);
    let numa = Some(numa);
    let platform = Platform { apic_ids, windows, ps2: false, panic_port: true, hotplug: SLOTS, numa, tables };
    Blobs::new(&platform).place(BASE).unwrap()
}

#[test]
fn nodes_have_vcpus_memory_and_distances() {
    let placed = with_numa(&[0, 1, 4], &numa(2, 3), &[]);
    let srat = listed(&placed, b"SRAT");
    assert_eq!((srat[8], number(srat, 36, 4)), (3, 1));
    let (mut at, mut vcpus, mut memory) = (48, Vec::new(), Vec::new());
    while at < srat.len() {
        match srat[at] {
            0 => {
                assert_eq!((number(srat, at + 4, 4), number(srat, at + 8, 8)), (1, 0));
                vcpus.push((srat[at + 2], srat[at + 3]));
            }
            _ => {
                assert_eq!((srat[at], number(srat, at + 28, 4)), (1, 1));
                let [domain, start, len] =
                    [(2, 4), (8, 8), (16, 8)].map(|(to, size)| number(srat, at + to, size));
                memory.push((domain, start, len));
            }
        }
        at += usize::from(srat[at + 1]);
    }
    assert_eq!(at, srat.len());
    assert_eq!(vcpus, [(0, 0), (0, 4), (1, 1)]);
    let gib = 1 << 30;
    assert_eq!(memory, [(0, 0, 3 * gib / 2), (1, 3 * gib / 2, gib / 2), (1, 4 * gib, gib)]);
    let slit = listed(&placed, b"SLIT");
    assert_eq!((number(slit, 36, 8), &slit[44..]), (2, &[10, 20, 20, 10][..]));
}

/// With the largest of given tables, and as many nodes as a guest of the monitor may have.
#[test]
fn the_most_nodes_leave_room_for_smbios() {
    let mut bytes = vec![7; AcpiTable::MAX];
    bytes[..4].copy_from_slice(b"MSDM");
    bytes[4..8].copy_from_slice(&u32::try_from(AcpiTable::MAX).unwrap().to_le_bytes());
    bytes[9] = bytes[9].wrapping_sub(sum(&bytes));
    let table = AcpiTable::try_from(bytes).unwrap();
    let ids: Vec<u8> = (0..=253).collect();
    let most = u32::try_from(crate::config::VmConfig::MAX_NUMA_NODES).unwrap();
    let placed = with_numa(&ids, &numa(most, 254), &[table.clone(), table]);
    let end = BASE + u64::try_from(placed.tables.len()).unwrap();
    assert!(end <= crate::arch::x86_64::smbios::ADDRESS, "{end:#x}");
}

#[test]
fn tables_out_of_reach_are_refused() {
    let platform = Platform {
        apic_ids: &[0],
        windows: Windows::above(1 << 30),
        ps2: true,
        panic_port: true,
        hotplug: SLOTS,
        numa: None,
        tables: &[],
    };
    let refused = Blobs::new(&platform).place(0xffff_ff00).unwrap_err();
    assert_eq!(refused, PlaceError(0xffff_ff00));
    let refused = Blobs::new(&platform).place(u64::MAX).unwrap_err();
    assert_eq!(refused, PlaceError(u64::MAX));
}

/// The largest that are taken end before the SMBIOS tables, whatever the number of vCPUs.
#[test]
fn given_tables_are_listed_and_a_license_has_its_manufacturer() {
    let table = |signature: &[u8; 4]| {
        let mut bytes = vec![7; AcpiTable::MAX];
        bytes[..4].copy_from_slice(signature);
        bytes[4..8].copy_from_slice(&u32::try_from(AcpiTable::MAX).unwrap().to_le_bytes());
        bytes[10..24].copy_from_slice(b"MAKER THEBOARD");
        bytes[9] = bytes[9].wrapping_sub(sum(&bytes));
        AcpiTable::try_from(bytes).unwrap()
    };
    let given = [table(b"MSDM"), table(b"SLIC")];
    let ids: Vec<u8> = (0..=253).collect();
    let placed = with_tables(&ids, &given);
    for given in &given {
        assert_eq!(listed(&placed, &given.signature()), given.bytes());
    }
    assert_eq!(&listed(&placed, b"FACP")[10..24], b"MAKER THEBOARD");
    assert_eq!(&table_of_roots(&placed)[10..24], b"MAKER THEBOARD");
    assert_eq!(&listed(&placed, b"APIC")[10..16], b"VIREO ");
    let end = BASE + u64::try_from(placed.tables.len()).unwrap();
    assert!(end <= crate::arch::x86_64::smbios::ADDRESS, "{end:#x}");
    let without = with_tables(&ids, &given[..1]);
    assert_eq!(&listed(&without, b"FACP")[10..16], b"VIREO ");
}

fn table_of_roots(placed: &Placed) -> &[u8] {
    table(placed, number(&placed.rsdp, 24, 8), b"XSDT")
}
