use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a guest's driver reports of its memory (virtio 1.2, section 5.5.6.4). Sizes are in bytes; what the driver does not know
/// is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStatistics {
    /// Swapped in.
    pub swap_in: Option<u64>,
    /// Swapped out.
    pub swap_out: Option<u64>,
    /// Page faults that took an access to a disk.
    pub major_faults: Option<u64>,
    /// Other page faults.
    pub minor_faults: Option<u64>,
    /// Not used for anything.
    pub free: Option<u64>,
    /// What the guest's kernel has in all.
    pub total: Option<u64>,
    /// What programs can have without swapping.
    pub available: Option<u64>,
    /// Caches of disks.
    pub caches: Option<u64>,
}

/// The caller's side of a memory balloon, across all VMs built with it.
#[derive(Clone, Default)]
pub struct Balloon(Arc<Mutex<Shared>>);

#[derive(Default)]
struct Shared {
    /// Whether the driver gives no free pages back.
    keeps_free_pages: bool,
    statistics: Option<MemoryStatistics>,
    reports: u64,
    pages: u32,
    wake: Option<Box<dyn Fn() + Send + Sync>>,
}

/// Bytes of a page of the balloon (section 5.5.6).
pub(crate) const BALLOON_PAGE: u64 = 4096;

impl Balloon {
    /// One whose driver keeps free pages, or reports them, so that the host takes them back.
    pub fn new(keeps_free_pages: bool) -> Self {
        let shared = Shared { keeps_free_pages, ..Shared::default() };
        Self(Arc::new(Mutex::new(shared)))
    }

    /// Whether the driver is not to report free pages.
    pub(crate) fn keeps_free_pages(&self) -> bool {
        self.shared().keeps_free_pages
    }

    /// Requests statistics of the driver. It may have none to give: it may be absent, or its VM paused.
    pub fn request(&self) {
        if let Some(wake) = &self.shared().wake {
            wake();
        }
    }

    /// How often the driver has reported, and what it reported last, since it began.
    pub fn reported(&self) -> (u64, Option<MemoryStatistics>) {
        let shared = self.shared();
        (shared.reports, shared.statistics)
    }

    /// Bytes of the guest's RAM that are in the balloon.
    pub fn inflated(&self) -> u64 {
        u64::from(self.shared().pages) * BALLOON_PAGE
    }

    /// A report came in; `None`, the driver is gone.
    pub(crate) fn report(&self, statistics: Option<MemoryStatistics>) {
        let mut shared = self.shared();
        shared.statistics = statistics;
        shared.reports += u64::from(statistics.is_some());
    }

    /// The driver says how many pages are in the balloon.
    pub(crate) fn set_pages(&self, pages: u32) {
        self.shared().pages = pages;
    }

    /// Has `wake` called on a request. It must not block.
    pub(crate) fn on_request(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.shared().wake = Some(Box::new(wake));
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Balloon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Balloon")
    }
}
