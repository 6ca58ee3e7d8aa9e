//! The network device (section 5.1), on a tap.

mod control;
mod device;
mod offload;
mod offloaded;
mod receive;
mod shared;
#[cfg(test)]
mod tests;
mod transmit;

pub use device::{NetDevice, NetError};

/// Every frame is behind a `virtio_net_hdr_v1` (section 5.1.6), on both sides: nothing is translated.
const HEADER: u64 = 12;
/// The largest frame with offloads: 64 KiB of packet and an Ethernet header with a VLAN tag.
const MAX_FRAME: u64 = 65_535 + 18;
