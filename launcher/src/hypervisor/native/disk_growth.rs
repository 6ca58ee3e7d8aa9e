use std::sync::Arc;

use tokio::sync::watch;
use vireo_vmm::Controls;
use vireo_vmm::config::DiskGrowth;

use crate::hypervisor::growth;

/// Has disks look whether their images have grown, until the VM thread has ended.
pub(super) async fn watch(disks: Vec<Arc<DiskGrowth>>, mut current: watch::Receiver<Option<Controls>>) {
    if disks.is_empty() {
        return;
    }
    let mut ticks = growth::ticks();
    loop {
        tokio::select! {
            changed = current.changed() => if changed.is_err() {
                return;
            },
            _ = ticks.tick() => {
                let disks = disks.clone();
                // A file system that hangs holds up nothing else.
                let look = move || disks.iter().for_each(|disk| disk.check());
                if tokio::task::spawn_blocking(look).await.is_err() {
                    tracing::error!("looking at the sizes of disks broke off");
                }
            }
        }
    }
}
