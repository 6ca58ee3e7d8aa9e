//! What is saved of the adapter: frames with the host's copy of their pixels, what is shown of them, and what firmware drew.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::display::{DisplayState, GpuDisplay};
use super::resource::{ResourceState, Resources};
use crate::state::{Section, SectionError, SharedSection};

/// What the adapter's worker and its section share. Frames are locked before what is shown of them.
pub(super) struct Shared {
    pub(super) display: Arc<GpuDisplay>,
    resources: Mutex<Resources>,
    /// The frames are those of the driver that is activated next: it was there when the VM was saved.
    loaded: AtomicBool,
    /// Of what firmware draws on.
    firmware: Option<SharedSection>,
}

impl Shared {
    pub(super) fn new(display: Arc<GpuDisplay>, firmware: Option<SharedSection>) -> Self {
        Self { display, resources: Mutex::default(), loaded: AtomicBool::new(false), firmware }
    }

    pub(super) fn resources(&self) -> MutexGuard<'_, Resources> {
        self.resources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A driver has come, or gone.
    pub(super) fn reset(&self, active: bool) {
        if self.loaded.swap(false, Ordering::SeqCst) && active {
            return;
        }
        *self.resources() = Resources::default();
        self.display.reset(active);
    }
}

/// As it is saved.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuState {
    resources: Vec<ResourceState>,
    display: DisplayState,
    /// Encoded.
    firmware: Option<Vec<u8>>,
}

impl Section for Shared {
    const TAG: &'static str = "virtio-gpu";
    const VERSION: u16 = 1;
    type State = GpuState;

    fn save(&self) -> Result<GpuState, SectionError> {
        let resources = self.resources();
        Ok(GpuState {
            resources: resources.save(),
            display: self.display.save(|pixels| resources.number(pixels)),
            firmware: self.firmware.as_ref().map(|firmware| firmware.encode()).transpose()?,
        })
    }

    fn load(&self, GpuState { resources, display, firmware }: GpuState) -> Result<(), SectionError> {
        match (&self.firmware, firmware) {
            (Some(section), Some(state)) => section.decode(&state)?,
            (None, None) => {}
            _ => return Err(SectionError::Invalid("it is the state of another adapter")),
        }
        let mut loaded = Resources::of(resources)
            .ok_or(SectionError::Invalid("it has frames that no driver can have made"))?;
        let active = display.active;
        self.display.restore(display, |number| loaded.pixels(number).ok())?;
        *self.resources() = loaded;
        self.loaded.store(active, Ordering::SeqCst);
        Ok(())
    }

    /// The driver was activated if it was there: frames without one are nothing.
    fn loaded(&self) {
        if self.loaded.load(Ordering::SeqCst) {
            self.reset(false);
        }
    }
}
