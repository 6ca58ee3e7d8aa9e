//! The tables without AML.

use acpi_tables::Aml;
use acpi_tables::fadt::{FADTBuilder, Flags, PmProfile};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::mcfg::MCFG;
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;

use super::{Numa, OEM_ID, OEM_REVISION, OEM_TABLE_ID, Platform, pm_port};
use crate::bus::BusRange;
use crate::layout;

/// Length of the header that all tables share.
const HEADER: u32 = 36;

/// The OEM ID and the OEM table ID in that header.
const OEM: std::ops::Range<usize> = 10..24;

pub(super) const RSDP_CHECKSUM: usize = 8;
pub(super) const RSDP_RSDT: usize = 16;
pub(super) const RSDP_XSDT: usize = 24;
pub(super) const RSDP_EXTENDED_CHECKSUM: usize = 32;
/// What the first checksum covers.
pub(super) const RSDP_V1_LENGTH: usize = 20;
/// Where the entries begin in the lists of tables.
pub(super) const RSDT_ENTRIES: usize = 36;
pub(super) const XSDT_ENTRIES: usize = 36;
/// FIRMWARE_CTRL, DSDT and X_DSDT. X_FIRMWARE_CTRL stays zero: it must when the short one is given.
pub(super) const FADT_POINTERS: [(usize, usize); 3] = [(36, 4), (40, 4), (140, 8)];

/// Lengths in bytes of the power management registers.
const PM1_EVENT_LENGTH: u8 = 4;
const PM1_CONTROL_LENGTH: u8 = 2;
const PM_TIMER_LENGTH: u8 = 4;
/// Latencies that mean that C2 and C3 do not exist (ACPI 6.5, table 5.9).
const NO_C2: u16 = 101;
const NO_C3: u16 = 1001;
/// IAPC_BOOT_ARCH: there are devices on ports that only ACPI or knowledge finds (the serial port, the RTC), and no
/// VGA. Where the 8042 bit is clear, a kernel does not wait for a keyboard that is not there.
const BOOT_ARCH: u16 = 1 << 0 | 1 << 2;
const BOOT_ARCH_8042: u16 = 1 << 1;
/// The value for the reset register: full reset through RST_CPU and SYS_RST.
const RESET_VALUE: u8 = 0x06;
/// CMOS index of the century.
const RTC_CENTURY: u8 = 0x32;

/// MADT: the VM also has two 8259s.
const PCAT_COMPAT: u32 = 1;
/// MADT polarity and trigger of an interrupt source override.
const CONFORMS_TO_BUS: u16 = 0;
const LEVEL_ACTIVE_HIGH: u16 = 0b1101;
/// All vCPUs.
const EVERY_UID: u8 = 0xff;

fn bytes_of(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// The root pointer; `rsdt` and `xsdt` are offsets.
pub(super) fn rsdp(rsdt: usize, xsdt: usize) -> Vec<u8> {
    let mut bytes = bytes_of(&Rsdp::new(OEM_ID, offset(xsdt)));
    if let Some(field) = bytes.get_mut(RSDP_RSDT..RSDP_RSDT + 4) {
        field.copy_from_slice(&offset32(rsdt).to_le_bytes());
    }
    bytes
}

/// The list of tables with 32-bit pointers, which some boot loaders follow (GRUB's `halt`); `entries` are offsets.
pub(super) fn rsdt(entries: &[usize]) -> Sdt {
    let mut rsdt = Sdt::new(*b"RSDT", HEADER, 1, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    entries.iter().for_each(|entry| rsdt.append(offset32(*entry)));
    rsdt
}

/// The list of tables with 64-bit pointers; `entries` are offsets.
pub(super) fn xsdt(entries: &[usize]) -> Vec<u8> {
    let mut xsdt = XSDT::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    entries.iter().for_each(|entry| xsdt.add_entry(offset(*entry)));
    bytes_of(&xsdt)
}

/// Gives the table at an offset the OEM ID and the OEM table ID of another one.
pub(super) fn copy_oem(tables: &mut [u8], at: usize, from: &[u8]) {
    let to = tables.get_mut(at..).and_then(|table| table.get_mut(OEM));
    if let (Some(to), Some(from)) = (to, from.get(OEM)) {
        to.copy_from_slice(from);
    }
}

/// An offset, or another small number.
fn offset(at: usize) -> u64 {
    // Tables are a few KiB.
    u64::try_from(at).unwrap_or(0)
}

fn offset32(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(0)
}

/// The fixed hardware: the power management block of an ICH9 and the reset register; `facs` and `dsdt` are offsets.
/// Some platforms have a keyboard controller and general-purpose events as well.
pub(super) fn fadt(facs: usize, dsdt: usize, platform: &Platform<'_>) -> Vec<u8> {
    let mut fadt = FADTBuilder::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION)
        .preferred_pm_profile(PmProfile::EnterpriseServer)
        .flag(Flags::Wbinvd)
        .flag(Flags::SlpButton)
        .flag(Flags::TmrValExt)
        .flag(Flags::ResetRegSup);
    fadt.firmware_ctrl = offset32(facs).into();
    fadt.dsdt = offset32(dsdt).into();
    fadt.x_dsdt = offset(dsdt).into();
    fadt.sci_int = u16::try_from(layout::SCI_IRQ).unwrap_or(0).into();
    fadt.pm1a_evt_blk = u32::from(pm_port(0)).into();
    fadt.x_pm1a_evt_blk = io(pm_port(0), PM1_EVENT_LENGTH, AccessSize::WordAccess);
    fadt.pm1_evt_len = PM1_EVENT_LENGTH;
    fadt.pm1a_cnt_blk = u32::from(pm_port(4)).into();
    fadt.x_pm1a_cnt_blk = io(pm_port(4), PM1_CONTROL_LENGTH, AccessSize::WordAccess);
    fadt.pm1_cnt_len = PM1_CONTROL_LENGTH;
    fadt.pm_tmr_blk = u32::from(pm_port(8)).into();
    fadt.x_pm_tmr_blk = io(pm_port(8), PM_TIMER_LENGTH, AccessSize::DwordAccess);
    fadt.pm_tmr_len = PM_TIMER_LENGTH;
    if platform.hotplug != 0 {
        fadt.gpe0_blk = u32::from(pm_port(layout::GPE0_OFFSET)).into();
        fadt.x_gpe0_blk = io(pm_port(layout::GPE0_OFFSET), layout::GPE0_LENGTH, AccessSize::ByteAccess);
        fadt.gpe0_blk_len = layout::GPE0_LENGTH;
    }
    fadt.p_lvl2_lat = NO_C2.into();
    fadt.p_lvl3_lat = NO_C3.into();
    fadt.century = RTC_CENTURY;
    fadt.iapc_boot_arch = if platform.ps2 { BOOT_ARCH | BOOT_ARCH_8042 } else { BOOT_ARCH }.into();
    fadt.reset_reg = io(layout::RESET_PORT, 1, AccessSize::ByteAccess);
    fadt.reset_value = RESET_VALUE;
    bytes_of(&fadt.finalize())
}

fn io(port: u16, bytes: u8, access: AccessSize) -> GAS {
    GAS::new(AddressSpace::SystemIo, bytes * 8, 0, access, port.into())
}

/// The interrupt controllers and the vCPUs.
pub(super) fn madt(apic_ids: &[u8]) -> Sdt {
    let mut madt = Sdt::new(*b"APIC", HEADER, 5, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    let lapic = u32::try_from(layout::LAPIC_START).unwrap_or(0);
    let ioapic = u32::try_from(layout::IOAPIC_START).unwrap_or(0);
    let mut body = Vec::new();
    body.extend(lapic.to_le_bytes());
    body.extend(PCAT_COMPAT.to_le_bytes());
    for (uid, apic_id) in (0_u8..).zip(apic_ids) {
        // vCPU local APIC, enabled.
        body.extend([0, 8, uid, *apic_id, 1, 0, 0, 0]);
    }
    // IOAPIC 0 with the GSIs from 0.
    body.extend([1, 12, 0, 0]);
    body.extend(ioapic.to_le_bytes());
    body.extend(0_u32.to_le_bytes());
    body.extend(source_override(0, 2, CONFORMS_TO_BUS));
    let sci = u8::try_from(layout::SCI_IRQ).unwrap_or(0);
    body.extend(source_override(sci, layout::SCI_IRQ, LEVEL_ACTIVE_HIGH));
    // The local APICs' LINT1 is the NMI.
    let [low, high] = CONFORMS_TO_BUS.to_le_bytes();
    body.extend([4, 6, EVERY_UID, low, high, 1]);
    madt.append_slice(&body);
    madt
}

/// Which vCPUs and which memory NUMA nodes have.
pub(super) fn srat(numa: &Numa, apic_ids: &[u8]) -> Sdt {
    let mut srat = Sdt::new(*b"SRAT", HEADER, 3, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    // The table's own revision, which is 1, and reserved bytes.
    let mut body = vec![1, 0, 0, 0];
    body.extend([0; 8]);
    for (domain, node) in (0_u32..).zip(numa.nodes.nodes()) {
        let [low, high @ ..] = domain.to_le_bytes();
        for vcpu in &node.vcpus {
            let apic_id = usize::try_from(*vcpu).ok().and_then(|vcpu| apic_ids.get(vcpu));
            let Some(apic_id) = apic_id else { continue };
            // The affinity of a local APIC, enabled.
            body.extend([0, 16, low, *apic_id, 1, 0, 0, 0, 0]);
            body.extend(high);
            body.extend([0; 4]);
        }
    }
    for (domain, range) in &numa.ram {
        // The affinity of memory, enabled.
        body.extend([1, 40]);
        body.extend(offset32(*domain).to_le_bytes());
        body.extend([0; 2]);
        body.extend(range.start.to_le_bytes());
        body.extend(range.len.to_le_bytes());
        body.extend([0; 4]);
        body.extend(1_u32.to_le_bytes());
        body.extend([0; 8]);
    }
    srat.append_slice(&body);
    srat
}

/// How far NUMA nodes are from each other.
pub(super) fn slit(distances: &[Vec<u8>]) -> Sdt {
    let mut slit = Sdt::new(*b"SLIT", HEADER, 1, OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    slit.append(offset(distances.len()));
    slit.append_slice(&distances.concat());
    slit
}

/// ISA interrupt `source` is `gsi` of the IOAPIC.
fn source_override(source: u8, gsi: u32, flags: u16) -> Vec<u8> {
    let mut bytes = vec![2, 10, 0, source];
    bytes.extend(gsi.to_le_bytes());
    bytes.extend(flags.to_le_bytes());
    bytes
}

/// Where the PCI configuration space is mapped.
pub(super) fn mcfg(config: BusRange) -> Vec<u8> {
    let mut mcfg = MCFG::new(OEM_ID, OEM_TABLE_ID, OEM_REVISION);
    mcfg.add_ecam(config.start(), 0, 0, layout::PCI_LAST_BUS);
    bytes_of(&mcfg)
}
