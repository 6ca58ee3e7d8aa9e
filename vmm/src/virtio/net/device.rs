use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::super::{Device, DeviceInfo, Queues, RingError};
use super::offload::{self, MAC, MRG_RXBUF, MTU, OFFERED, STATUS};
use super::receive::Receiver;
use super::{HEADER, transmit};
use vireo_vmconfig::MacAddr;

use crate::config::Net;
use crate::sys::tap;

/// Section 5.
const DEVICE_ID: u16 = 1;
const QUEUE_SIZE: u16 = 256;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const LINK_UP: u16 = 1;
/// An Ethernet header with a VLAN tag, beside the MTU.
const ETHERNET: u64 = 18;
const DEFAULT_MTU: u16 = 1500;

/// A NIC.
pub struct NetDevice {
    tap: OwnedFd,
    mac: MacAddr,
    mtu: Option<u16>,
    receiver: Receiver,
    ring_size: usize,
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
        Self { tap, mac, mtu, receiver: Receiver::default(), ring_size: 0 }
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

    fn activate(&mut self, features: u64) -> io::Result<()> {
        let flags = offload::tap_flags(features);
        match tap::set_offload(self.tap.as_fd(), flags) {
            // The tests' stand-in for a tap.
            Err(error) if cfg!(test) => tracing::debug!(%error, "no offloads"),
            result => result?,
        }
        let frame = u64::from(self.mtu.unwrap_or(DEFAULT_MTU).max(DEFAULT_MTU)) + ETHERNET;
        self.receiver = Receiver::new(features & MRG_RXBUF != 0, offload::takes_large(features), frame);
        self.ring_size = 0;
        Ok(())
    }

    fn process_queue(&mut self, queue: usize, queues: &mut Queues) -> Result<(), RingError> {
        let ring = queues.get(queue)?;
        match queue {
            RECEIVE => {
                self.ring_size = ring.size();
                self.receiver.refill(ring)
            }
            TRANSMIT => {
                let tap = self.tap.as_fd();
                ring.drain(|memory, pending, chain| transmit::send(tap, memory, pending, chain))
            }
            other => Err(RingError::Absent(other)),
        }
    }

    fn source(&self) -> Option<BorrowedFd<'_>> {
        (self.ring_size > 0 && self.receiver.is_ready(self.ring_size)).then(|| self.tap.as_fd())
    }

    fn source_ready(&mut self, queues: &mut Queues) -> Result<(), RingError> {
        self.receiver.receive(self.tap.as_fd(), queues.get(RECEIVE)?)
    }
}
