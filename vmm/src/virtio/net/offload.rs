//! Which work on frames the guest and the tap leave to each other.

use std::ffi::c_uint;
use std::os::fd::BorrowedFd;

use super::super::offloaded_rings;
use crate::sys::tap;

/// Feature bits (section 5.1.3). `GUEST` is what the guest takes from us, `HOST` what we take from the guest.
pub(super) const CSUM: u64 = 1 << 0;
pub(super) const GUEST_CSUM: u64 = 1 << 1;
pub(super) const MTU: u64 = 1 << 3;
pub(super) const MAC: u64 = 1 << 5;
const GUEST_TSO4: u64 = 1 << 7;
const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
const GUEST_UFO: u64 = 1 << 10;
const HOST_TSO4: u64 = 1 << 11;
const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
const HOST_UFO: u64 = 1 << 14;
pub(super) const MRG_RXBUF: u64 = 1 << 15;
pub(super) const STATUS: u64 = 1 << 16;
pub(super) const CTRL_VQ: u64 = 1 << 17;
const CTRL_RX: u64 = 1 << 18;
const CTRL_RX_EXTRA: u64 = 1 << 20;
pub(super) const GUEST_ANNOUNCE: u64 = 1 << 21;
pub(super) const MQ: u64 = 1 << 22;
const CTRL_MAC_ADDR: u64 = 1 << 23;
const GUEST_USO4: u64 = 1 << 54;
const GUEST_USO6: u64 = 1 << 55;
const HOST_USO: u64 = 1 << 56;

/// What the control queue carries out.
pub(super) const CONTROL: u64 = CTRL_VQ | CTRL_RX | CTRL_RX_EXTRA | GUEST_ANNOUNCE | CTRL_MAC_ADDR;

/// Those that change how rings and headers are laid out, for what moves the rings.
pub(super) const RING_FEATURES: u64 = MRG_RXBUF | offloaded_rings::RING_FEATURES;

const LARGE: u64 = GUEST_TSO4 | GUEST_TSO6 | GUEST_UFO | GUEST_USO4 | GUEST_USO6;

/// What every tap can do.
pub(super) const OFFERED: u64 = CSUM
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | HOST_UFO
    | GUEST_CSUM
    | GUEST_ECN
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_UFO;

/// Segmentation of UDP, which taps can do since Linux 6.2.
const USO: u64 = GUEST_USO4 | GUEST_USO6 | HOST_USO;

const TUN_F_CSUM: c_uint = 1;
const TUN_F_TSO4: c_uint = 2;
const TUN_F_TSO6: c_uint = 4;
const TUN_F_TSO_ECN: c_uint = 8;
const TUN_F_UFO: c_uint = 16;
const TUN_F_USO4: c_uint = 32;
const TUN_F_USO6: c_uint = 64;

/// What this tap can do more than others. It hands out none of it afterwards.
pub(super) fn more_of(tap: BorrowedFd<'_>) -> u64 {
    let can = tap::set_offload(tap, TUN_F_CSUM | TUN_F_USO4 | TUN_F_USO6).is_ok();
    if can && tap::set_offload(tap, 0).is_ok() { USO } else { 0 }
}

/// What the tap may hand to a guest with `features`. Segmentation without checksums makes no sense to it.
pub(super) fn tap_flags(features: u64) -> c_uint {
    if features & GUEST_CSUM == 0 {
        return 0;
    }
    let large = features & (GUEST_TSO4 | GUEST_TSO6) != 0;
    [
        (GUEST_TSO4, TUN_F_TSO4),
        (GUEST_TSO6, TUN_F_TSO6),
        (if large { GUEST_ECN } else { 0 }, TUN_F_TSO_ECN),
        (GUEST_UFO, TUN_F_UFO),
        // The kernel takes both or neither.
        (if features & GUEST_USO6 == 0 { 0 } else { GUEST_USO4 }, TUN_F_USO4 | TUN_F_USO6),
    ]
    .into_iter()
    .filter(|(feature, _)| features & feature != 0)
    .fold(TUN_F_CSUM, |flags, (_, flag)| flags | flag)
}

/// Whether frames larger than the MTU may arrive.
pub(super) fn takes_large(features: u64) -> bool {
    features & GUEST_CSUM != 0 && features & LARGE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tap_gets_the_offloads_of_the_guest() {
        for (features, flags, large) in [
            (0, 0, false),
            (GUEST_TSO4 | GUEST_TSO6, 0, false),
            (GUEST_CSUM, 1, false),
            (GUEST_CSUM | GUEST_ECN, 1, false),
            (GUEST_CSUM | GUEST_TSO4 | GUEST_ECN, 11, true),
            (GUEST_CSUM | GUEST_UFO, 17, true),
            (OFFERED, 31, true),
            (OFFERED | USO, 127, true),
            (GUEST_CSUM | GUEST_USO4, 1, true),
            (GUEST_CSUM | GUEST_USO4 | GUEST_USO6, 97, true),
            (HOST_TSO4 | CSUM, 0, false),
        ] {
            assert_eq!(tap_flags(features), flags, "{features:#x}");
            assert_eq!(takes_large(features), large, "{features:#x}");
        }
    }
}
