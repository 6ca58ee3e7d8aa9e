//! The desired state of one name, as its reconciler receives it.

use std::sync::Arc;

use super::decide::Wanted;
use super::record::Record;
use crate::manifests::Origin;
use crate::manifests::desired::Entry;
use crate::manifests::document::Accepted;

/// The desired state of one name in the source of VMIs.
#[derive(Debug, Clone, Default)]
pub(super) enum Desired {
    Entry(Entry),
    #[default]
    Nothing,
    /// Nothing, and the guest has this many seconds to shut down.
    Gone(u64),
}

impl Desired {
    /// The desired state of the recorded VMI. Another object of the same name waits until the recorded VMI is gone.
    pub(super) fn wanted(&self, record: Option<&Record>) -> Wanted {
        match self {
            Self::Entry(Entry::Present { origin: Origin::Object(uid), .. })
                if record.is_some_and(|record| record.uid != *uid) =>
            {
                Wanted::Absent
            }
            Self::Entry(Entry::Present { stop: Some(_), .. }) => Wanted::Stopped,
            Self::Entry(Entry::Present { stop: None, .. }) => Wanted::Present,
            Self::Entry(Entry::Held) => Wanted::Held,
            Self::Nothing | Self::Gone(_) => Wanted::Absent,
        }
    }

    /// The grace period in seconds, if the source sets one.
    pub(super) fn grace(&self) -> Option<u64> {
        match self {
            Self::Gone(seconds) | Self::Entry(Entry::Present { stop: Some(seconds), .. }) => Some(*seconds),
            Self::Entry(_) | Self::Nothing => None,
        }
    }

    /// Whether two states are equal, so that the reconciler need not be notified.
    pub(super) fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Gone(this), Self::Gone(that)) => this == that,
            (Self::Nothing, Self::Nothing) | (Self::Entry(Entry::Held), Self::Entry(Entry::Held)) => true,
            _ => match (self.manifest(), other.manifest()) {
                (Some((this, here)), Some((that, there))) => {
                    here == there && this.vmi == that.vmi && self.grace() == other.grace()
                }
                _ => false,
            },
        }
    }

    /// Whether it differs from the accepted manifest. Objects of an API never do.
    pub(super) fn differs(&self, record: &Record) -> bool {
        match self.manifest() {
            Some((manifest, Origin::File(_))) => record.differs(manifest),
            Some((_, Origin::Object(_))) | None => false,
        }
    }

    /// Whether the recorded VMI is to be deleted.
    pub(super) fn removes(&self, record: &Record) -> bool {
        self.wanted(Some(record)) == Wanted::Absent
    }

    /// Whether it is to be deleted, or to be replaced as long as it has not started.
    pub(super) fn replaces(&self, record: &Record) -> bool {
        self.removes(record) || self.differs(record)
    }

    pub(super) fn manifest(&self) -> Option<(&Arc<Accepted>, &Origin)> {
        match self {
            Self::Entry(Entry::Present { manifest, origin, .. }) => Some((manifest, origin)),
            Self::Entry(Entry::Held) | Self::Nothing | Self::Gone(_) => None,
        }
    }
}
