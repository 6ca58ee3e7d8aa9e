use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use vireo_vmm::Controls;
use vireo_vmm::config::DiskGrowth;

use crate::hypervisor::growth;

/// The disks of a VM whose images may grow.
pub(super) type GrowingDisks = Arc<Mutex<Vec<Arc<DiskGrowth>>>>;

/// Locks them.
pub(super) fn lock(disks: &GrowingDisks) -> MutexGuard<'_, Vec<Arc<DiskGrowth>>> {
    disks.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has disks look whether their images have grown, until the VM thread has ended.
pub(super) async fn watch(disks: GrowingDisks, mut current: watch::Receiver<Option<Controls>>) {
    let mut ticks = growth::ticks();
    loop {
        tokio::select! {
            changed = current.changed() => if changed.is_err() {
                return;
            },
            _ = ticks.tick() => {
                let disks = lock(&disks).clone();
                if disks.is_empty() {
                    continue;
                }
                // A file system that hangs holds up nothing else.
                let look = move || disks.iter().for_each(|disk| disk.check());
                if tokio::task::spawn_blocking(look).await.is_err() {
                    tracing::error!("looking at the sizes of disks broke off");
                }
            }
        }
    }
}
