use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::super::{Device, DeviceInfo, Lane};
use super::HEADER;
use super::offload::{MAC, MRG_RXBUF, MTU, OFFERED, STATUS};
use super::receive::Receive;
use super::transmit::Transmit;
use vireo_vmconfig::MacAddr;

use crate::config::Net;
use crate::sys::tap;

/// Section 5.
const DEVICE_ID: u16 = 1;
const QUEUE_SIZE: u16 = 256;
const LINK_UP: u16 = 1;
/// An Ethernet header with a VLAN tag, beside the MTU.
const ETHERNET: u64 = 18;
const DEFAULT_MTU: u16 = 1500;

/// A NIC.
pub struct NetDevice {
    tap: Arc<OwnedFd>,
    mac: MacAddr,
    mtu: Option<u16>,
}

/// Why a NIC cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// No file descriptor of our own.
    #[error("the tap device's descriptor cannot be duplicated")]
    Duplicate(#[source] io::Error),
    /// Not a tap, or opened without the required flags.
    #[error("the tap device does not take virtio headers: open it with IFF_TAP | IFF_NO_PI | IFF_VNET_HDR")]
    NoTap(#[source] io::Error),
}

impl NetDevice {
    /// A NIC on the tap of `net`, through a file descriptor of its own.
    pub fn new(net: &Net) -> Result<Self, NetError> {
        let tap = net.tap().try_clone().map_err(NetError::Duplicate)?;
        prepare(tap.as_fd()).map_err(NetError::NoTap)?;
        Ok(Self::on(tap, net.mac(), net.advertised_mtu()))
    }

    pub(super) fn on(tap: OwnedFd, mac: MacAddr, mtu: Option<u16>) -> Self {
        Self { tap: Arc::new(tap), mac, mtu }
    }
}

fn prepare(tap: BorrowedFd<'_>) -> io::Result<()> {
    tap::set_header_size(tap, i32::try_from(HEADER).map_err(io::Error::other)?)?;
    tap::set_offload(tap, 0)
}

impl Device for NetDevice {
    fn info(&self) -> DeviceInfo {
        let mut config = self.mac.octets().to_vec();
        config.extend(LINK_UP.to_le_bytes());
        config.extend(1_u16.to_le_bytes()); // max_virtqueue_pairs: not offered
        config.extend(self.mtu.unwrap_or(0).to_le_bytes());
        let mtu = if self.mtu.is_some() { MTU } else { 0 };
        DeviceInfo {
            name: "net",
            id: DEVICE_ID,
            class: 0x02_00_00,
            features: OFFERED | MAC | MRG_RXBUF | STATUS | mtu,
            queues: vec![QUEUE_SIZE; 2],
            config: Arc::new(config),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        let frame = u64::from(self.mtu.unwrap_or(DEFAULT_MTU).max(DEFAULT_MTU)) + ETHERNET;
        vec![Box::new(Receive::new(0, self.tap.clone(), frame)), Box::new(Transmit::new(0, self.tap))]
    }
}
