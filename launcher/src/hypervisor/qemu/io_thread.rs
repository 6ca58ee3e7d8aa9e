//! Threads of QEMU that carry out the requests of virtio disks.

use serde_json::{Value, json};
use vireo_vmconfig::{DiskBus, IoThreads};

use super::args::Args;
use crate::launch::{Disk, Launch};

/// The threads that disks without a dedicated one share.
pub(super) struct Threads {
    shared: Vec<String>,
    /// All of them serve the queues of each disk.
    is_supplemental: bool,
    /// How many disks have got one of them.
    assigned: usize,
}

impl Threads {
    /// Creates those that are needed.
    pub(super) fn create(args: &mut Args, launch: &Launch) -> Self {
        let disks = launch.disks.iter().filter(|disk| disk.bus == DiskBus::Virtio);
        let disks = disks.filter(|disk| !disk.tuning.dedicated_io_thread).count();
        let count = launch.io_threads.map_or(0, |threads| usize::from(threads.count()));
        let is_supplemental = matches!(launch.io_threads, Some(IoThreads::Supplemental(_)));
        let needed = if is_supplemental && disks > 0 { count } else { count.min(disks) };
        let shared: Vec<String> = (0..needed).map(|index| format!("iothread{index}")).collect();
        for id in &shared {
            create(args, id);
        }
        Self { shared, is_supplemental, assigned: 0 }
    }

    /// Assigns the thread, or the threads, of a virtio disk.
    pub(super) fn assign(&mut self, args: &mut Args, device: &mut Value, disk: &Disk, index: usize) {
        if disk.tuning.dedicated_io_thread {
            let id = format!("iothread-disk{index}");
            create(args, &id);
            device["iothread"] = json!(id);
        } else if self.is_supplemental && !self.shared.is_empty() {
            let mapping = self.shared.iter().map(|id| json!({ "iothread": id }));
            device["iothread-vq-mapping"] = mapping.collect();
        } else if let Some(id) = self.shared.iter().cycle().nth(self.assigned) {
            self.assigned += 1;
            device["iothread"] = json!(id);
        }
    }
}

fn create(args: &mut Args, id: &str) {
    args.json("-object", &json!({ "qom-type": "iothread", "id": id }));
}
