//! The layout of the BAR, and the capabilities that describe it (section 4.1.4).

use super::touches;
use crate::pci::{ConfigSpace, Msix};

const VENDOR_SPECIFIC: u8 = 0x09;
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const ISR: u8 = 3;
const DEVICE: u8 = 4;
const PCI_CONFIG: u8 = 5;

/// Each region has a page of its own, so that a guest may map them apart.
const PAGE: u64 = 0x1000;
/// Of the BAR; a power of two.
pub(super) const BAR_SIZE: u64 = 8 * PAGE;
/// A queue's notification address is its index times this into the notify region.
pub(super) const NOTIFY_MULTIPLIER: u64 = 4;
pub(super) const NOTIFY_OFFSET: u64 = 3 * PAGE;
/// Offset of the MSI-X table in the BAR.
const MSIX_TABLE: u32 = 0x4000;
/// Offset of the MSI-X pending bits in the BAR.
const MSIX_PENDING: u32 = 0x5000;

/// A part of the BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Region {
    Common,
    Isr,
    Device,
    Notify,
    MsixTable,
    MsixPending,
}

impl Region {
    /// What is at `offset` of the BAR, and how far into it.
    pub(super) fn at(offset: u64) -> Option<(Self, u64)> {
        let region = match offset / PAGE {
            0 => Self::Common,
            1 => Self::Isr,
            2 => Self::Device,
            3 => Self::Notify,
            4 => Self::MsixTable,
            5 => Self::MsixPending,
            _ => return None,
        };
        Some((region, offset % PAGE))
    }
}

/// A virtio capability behind the id and the pointer to the next: length, type, BAR, offset, length, then `more`.
fn body((kind, bar): (u8, u8), page: u32, len: u32, more: &[u8]) -> Vec<u8> {
    let size = u8::try_from(16 + more.len()).unwrap_or(u8::MAX);
    let mut body = vec![size, kind, bar, 0, 0, 0];
    body.extend((page * 0x1000).to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend(more);
    body
}

/// Adds the capability of the messages, whose tables are in the same BAR.
pub(super) fn add_messages(msix: &Msix, space: &mut ConfigSpace, bar: u8) -> u8 {
    let at = |offset: u32| offset | u32::from(bar);
    msix.add_capability(space, at(MSIX_TABLE), at(MSIX_PENDING))
}

/// Adds the five virtio capabilities, of regions in `bar`; the answer is the window of the last.
pub(super) fn add_all(space: &mut ConfigSpace, bar: u8, device_config: usize) -> Window {
    let device_len = u32::try_from(device_config).unwrap_or(u32::MAX);
    let multiplier = 4_u32.to_le_bytes();
    space.add_capability(VENDOR_SPECIFIC, &body((COMMON, bar), 0, 0x38, &[]), &[]);
    space.add_capability(VENDOR_SPECIFIC, &body((ISR, bar), 1, 1, &[]), &[]);
    if device_len > 0 {
        space.add_capability(VENDOR_SPECIFIC, &body((DEVICE, bar), 2, device_len, &[]), &[]);
    }
    space.add_capability(VENDOR_SPECIFIC, &body((NOTIFY, bar), 3, 0x1000, &multiplier), &[]);
    // BAR, offset, length and data are the driver's to write.
    let writable =
        [0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    let at = space.add_capability(VENDOR_SPECIFIC, &body((PCI_CONFIG, bar), 0, 0, &[0; 4]), &writable);
    Window { at: usize::from(at), bar }
}

/// Access to the BAR through configuration space, for who cannot reach it otherwise (section 4.1.4.9).
pub(super) struct Window {
    at: usize,
    bar: u8,
}

impl Window {
    /// Whether an access touches the data.
    pub(super) fn touches(&self, register: u16, len: usize) -> bool {
        touches(register, len, self.at + 16, 4)
    }

    /// The window in the BAR and its length: 1, 2 or 4, aligned, as the specification requires.
    pub(super) fn target(&self, space: &ConfigSpace) -> Option<(u64, usize)> {
        let [bar, _] = space.u16(self.at + 4).to_le_bytes();
        let offset = u64::from(space.u32(self.at + 8));
        let len = space.u32(self.at + 12);
        let good = bar == self.bar
            && matches!(len, 1 | 2 | 4)
            && offset.is_multiple_of(u64::from(len))
            && offset < BAR_SIZE;
        good.then_some((offset, usize::try_from(len).ok()?))
    }

    /// What the driver wrote.
    pub(super) fn value(&self, space: &ConfigSpace) -> [u8; 4] {
        space.u32(self.at + 16).to_le_bytes()
    }

    /// What the driver shall read.
    pub(super) fn load(&self, space: &mut ConfigSpace, value: [u8; 4]) {
        space.set(self.at + 16, &value);
    }
}
