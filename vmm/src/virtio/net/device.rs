use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::super::{Device, DeviceInfo, DeviceState, Lane};
use super::HEADER;
use super::control::Control;
use super::frame_stream::FrameStream;
use super::offload::{self, CONTROL, MAC, MQ, MRG_RXBUF, MTU, OFFERED, RING_FEATURES, STATUS};
use super::offloaded::Offloaded;
use super::receive::Receive;
use super::shared::{NetConfig, Shared};
use super::stream::{Peer, StreamReceive, StreamTransmit};
use super::transmit::Transmit;
use crate::config::{Net, NetPeer};
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
    backend: Backend,
    mtu: Option<u16>,
    config: Arc<NetConfig>,
}

/// What it exchanges frames with.
enum Backend {
    Tap {
        queues: Vec<Arc<OwnedFd>>,
        /// What it can do beside [`OFFERED`].
        more: u64,
        /// One for each queue pair, or none.
        offloads: Vec<Vhost>,
    },
    Stream(Arc<FrameStream>),
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
    /// A NIC on the tap of `net`, through file descriptors of its own, or on its stream socket.
    pub fn new(net: &Net) -> Result<Self, NetError> {
        let (queues, vhost) = match net.peer() {
            NetPeer::Tap { queues, vhost } => (queues, vhost),
            NetPeer::Stream(stream) => {
                return Ok(Self::with_backend(Backend::Stream(stream.clone()), 1, net));
            }
        };
        let taps = queues.iter().map(OwnedFd::try_clone).collect::<Result<Vec<_>, _>>();
        let taps = taps.map_err(NetError::Duplicate)?;
        taps.iter().try_for_each(|tap| prepare(tap.as_fd())).map_err(NetError::NoTap)?;
        let vhost = if vhost.len() >= taps.len() { vhost.as_slice() } else { &[] };
        let offloads = offloads(vhost).unwrap_or_else(|error| {
            tracing::warn!(%error, "vhost-net cannot be used: the monitor moves the queues of a NIC");
            Vec::new()
        });
        let more = taps.first().map_or(0, |tap| offload::more_of(tap.as_fd()));
        Ok(Self::on_taps(taps, (more, offloads), net))
    }

    /// On what behaves as a tap does.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn on(taps: Vec<OwnedFd>, net: &Net) -> Self {
        Self::on_taps(taps, (0, Vec::new()), net)
    }

    fn on_taps(taps: Vec<OwnedFd>, (more, offloads): (u64, Vec<Vhost>), net: &Net) -> Self {
        let pairs = u16::try_from(taps.len()).unwrap_or(1);
        let queues = taps.into_iter().map(Arc::new).collect();
        Self::with_backend(Backend::Tap { queues, more, offloads }, pairs, net)
    }

    fn with_backend(backend: Backend, pairs: u16, net: &Net) -> Self {
        let mtu = net.advertised_mtu();
        let config = Arc::new(NetConfig::new(net.mac(), mtu, pairs, net.link().clone()));
        Self { backend, mtu, config }
    }

    /// What the guest and the peer may leave to each other.
    fn offered(&self) -> u64 {
        match &self.backend {
            Backend::Tap { more, .. } => OFFERED | more,
            // Its frames come and go without a header that could describe anything.
            Backend::Stream(_) => 0,
        }
    }
}

/// What moves the queues in our place.
fn offloads(devices: &[OwnedFd]) -> io::Result<Vec<Vhost>> {
    let devices = devices.iter().map(|device| {
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
        let pairs = self.config.pairs();
        let multiqueue = if pairs > 1 { MQ } else { 0 };
        let mut queues = vec![QUEUE_SIZE; 2 * pairs];
        queues.push(CONTROL_QUEUE_SIZE);
        DeviceInfo {
            name: "net",
            id: DEVICE_ID,
            class: 0x02_00_00,
            features: self.offered() | MAC | MRG_RXBUF | STATUS | CONTROL | mtu | multiqueue,
            queues,
            config: self.config.clone(),
            state: DeviceState::Section(self.config.clone()),
        }
    }

    fn into_lanes(self: Box<Self>) -> Vec<Box<dyn Lane>> {
        let frame = u64::from(self.mtu.unwrap_or(DEFAULT_MTU).max(DEFAULT_MTU)) + ETHERNET;
        let (taps, offloads) = match self.backend {
            Backend::Tap { queues, offloads, .. } => (queues, offloads),
            Backend::Stream(stream) => {
                let shared = Arc::new(Shared::new(Vec::new(), self.config));
                let peer = Peer::new(stream, shared.clone());
                return vec![
                    Box::new(Control::new(shared)),
                    Box::new(StreamReceive::new(peer.clone())),
                    Box::new(StreamTransmit::new(peer)),
                ];
            }
        };
        let shared = Arc::new(Shared::new(taps.clone(), self.config));
        // Before the others: it sets which queues of the tap are attached.
        let mut lanes: Vec<Box<dyn Lane>> = vec![Box::new(Control::new(shared.clone()))];
        let mut offloads = offloads.into_iter();
        for (pair, tap) in taps.into_iter().enumerate() {
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
