//! Disks whose requests the monitor holds after a host I/O error.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use vireo_proto::launcher::DiskFailure;
use vireo_vmm::config::{DiskStall, StallCause};

/// A disk's number, and why a request of it is held; nothing once none is.
pub(super) type StallChange = (usize, Option<StallCause>);

/// The disks of a VM.
#[derive(Debug)]
pub(super) struct Stalls {
    disks: Vec<Arc<DiskStall>>,
    names: Vec<String>,
    failed: BTreeMap<usize, StallCause>,
}

/// Listens to the disks of a VM.
pub(super) fn listen(
    disks: Vec<Arc<DiskStall>>,
    names: Vec<String>,
) -> (Stalls, mpsc::UnboundedReceiver<StallChange>) {
    let (sender, changes) = mpsc::unbounded_channel();
    for (number, disk) in disks.iter().enumerate() {
        let sender = sender.clone();
        // Who drives the VM may have ended before it.
        disk.listen(move |cause| drop(sender.send((number, cause))));
    }
    (Stalls { disks, names, failed: BTreeMap::new() }, changes)
}

impl Stalls {
    /// Applies a change and returns all current failures.
    pub(super) fn update(&mut self, (disk, cause): StallChange) -> Vec<DiskFailure> {
        match cause {
            Some(cause) => self.failed.insert(disk, cause),
            None => self.failed.remove(&disk),
        };
        let failure = |(number, cause): (&usize, &StallCause)| DiskFailure {
            disk: self.names.get(*number).cloned().unwrap_or_default(),
            no_space: cause.no_space,
            message: cause.message.clone(),
        };
        self.failed.iter().map(failure).collect()
    }

    /// Whether a request is held.
    pub(super) fn any(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Has all that is held tried again now.
    pub(super) fn retry(&self) {
        self.disks.iter().for_each(|disk| disk.retry());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_named_until_it_works() {
        let (mut stalls, _news) = listen(Vec::new(), vec!["root".to_owned(), "data".to_owned()]);
        let full = StallCause { no_space: true, message: "full".to_owned() };
        let broken = StallCause { no_space: false, message: "broken".to_owned() };
        let names = |failures: Vec<DiskFailure>| -> Vec<String> {
            failures.iter().map(|failure| format!("{} {}", failure.disk, failure.message)).collect()
        };
        assert_eq!(names(stalls.update((1, Some(full)))), ["data full"]);
        assert_eq!(names(stalls.update((0, Some(broken)))), ["root broken", "data full"]);
        assert!(stalls.any());
        assert_eq!(names(stalls.update((1, None))), ["root broken"]);
        assert!(stalls.update((0, None)).is_empty() && !stalls.any());
    }
}
