use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::super::{Device, DeviceInfo, DeviceState, Lane};
use super::HEADER;
use super::control::Control;
use super::offload::{self, CONTROL, MAC, MQ, MRG_RXBUF, MTU, OFFERED, RING_FEATURES, STATUS};
use super::offloaded::Offloaded;
use super::receive::Receive;
use super::shared::{NetConfig, Shared};
use super::transmit::Transmit;

use crate::config::Net;
use crate::sys::tap;
use crate::sys::vhost::{HostRings as _, Vhost};

/// Section 5.
const DEVICE_ID: u16 = 1;
const QUEUE_SIZE: u16 = 256;
const CONTROL_QUEUE_SIZE: u16 = 64;
/// An Ethernet header with a VLAN tag, beside the MTU.
const ETHERNET: u64 = 18;
const DEFAULT_MTU: u16 = 1500;

/// A NIC.
pub struct NetDevice {
    taps: Vec<Arc<OwnedFd>>,
    mtu: Option<u16>,
    /// What the tap can do beside [`OFFERED`].
    more: u64,
    config: Arc<NetConfig>,
    /// One for each queue pair, or none.
    offloads: Vec<Vhost>,
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
    /// A NIC on the tap of `net`, through file descriptors of its own.
    pub fn new(net: &Net) -> Result<Self, NetError> {
        let taps = net.queues().iter().map(OwnedFd::try_clone).collect::<Result<Vec<_>, _>>();
        let taps = taps.map_err(NetError::Duplicate)?;
        taps.iter().try_for_each(|tap| prepare(tap.as_fd())).map_err(NetError::NoTap)?;
        let offloads = offloads(net).unwrap_or_else(|error| {
            tracing::warn!(%error, "vhost-net cannot be used: the monitor moves the queues of a NIC");
            Vec::new()
        });
        let more = taps.first().map_or(0, |tap| offload::more_of(tap.as_fd()));
        Ok(Self { more, offloads, ..Self::on(taps, net) })
    }

    /// On what behaves as a tap does.
    pub(crate) fn on(taps: Vec<OwnedFd>, net: &Net) -> Self {
        let pairs = u16::try_from(taps.len()).unwrap_or(1);
        let mtu = net.advertised_mtu();
        let config = Arc::new(NetConfig::new(net.mac(), mtu, pairs, net.link().clone()));
        Self { taps: taps.into_iter().map(Arc::new).collect(), mtu, more: 0, config, offloads: Vec::new() }
    }
}

/// What moves the queues in our place.
fn offloads(net: &Net) -> io::Result<Vec<Vhost>> {
    let devices = net.offloads().iter().map(|device| {
        let vhost = Vhost::new(device.try_clone()?)?;
        let complete = vhost.features(RING_FEATURES) == RING_FEATURES;
        complete.then_some(vhost).ok_or_else(|| io::Error::other("it does not support the rings' features"))
    });
    devices.collect()
}

fn prepare(tap: BorrowedFd<'_>) -> io::Result<()> {
    // The guest before a reset may have left it unused.
    tap::attach_queue(tap, true)?;
    tap::set_header_size(tap, i32::try_from(HEADER).map_err(io::Error::other)?)?;
    tap::set_offload(tap, 0)
}

impl Device for NetDevice {
    fn info(&self) -> DeviceInfo {
        let mtu = if self.mtu.is_some() { MTU } else { 0 };
        let multiqueue = if self.taps.len() > 1 { MQ } else { 0 };
        let mut queues = vec![QUEUE_SIZE; 2 * self.taps.len()];
        queues.push(CONTROL_QUEUE_SIZE);
        DeviceInfo {
            name: "net",
            id: DEVICE_ID,
            class: 0x02_00_00,
            features: OFFERED | self.more | MAC | MRG_RXBUF | STATUS | CONTROL | mtu | multiqueue,
            queues,
            config: self.config.clone(),
            state: DeviceState::Section(self.config.clone()),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        let frame = u64::from(self.mtu.unwrap_or(DEFAULT_MTU).max(DEFAULT_MTU)) + ETHERNET;
        let shared = Arc::new(Shared::new(self.taps.clone(), self.config));
        // Before the others: it sets which queues of the tap are attached.
        let mut lanes: Vec<Box<dyn Lane>> = vec![Box::new(Control::new(shared.clone()))];
        let mut offloads = self.offloads.into_iter();
        for (pair, tap) in self.taps.into_iter().enumerate() {
            let offload = offloads.next().and_then(|vhost| {
                Offloaded::new(vhost, pair, tap.clone(), shared.clone())
                    .inspect_err(|error| tracing::warn!(%error, pair, "the monitor moves a queue pair"))
                    .ok()
            });
            if let Some(offload) = offload {
                lanes.push(Box::new(offload));
                continue;
            }
            lanes.push(Box::new(Receive::new(pair, tap.clone(), shared.clone(), frame)));
            lanes.push(Box::new(Transmit::new(pair, tap, shared.clone())));
        }
        lanes
    }
}
