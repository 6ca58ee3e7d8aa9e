//! What the lanes of one NIC share.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use vireo_vmconfig::MacAddr;

use super::super::DeviceConfig;
use super::super::device::copy_from;
use super::super::notifier::Notifier;
use super::offload::{GUEST_ANNOUNCE, MQ};
use crate::config::Link;
use crate::state::{Section, SectionError};
use crate::sys::tap;

const LINK_UP: u16 = 1;
const ANNOUNCE: u16 = 2;

/// The tap's queues, if there is a tap, and what the driver has set.
pub(super) struct Shared {
    taps: Vec<Arc<OwnedFd>>,
    config: Arc<NetConfig>,
}

impl Shared {
    pub(super) fn new(taps: Vec<Arc<OwnedFd>>, config: Arc<NetConfig>) -> Self {
        Self { taps, config }
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
        self.config.pairs()
    }

    /// How many pairs a driver with these features may use.
    pub(super) fn usable_pairs(&self, features: u64) -> usize {
        if features & MQ == 0 { 1 } else { self.pairs() }
    }

    /// Whether frames come in by this pair.
    pub(super) fn is_used(&self, pair: usize) -> bool {
        pair < self.config.used.load(Ordering::SeqCst)
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
        self.config.used.fetch_min(wanted, Ordering::SeqCst);
        // The first is always attached, also to a tap that has no others.
        for (pair, queue) in self.taps.iter().enumerate().skip(1) {
            match tap::attach_queue(queue.as_fd(), pair < wanted) {
                // The tests' stand-in for a tap.
                Err(error) if cfg!(test) => tracing::debug!(%error, "no queues"),
                result => result?,
            }
        }
        self.config.used.store(wanted, Ordering::SeqCst);
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
    /// The driver is ready.
    active: AtomicBool,
    /// Queue pairs in use.
    used: AtomicUsize,
    /// As `used`, of a driver that was loaded, for when the device is activated.
    loaded: Mutex<Option<u16>>,
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
            active: AtomicBool::new(false),
            used: AtomicUsize::new(1),
            loaded: Mutex::default(),
            watchers: Watchers::default(),
        }
    }

    fn watchers(&self) -> MutexGuard<'_, Vec<Arc<Notifier>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of queues.
    pub(super) fn pairs(&self) -> usize {
        self.pairs.into()
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// The driver is ready.
    pub(super) fn begin(&self, features: u64) {
        self.announces.store(features & GUEST_ANNOUNCE != 0, Ordering::SeqCst);
        self.active.store(true, Ordering::SeqCst);
    }

    /// The driver reset the device.
    pub(super) fn end(&self) {
        self.active.store(false, Ordering::SeqCst);
        self.announces.store(false, Ordering::SeqCst);
        self.set_address(self.original.octets());
    }

    /// How many queue pairs are in use when the driver is ready (section 5.1.6.5.5), or were when it was saved.
    pub(super) fn first_pairs(&self) -> usize {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(1, usize::from)
    }

    pub(super) fn set_address(&self, address: [u8; 6]) {
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }
}

/// What the driver has set by the control queue, as it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetState {
    address: [u8; 6],
    pairs: u16,
}

impl Section for NetConfig {
    const TAG: &'static str = "virtio-net";
    const VERSION: u16 = 1;
    type State = NetState;

    fn save(&self) -> Result<NetState, SectionError> {
        let used = if self.active.load(Ordering::SeqCst) { self.used.load(Ordering::SeqCst) } else { 1 };
        let address = *self.address.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(NetState { address, pairs: u16::try_from(used).unwrap_or(1) })
    }

    fn load(&self, NetState { address, pairs }: NetState) -> Result<(), SectionError> {
        if !(1..=self.pairs).contains(&pairs) {
            return Err(SectionError::Invalid("it uses more queue pairs than there are"));
        }
        self.set_address(address);
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = (pairs > 1).then_some(pairs);
        Ok(())
    }

    /// Switches learn where the guest is now.
    fn loaded(&self) {
        self.link.announce();
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
