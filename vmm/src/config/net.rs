use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vireo_vmconfig::{MAX_QUEUE_PAIRS, MacAddr};

/// A virtio-net NIC on a tap device.
#[derive(Debug)]
pub struct Net {
    queues: Vec<OwnedFd>,
    vhost: Vec<OwnedFd>,
    mac: MacAddr,
    mtu: Option<u16>,
    boot_order: Option<u32>,
    link: Arc<Link>,
}

impl Net {
    /// `tap` is an attached `/dev/net/tun` queue made with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`
    /// ([`crate::sys::tap::open`] makes one); `mac` is the guest's address.
    pub fn new(tap: OwnedFd, mac: MacAddr) -> Self {
        Self { queues: vec![tap], vhost: Vec::new(), mac, mtu: None, boot_order: None, link: Arc::default() }
    }

    /// Its link, as [`Link::set_up`].
    #[must_use]
    pub fn link_up(self, up: bool) -> Self {
        self.link.set_up(up);
        self
    }

    /// Adds more queues of the same tap, all made with `IFF_MULTI_QUEUE`: the guest may use a queue pair for each. Beyond
    /// [`MAX_QUEUE_PAIRS`] they are closed.
    #[must_use]
    pub fn more_queues(mut self, queues: impl IntoIterator<Item = OwnedFd>) -> Self {
        self.queues.extend(queues);
        self.queues.truncate(MAX_QUEUE_PAIRS);
        self
    }

    /// Has the kernel move the queues, by an open `/dev/vhost-net` for each ([`crate::sys::vhost::open`] opens one). With
    /// fewer, the monitor moves them all.
    #[must_use]
    pub fn vhost(mut self, devices: Vec<OwnedFd>) -> Self {
        self.vhost = devices;
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

    /// The tap's queues: at least one.
    pub fn queues(&self) -> &[OwnedFd] {
        &self.queues
    }

    /// What moves the queues, if there is one for each.
    pub(crate) fn offloads(&self) -> &[OwnedFd] {
        if self.vhost.len() >= self.queues.len() { &self.vhost } else { &[] }
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
    announcement: AtomicBool,
    notify: Mutex<Option<Notify>>,
}

type Notify = Arc<dyn Fn() + Send + Sync>;

impl Default for Link {
    fn default() -> Self {
        Self { up: AtomicBool::new(true), announcement: AtomicBool::new(false), notify: Mutex::default() }
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
        self.up.load(Ordering::SeqCst)
    }

    /// Switches it; the guest is notified.
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
