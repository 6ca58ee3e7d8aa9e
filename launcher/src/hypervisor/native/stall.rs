//! Disks whose requests the monitor holds after a host I/O error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;
use vireo_proto::launcher::DiskFailure;
use vireo_vmm::config::{DiskStall, StallCause};

/// A disk's number, and why a request of it is held; nothing once none is.
pub(super) type StallChange = (usize, Option<StallCause>);

/// Disks with their names, by their numbers. No number is used again: a disk that is gone may still report.
#[derive(Debug, Default)]
struct Disks {
    by_number: BTreeMap<usize, (String, Arc<DiskStall>)>,
    next: usize,
}

/// The disks of a VM: those that it has from the start, and those that are attached.
#[derive(Clone, Debug)]
pub(super) struct StallingDisks {
    disks: Arc<Mutex<Disks>>,
    changes: mpsc::UnboundedSender<StallChange>,
}

/// What of a VM's disks is held.
#[derive(Debug)]
pub(super) struct Stalls {
    disks: StallingDisks,
    failed: BTreeMap<usize, StallCause>,
}

/// Listens to the disks of a VM.
pub(super) fn listen(
    disks: impl IntoIterator<Item = (String, Arc<DiskStall>)>,
) -> (Stalls, StallingDisks, mpsc::UnboundedReceiver<StallChange>) {
    let (changes, receiver) = mpsc::unbounded_channel();
    let all = StallingDisks { disks: Arc::default(), changes };
    for (name, disk) in disks {
        all.add(name, &disk);
    }
    (Stalls { disks: all.clone(), failed: BTreeMap::new() }, all, receiver)
}

impl StallingDisks {
    fn disks(&self) -> MutexGuard<'_, Disks> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to another disk; answers with its number.
    pub(super) fn add(&self, name: String, disk: &Arc<DiskStall>) -> usize {
        let mut disks = self.disks();
        let number = disks.next;
        disks.next += 1;
        let changes = self.changes.clone();
        // Who drives the VM may have ended before it.
        disk.listen(move |cause| drop(changes.send((number, cause))));
        disks.by_number.insert(number, (name, disk.clone()));
        number
    }

    /// Forgets a disk, of which nothing is held any more.
    pub(super) fn remove(&self, number: usize) {
        self.disks().by_number.remove(&number);
        // As in `add`.
        let _ = self.changes.send((number, None));
    }
}

impl Stalls {
    /// Applies a change and returns all current failures.
    pub(super) fn update(&mut self, (disk, cause): StallChange) -> Vec<DiskFailure> {
        let disks = self.disks.disks();
        match cause.filter(|_| disks.by_number.contains_key(&disk)) {
            Some(cause) => self.failed.insert(disk, cause),
            None => self.failed.remove(&disk),
        };
        let failure = |(number, cause): (&usize, &StallCause)| DiskFailure {
            disk: disks.by_number.get(number).map(|(name, _)| name.clone()).unwrap_or_default(),
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
        self.disks.disks().by_number.values().for_each(|(_, disk)| disk.retry());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_named_until_it_works() {
        let disks = ["root", "data"].map(|name| (name.to_owned(), Arc::default()));
        let (mut stalls, disks, mut changes) = listen(disks);
        let full = StallCause { no_space: true, message: "full".to_owned() };
        let broken = StallCause { no_space: false, message: "broken".to_owned() };
        let names = |failures: Vec<DiskFailure>| -> Vec<String> {
            failures.iter().map(|failure| format!("{} {}", failure.disk, failure.message)).collect()
        };
        assert_eq!(names(stalls.update((1, Some(full.clone())))), ["data full"]);
        assert_eq!(names(stalls.update((0, Some(broken)))), ["root broken", "data full"]);
        assert!(stalls.any());
        assert_eq!(names(stalls.update((1, None))), ["root broken"]);
        assert!(stalls.update((0, None)).is_empty() && !stalls.any());
        // What is gone may still report, and is not another one.
        let [first, second] = ["one", "two"].map(|name| {
            let number = disks.add(name.to_owned(), &Arc::default());
            disks.remove(number);
            number
        });
        assert_ne!(first, second);
        assert!(stalls.update((first, Some(full.clone()))).is_empty());
        while changes.try_recv().is_ok() {}
        let added = disks.add("more".to_owned(), &Arc::default());
        assert_eq!(names(stalls.update((added, Some(full.clone())))), ["more full"]);
        disks.remove(added);
        let change = changes.try_recv().unwrap();
        assert!(stalls.update(change).is_empty() && !stalls.any());
        assert!(stalls.update((added, Some(full))).is_empty(), "it is gone");
    }
}
