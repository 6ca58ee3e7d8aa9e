use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Looks at an image.
type Look = Arc<dyn Fn() + Send + Sync>;

/// Has a disk look whether its image has grown. Lives with the disk's configuration, across all VMs that are built with
/// it.
///
/// Raw images of virtio disks can grow: files and block devices. No image becomes smaller.
#[derive(Default)]
pub struct DiskGrowth {
    look: Mutex<Option<Look>>,
}

impl DiskGrowth {
    /// Looks at the image: the guest learns of a larger one. Takes as long as the host's file system needs.
    pub fn check(&self) {
        let look = self.look.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(look) = look {
            look();
        }
    }

    /// Registers who looks.
    pub(crate) fn on_check(&self, look: impl Fn() + Send + Sync + 'static) {
        *self.look.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(look));
    }
}

impl fmt::Debug for DiskGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskGrowth").finish_non_exhaustive()
    }
}
