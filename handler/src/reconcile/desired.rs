//! What is wanted of one name, as the task of its VMI is told.

use std::sync::Arc;

use super::decide::Wanted;
use super::record::Record;
use crate::manifests::Origin;
use crate::manifests::catalog::Entry;
use crate::manifests::document::Accepted;

/// What the source of VMIs says about one name.
#[derive(Debug, Clone, Default)]
pub(super) enum Desired {
    Entry(Entry),
    #[default]
    Nothing,
    /// Nothing, and the guest gets so many seconds to shut down.
    Gone(u64),
}

impl Desired {
    /// What is wanted of the VMI that is recorded. Another object of the same name waits until that one is gone.
    pub(super) fn decided(&self, record: Option<&Record>) -> Wanted {
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

    /// How long the guest gets to shut down, if that was said.
    pub(super) fn grace(&self) -> Option<u64> {
        match self {
            Self::Gone(seconds) | Self::Entry(Entry::Present { stop: Some(seconds), .. }) => Some(*seconds),
            Self::Entry(_) | Self::Nothing => None,
        }
    }

    /// Whether a task that was told this need not be told that.
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

    /// Whether it says something else than what was accepted. Objects of an API cannot.
    pub(super) fn differs(&self, record: &Record) -> bool {
        match self.manifest() {
            Some((manifest, Origin::File(_))) => record.differs(manifest),
            Some((_, Origin::Object(_))) | None => false,
        }
    }

    /// Whether the VMI that is recorded is to go.
    pub(super) fn removes(&self, record: &Record) -> bool {
        self.decided(Some(record)) == Wanted::Absent
    }

    /// Whether it is to go, or to become another one as long as it has not begun.
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
