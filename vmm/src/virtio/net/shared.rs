//! What the lanes of one NIC share.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vireo_vmconfig::MacAddr;

use super::super::DeviceConfig;
use super::super::device::copy_from;
use super::super::notifier::Notifier;
use super::offload::{GUEST_ANNOUNCE, MQ};
use crate::config::Link;
use crate::sys::tap;

const LINK_UP: u16 = 1;
const ANNOUNCE: u16 = 2;

/// The tap's queues, how many of them are in use, and the configuration space.
pub(super) struct Shared {
    taps: Vec<Arc<OwnedFd>>,
    used: AtomicUsize,
    config: Arc<NetConfig>,
}

impl Shared {
    pub(super) fn new(taps: Vec<Arc<OwnedFd>>, config: Arc<NetConfig>) -> Self {
        Self { taps, used: AtomicUsize::new(1), config }
    }

    /// Rings when the link, or the number of used pairs, is another one.
    pub(super) fn on_change(&self, watcher: Arc<Notifier>) {
        self.config.watchers().push(watcher);
    }

    pub(super) fn config(&self) -> &NetConfig {
        &self.config
    }

    /// Of queues.
    pub(super) fn pairs(&self) -> usize {
        self.taps.len()
    }

    /// How many pairs a driver with these features may use.
    pub(super) fn usable_pairs(&self, features: u64) -> usize {
        if features & MQ == 0 { 1 } else { self.pairs() }
    }

    /// Whether frames come in by this pair.
    pub(super) fn is_used(&self, pair: usize) -> bool {
        pair < self.used.load(Ordering::SeqCst)
    }

    /// The tap spreads frames over the first `wanted` of its queues from now on.
    ///
    /// # Errors
    /// When there are not as many, or the kernel refuses.
    pub(super) fn use_pairs(&self, wanted: usize) -> io::Result<()> {
        if !(1..=self.pairs()).contains(&wanted) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // A detached queue answers reads with an error: its lane must know before.
        self.used.fetch_min(wanted, Ordering::SeqCst);
        // The first is always attached, also to a tap that has no others.
        for (pair, queue) in self.taps.iter().enumerate().skip(1) {
            match tap::attach_queue(queue.as_fd(), pair < wanted) {
                // The tests' stand-in for a tap.
                Err(error) if cfg!(test) => tracing::debug!(%error, "no queues"),
                result => result?,
            }
        }
        self.used.store(wanted, Ordering::SeqCst);
        self.config.watchers().iter().for_each(|watcher| watcher.ring());
        Ok(())
    }
}

/// The configuration space (section 5.1.4).
#[derive(Debug)]
pub(super) struct NetConfig {
    /// As the VM's configuration has it.
    original: MacAddr,
    /// As the driver set it.
    address: Mutex<[u8; 6]>,
    pairs: u16,
    mtu: u16,
    link: Arc<Link>,
    /// The driver acknowledges announcements.
    announces: AtomicBool,
    watchers: Watchers,
}

/// Lanes that do not look at the link by themselves.
type Watchers = Arc<Mutex<Vec<Arc<Notifier>>>>;

impl NetConfig {
    pub(super) fn new(mac: MacAddr, mtu: Option<u16>, pairs: u16, link: Arc<Link>) -> Self {
        let address = Mutex::new(mac.octets());
        Self {
            original: mac,
            address,
            pairs,
            mtu: mtu.unwrap_or(0),
            link,
            announces: AtomicBool::new(false),
            watchers: Watchers::default(),
        }
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Arc<Notifier>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// The driver is ready.
    pub(super) fn begin(&self, features: u64) {
        self.announces.store(features & GUEST_ANNOUNCE != 0, Ordering::SeqCst);
    }

    /// The driver reset the device.
    pub(super) fn end(&self) {
        self.announces.store(false, Ordering::SeqCst);
        self.set_address(self.original.octets());
    }

    pub(super) fn set_address(&self, address: [u8; 6]) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}

impl DeviceConfig for NetConfig {
    fn size(&self) -> usize {
        12
    }

    fn read(&self, offset: usize, data: &mut [u8]) {
        let [a, b, c, d, e, f] = *self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let mut status = if self.link.is_up() { LINK_UP } else { 0 };
        if self.link.is_up() && self.link.wants_announcement() && self.announces.load(Ordering::SeqCst) {
            status |= ANNOUNCE;
        }
        let [s, t] = status.to_le_bytes();
        let [p, q] = self.pairs.to_le_bytes();
        let [m, n] = self.mtu.to_le_bytes();
        copy_from(&[a, b, c, d, e, f, s, t, p, q, m, n], offset, data);
    }

    fn on_change(&self, notify: Box<dyn Fn() + Send + Sync>) {
        let watchers = self.watchers.clone();
        self.link.on_change(Box::new(move || {
            notify();
            let watchers = watchers.lock().unwrap_or_else(PoisonError::into_inner);
            watchers.iter().for_each(|watcher| watcher.ring());
        }));
    }
}
