use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vireo_vmconfig::{MAX_QUEUE_PAIRS, MacAddr};

use crate::virtio::net::FrameStream;

/// A virtio-net NIC.
#[derive(Debug)]
pub struct Net {
    peer: NetPeer,
    mac: MacAddr,
    mtu: Option<u16>,
    boot_order: Option<u32>,
    link: Arc<Link>,
}

/// What the frames of a NIC are exchanged with.
#[derive(Debug)]
pub(crate) enum NetPeer {
    /// A tap device.
    Tap {
        /// Its queues: at least one.
        queues: Vec<OwnedFd>,
        /// What moves the queues in the monitor's place.
        vhost: Vec<OwnedFd>,
    },
    /// Another process.
    Stream(Arc<FrameStream>),
}

impl Net {
    /// On a tap device. `tap` is an attached `/dev/net/tun` queue made with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`
    /// ([`crate::sys::tap::open`] makes one); `mac` is the guest's address.
    pub fn new(tap: OwnedFd, mac: MacAddr) -> Self {
        Self::with_peer(NetPeer::Tap { queues: vec![tap], vhost: Vec::new() }, mac)
    }

    /// On a connected stream socket, which carries frames as QEMU's `-netdev stream` does: each behind its length in bytes, a
    /// big-endian number of four bytes. It has one queue pair and no offloads. When the peer closes the connection, or sends
    /// what cannot be a length, the guest sees a link that is down, for good.
    pub fn stream(socket: OwnedFd, mac: MacAddr) -> Self {
        Self::with_peer(NetPeer::Stream(Arc::new(FrameStream::new(socket))), mac)
    }

    fn with_peer(peer: NetPeer, mac: MacAddr) -> Self {
        Self { peer, mac, mtu: None, boot_order: None, link: Arc::default() }
    }

    /// Its link, as [`Link::set_up`].
    #[must_use]
    pub fn link_up(self, up: bool) -> Self {
        self.link.set_up(up);
        self
    }

    /// Adds more queues of the same tap, all made with `IFF_MULTI_QUEUE`: the guest may use a queue pair for each. Beyond
    /// [`MAX_QUEUE_PAIRS`], and without a tap, they are closed.
    #[must_use]
    pub fn more_queues(mut self, more: impl IntoIterator<Item = OwnedFd>) -> Self {
        if let NetPeer::Tap { queues, .. } = &mut self.peer {
            queues.extend(more);
            queues.truncate(MAX_QUEUE_PAIRS);
        }
        self
    }

    /// Has the kernel move the queues, by an open `/dev/vhost-net` for each ([`crate::sys::vhost::open`] opens one). With
    /// fewer, and without a tap, the monitor moves them all.
    #[must_use]
    pub fn vhost(mut self, devices: Vec<OwnedFd>) -> Self {
        if let NetPeer::Tap { vhost, .. } = &mut self.peer {
            *vhost = devices;
        }
        self
    }

    /// Announces the MTU to the guest (VIRTIO_NET_F_MTU).
    #[must_use]
    pub fn mtu(mut self, mtu: Option<u16>) -> Self {
        self.mtu = mtu;
        self
    }

    /// Its position in the boot order, from 1.
    #[must_use]
    pub fn boot_order(mut self, order: Option<u32>) -> Self {
        self.boot_order = order;
        self
    }

    /// Its position in the boot order.
    pub fn boots_at(&self) -> Option<u32> {
        self.boot_order
    }

    pub(crate) fn peer(&self) -> &NetPeer {
        &self.peer
    }

    /// How many queue pairs the guest may use.
    pub fn queue_pairs(&self) -> usize {
        match &self.peer {
            NetPeer::Tap { queues, .. } => queues.len(),
            NetPeer::Stream(_) => 1,
        }
    }

    /// The guest's address.
    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// The MTU announced to the guest.
    pub fn advertised_mtu(&self) -> Option<u16> {
        self.mtu
    }

    /// Its link: the same across the guest's resets.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }
}

/// The link of a NIC as its guest sees it. While it is down, no frame passes.
pub struct Link {
    up: AtomicBool,
    /// Nothing is at the other end any more.
    cut: AtomicBool,
    announcement: AtomicBool,
    notify: Mutex<Option<Notify>>,
}

type Notify = Arc<dyn Fn() + Send + Sync>;

impl Default for Link {
    fn default() -> Self {
        let (up, cut, announcement) = (AtomicBool::new(true), AtomicBool::default(), AtomicBool::default());
        Self { up, cut, announcement, notify: Mutex::default() }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Link").field("up", &self.is_up()).finish_non_exhaustive()
    }
}

impl Link {
    /// Whether it is up.
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::SeqCst) && !self.is_cut()
    }

    /// Whether the NIC has lost what is at the other end: it stays down.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    /// Has it down for good. Whether it was not so before. For lanes, which notify the guest themselves: a thread that pauses
    /// the device waits for them, and others wait for that thread.
    pub(crate) fn cut(&self) -> bool {
        !self.cut.swap(true, Ordering::SeqCst)
    }

    /// Switches it, unless it [is cut](Self::is_cut); the guest is notified.
    pub fn set_up(&self, up: bool) {
        if self.up.swap(up, Ordering::SeqCst) != up {
            self.notify();
        }
    }

    /// Has the guest tell its network where it is now (VIRTIO_NET_S_ANNOUNCE), if it can.
    pub fn announce(&self) {
        self.announcement.store(true, Ordering::SeqCst);
        self.notify();
    }

    pub(crate) fn wants_announcement(&self) -> bool {
        self.announcement.load(Ordering::SeqCst)
    }

    /// The guest announces itself.
    pub(crate) fn acknowledge(&self) {
        self.announcement.store(false, Ordering::SeqCst);
    }

    /// Calls `notify` after each change, in place of the one before.
    pub(crate) fn on_change(&self, notify: Box<dyn Fn() + Send + Sync>) {
        *self.notify.lock().unwrap_or_else(PoisonError::into_inner) = Some(notify.into());
    }

    fn notify(&self) {
        let notify = self.notify.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(notify) = notify {
            notify();
        }
    }
}
