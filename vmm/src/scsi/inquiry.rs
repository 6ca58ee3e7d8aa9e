//! INQUIRY data and block limits of a unit (SPC-4, sections 6.4 and 7.8; SBC-3, section 6.5).

use vireo_vmconfig::DiskDevice;

use super::unit::Unit;
use super::{padded, put};
use crate::block::{MAX_RANGE_SECTORS, MAX_RANGES, MAX_ZEROED_SECTORS};

const VENDOR: &str = "VIREO";
const SPC4: u8 = 6;

fn peripheral(kind: DiskDevice) -> u8 {
    match kind {
        DiskDevice::Disk => 0x00,
        DiskDevice::CdRom => 0x05,
    }
}

fn product(kind: DiskDevice) -> [u8; 16] {
    padded(match kind {
        DiskDevice::Disk => "DISK",
        DiskDevice::CdRom => "CD-ROM",
    })
}

/// Standard INQUIRY data.
pub(super) fn standard(kind: DiskDevice) -> Vec<u8> {
    let removable = u8::from(kind == DiskDevice::CdRom) << 7;
    // Response format 2 with HiSup; CmdQue.
    let mut reply = vec![peripheral(kind), removable, SPC4, 0x12, 31, 0, 0, 2];
    put(&mut reply, &padded::<8>(VENDOR));
    put(&mut reply, &product(kind));
    put(&mut reply, b"1   ");
    reply
}

/// A page of vital product data.
pub(super) fn page(unit: &Unit, page: u8) -> Option<Vec<u8>> {
    let serial = unit.serial.as_bytes();
    let serial = serial.split(|byte| *byte == 0).next().unwrap_or_default();
    let body = match (page, unit.kind) {
        (0x00, DiskDevice::Disk) => vec![0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2],
        (0x00, DiskDevice::CdRom) => vec![0x00, 0x80, 0x83],
        (0x80, _) => serial.to_vec(),
        (0x83, _) => identification(unit.kind, serial),
        (0xb0, DiskDevice::Disk) => limits(unit.read_only),
        // Rotation rate 1: no medium that rotates.
        (0xb1, DiskDevice::Disk) => [&[0, 1][..], &[0; 58]].concat(),
        // LBPU, LBPWS and LBPWS10; thin where the guest may write.
        (0xb2, DiskDevice::Disk) if !unit.read_only => vec![0, 0xe0, 2, 0],
        (0xb2, DiskDevice::Disk) => vec![0, 0, 0, 0],
        _ => return None,
    };
    let [high, low] = u16::try_from(body.len()).unwrap_or(0).to_be_bytes();
    Some([&[peripheral(unit.kind), page, high, low][..], &body].concat())
}

/// One designator: T10 vendor identification with the product and the serial number (SPC-4, section 7.8.6.4).
fn identification(kind: DiskDevice, serial: &[u8]) -> Vec<u8> {
    let text = [&padded::<8>(VENDOR)[..], &product(kind), serial].concat();
    let mut page = vec![0x02, 0x01, 0x00, u8::try_from(text.len()).unwrap_or(0)];
    put(&mut page, &text);
    page
}

/// Block limits (SBC-3, section 6.5.3).
fn limits(read_only: bool) -> Vec<u8> {
    let mut page = vec![0; 60];
    // Optimal transfer granularity: 4 KiB.
    page[2..4].copy_from_slice(&8_u16.to_be_bytes());
    if !read_only {
        page[16..20].copy_from_slice(&MAX_RANGE_SECTORS.to_be_bytes());
        page[20..24].copy_from_slice(&MAX_RANGES.to_be_bytes());
        page[24..28].copy_from_slice(&8_u32.to_be_bytes());
        page[32..40].copy_from_slice(&u64::from(MAX_ZEROED_SECTORS).to_be_bytes());
    }
    page
}
