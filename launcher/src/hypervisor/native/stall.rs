//! Disks whose requests the monitor holds, as its guest's owner sees them.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;
use vireo_proto::launcher::DiskFailure;
use vireo_vmm::config::{DiskStall, StallCause};

/// A disk's number, and why a request of it is held; nothing once none is.
pub(super) type News = (usize, Option<StallCause>);

/// The disks of a machine.
#[derive(Debug)]
pub(super) struct Stalls {
    disks: Vec<Arc<DiskStall>>,
    names: Vec<String>,
    failed: BTreeMap<usize, StallCause>,
}

/// Listens to the disks of a machine.
pub(super) fn listen(
    disks: Vec<Arc<DiskStall>>,
    names: Vec<String>,
) -> (Stalls, mpsc::UnboundedReceiver<News>) {
    let (tell, news) = mpsc::unbounded_channel();
    for (number, disk) in disks.iter().enumerate() {
        let tell = tell.clone();
        // Who drives the machine may have ended before it.
        disk.listen(move |cause| drop(tell.send((number, cause))));
    }
    (Stalls { disks, names, failed: BTreeMap::new() }, news)
}

impl Stalls {
    /// Takes news in, and says what there is now.
    pub(super) fn hear(&mut self, (disk, cause): News) -> Vec<DiskFailure> {
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
        assert_eq!(names(stalls.hear((1, Some(full)))), ["data full"]);
        assert_eq!(names(stalls.hear((0, Some(broken)))), ["root broken", "data full"]);
        assert!(stalls.any());
        assert_eq!(names(stalls.hear((1, None))), ["root broken"]);
        assert!(stalls.hear((0, None)).is_empty() && !stalls.any());
    }
}
