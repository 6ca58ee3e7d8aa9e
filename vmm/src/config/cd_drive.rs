use std::fmt;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::block::{self, Backend, ImageError};

/// The tray of a CD-ROM drive, whose medium changes while the VM runs. Lives with the drive's configuration, across all VMs that
/// are built with it.
#[derive(Default)]
pub struct CdDrive {
    content: Mutex<Content>,
}

#[derive(Default)]
struct Content {
    medium: Option<Box<dyn Backend>>,
    /// How often the medium was changed.
    changes: u64,
    /// The guest prevents its removal.
    is_locked: bool,
    /// The guest is to be asked to let go of the medium.
    eject_requested: bool,
}

/// The guest has locked the tray.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guest prevents the removal of the medium")]
pub struct MediumLocked;

impl CdDrive {
    /// Inserts a raw image, in place of what is in the drive. With `direct`, reads bypass the host's page cache.
    pub fn insert(&self, image: &File, direct: bool) -> Result<(), ImageError> {
        let medium = block::open_raw(image, true, direct)?;
        self.lock().replace(Some(medium));
        Ok(())
    }

    /// Takes the medium out and closes its image. Waits for a read that is under way. Where the guest has locked the tray, the
    /// guest gets a request to unlock it.
    pub fn eject(&self) -> Result<(), MediumLocked> {
        let mut content = self.lock();
        if content.medium.is_some() && content.is_locked {
            content.eject_requested = true;
            return Err(MediumLocked);
        }
        content.replace(None);
        Ok(())
    }

    /// How often its medium was changed.
    pub(crate) fn changes(&self) -> u64 {
        self.lock().changes
    }

    pub(crate) fn has_medium(&self) -> bool {
        self.lock().medium.is_some()
    }

    /// Whether the guest prevents the removal of the medium.
    pub(crate) fn set_locked(&self, locked: bool) {
        self.lock().is_locked = locked;
    }

    /// Whether the guest is to be asked to let go of the medium, once for each request.
    pub(crate) fn take_eject_request(&self) -> bool {
        std::mem::take(&mut self.lock().eject_requested)
    }

    /// Uses the medium, if there is one.
    pub(crate) fn with_medium<T>(&self, action: impl FnOnce(&mut dyn Backend) -> T) -> Option<T> {
        self.lock().medium.as_mut().map(|medium| action(medium.as_mut()))
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    fn replace(&mut self, medium: Option<Box<dyn Backend>>) {
        self.medium = medium;
        self.changes = self.changes.wrapping_add(1);
        self.eject_requested = false;
    }
}

impl fmt::Debug for CdDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CdDrive").finish_non_exhaustive()
    }
}
