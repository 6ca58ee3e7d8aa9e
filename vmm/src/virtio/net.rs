//! The network device (section 5.1), on a tap or on a stream socket.

mod control;
mod device;
mod frame_stream;
mod offload;
mod offloaded;
mod receive;
mod shared;
mod stream;
#[cfg(test)]
mod stream_tests;
#[cfg(test)]
mod tests;
mod transmit;

pub use device::{NetDevice, NetError};
pub(crate) use frame_stream::FrameStream;

/// Every frame of the guest is behind a `virtio_net_hdr_v1` (section 5.1.6), as every frame of a tap: nothing is translated.
const HEADER: u64 = 12;
/// The largest frame with offloads: 64 KiB of packet and an Ethernet header with a VLAN tag.
const MAX_FRAME: u64 = 65_535 + 18;
