//! The users that launchers run as: each VM has one of its own. The last ones are those of `virt-importer`: each import has
//! one of its own while it runs.

use std::collections::BTreeSet;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;
use uuid::Uuid;

use crate::jobs::JobContext;
use crate::state::StateDir;

/// The most users of importers: more than images are read at the same time.
const MOST_IMPORTERS: u32 = 64;
/// They are a part of the range, where that is small: one of so many.
const IMPORTERS_PART: u32 = 4;
/// How often an import that waits for a user looks for one.
const RETRY: Duration = Duration::from_millis(50);

/// A range of user IDs, which are group IDs, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Users {
    first: u32,
    last: u32,
}

/// Why a text is not a range of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a range of user IDs is FIRST-LAST, from 1 to {}, with two or more", u32::MAX - 1)]
pub struct ParseUsersError;

impl FromStr for Users {
    type Err = ParseUsersError;

    fn from_str(text: &str) -> Result<Self, ParseUsersError> {
        let (first, last) = text.split_once('-').ok_or(ParseUsersError)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| ParseUsersError);
        let (first, last) = (number(first)?, number(last)?);
        // User 0 is root, and the last number is no user.
        let is_valid = first > 0 && first < last && last < u32::MAX;
        is_valid.then_some(Self { first, last }).ok_or(ParseUsersError)
    }
}

impl Users {
    /// The users that get and read images, beside the VMs of a state directory.
    pub(crate) fn importers(self, state: StateDir) -> ImporterUsers {
        ImporterUsers::new(self.first_importer(), self.last, state)
    }

    fn first_importer(self) -> u32 {
        let count = (self.last - self.first).saturating_add(1);
        self.last - (count / IMPORTERS_PART).clamp(1, MOST_IMPORTERS) + 1
    }

    /// The user of a new VM, which none of `used` is. It follows from the UID where it is free, so that it is unlikely that
    /// two VMs have the same one soon after each other. `None` when all are used.
    pub(crate) fn choose(self, uid: Uuid, used: &BTreeSet<u32>) -> Option<u32> {
        // The last ones are not VMs'.
        let count = u64::from(self.first_importer() - self.first);
        let start = uid.as_u64_pair().1 % count;
        let user = |number: u64| {
            let offset = u32::try_from((start + number) % count).unwrap_or_default();
            self.first.saturating_add(offset)
        };
        (0..count).map(user).find(|user| !used.contains(user))
    }
}

/// Users that importers have in turn. Clones lend the same ones.
#[derive(Debug, Clone)]
pub struct ImporterUsers {
    first: u32,
    last: u32,
    /// Where the users of VMs are noted: one of an earlier release, or of another range, may have a user of importers.
    state: StateDir,
    lent: Arc<Mutex<Lent>>,
}

#[derive(Debug, Default)]
struct Lent {
    users: BTreeSet<u32>,
    /// How many were lent so far.
    count: u32,
}

/// A user that no other import has until this is dropped.
#[derive(Debug)]
pub(crate) struct LentUser {
    number: u32,
    lent: Arc<Mutex<Lent>>,
}

impl ImporterUsers {
    fn new(first: u32, last: u32, state: StateDir) -> Self {
        Self { first, last, state, lent: Arc::default() }
    }

    /// A user that is free. One that was used is not lent again until all others were. Blocks while all are used.
    ///
    /// # Errors
    /// When the job is cancelled, or the users of VMs cannot be read.
    pub(crate) fn lend(&self, job: &JobContext) -> io::Result<LentUser> {
        loop {
            if let Some(user) = self.try_lend()? {
                return Ok(user);
            }
            job.checkpoint()?;
            std::thread::sleep(RETRY);
        }
    }

    fn try_lend(&self) -> io::Result<Option<LentUser>> {
        // New VMs get none of these: what is free here stays free of VMs.
        let of_vms = self.state.users().map_err(io::Error::other)?;
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let count = (self.last - self.first).saturating_add(1);
        let start = lent.count;
        let user = |number: u32| self.first + start.wrapping_add(number) % count;
        let is_free = |user: &u32| !lent.users.contains(user) && !of_vms.contains(user);
        let Some(number) = (0..count).map(user).find(is_free) else { return Ok(None) };
        lent.count = (number - self.first).wrapping_add(1);
        lent.users.insert(number);
        Ok(Some(LentUser { number, lent: Arc::clone(&self.lent) }))
    }
}

impl PartialEq for ImporterUsers {
    fn eq(&self, other: &Self) -> bool {
        (self.first, self.last) == (other.first, other.last)
    }
}

impl Eq for ImporterUsers {}

impl LentUser {
    /// Its ID, which is that of its group, too.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for LentUser {
    fn drop(&mut self) {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner).users.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_and_has_no_root() {
        assert_eq!("7-9".parse(), Ok(Users { first: 7, last: 9 }));
        for bad in ["", "7", "9-7", "0-9", "7-4294967295", "7-7", "-7-9", "7-x"] {
            assert_eq!(bad.parse::<Users>(), Err(ParseUsersError), "{bad}");
        }
    }

    #[test]
    fn no_two_vms_share_a_user() {
        let users: Users = "100-112".parse().unwrap();
        let mut used = BTreeSet::new();
        for _ in 0..10 {
            let user = users.choose(Uuid::new_v4(), &used).unwrap();
            assert!((100..=109).contains(&user) && used.insert(user), "{user} {used:?}");
        }
        assert_eq!(users.choose(Uuid::new_v4(), &used), None);
        used.remove(&104);
        assert_eq!(users.choose(Uuid::new_v4(), &used), Some(104));
    }

    #[test]
    fn a_user_follows_from_the_uid() {
        let users: Users = "100-233".parse().unwrap();
        let uid = Uuid::from_u64_pair(0, 102);
        assert_eq!(users.choose(uid, &BTreeSet::new()), Some(101));
        assert_eq!(users.choose(uid, &BTreeSet::from([101, 102])), Some(103));
    }

    #[test]
    fn no_two_imports_and_no_vm_and_import_share_a_user() {
        for (range, first, last) in
            [("1000-1999", 1936, 1999), ("7-8", 8, 8), ("7-9", 9, 9), ("1-8", 7, 8), ("100-112", 110, 112)]
        {
            let users: Users = range.parse().unwrap();
            let importers = users.importers(StateDir::at("/absent"));
            assert_eq!(importers, ImporterUsers::new(first, last, StateDir::at("/absent")), "{range}");
        }
        let importers = "100-112".parse::<Users>().unwrap().importers(StateDir::at("/absent"));
        let job = JobContext::default();
        let lent: Vec<LentUser> = (0..3).map(|_| importers.clone().lend(&job).unwrap()).collect();
        assert_eq!(lent.iter().map(LentUser::number).collect::<Vec<_>>(), [110, 111, 112]);
        assert!(importers.try_lend().unwrap().is_none());
        job.cancel();
        assert!(importers.lend(&job).is_err(), "the job is cancelled");
        drop(lent);
        let numbers: Vec<u32> = (0..4).map(|_| importers.try_lend().unwrap().unwrap().number()).collect();
        assert_eq!(numbers, [110, 111, 112, 110], "in turn");
    }

    /// As a release without importers' users has started it.
    #[test]
    fn no_import_has_the_user_of_a_vm_that_is_there() {
        let scratch = tempfile::tempdir().unwrap();
        let state = StateDir::at(scratch.path());
        let lends = |importers: &ImporterUsers| importers.try_lend().unwrap().map(|user| user.number());
        let user = std::os::unix::fs::MetadataExt::uid(&scratch.path().metadata().unwrap()).max(1);
        let importers = ImporterUsers::new(user, user + 1, state.clone());
        let dir = state.vmi_dir(Uuid::new_v4());
        dir.create().unwrap();
        assert_eq!([lends(&importers), lends(&importers)], [Some(user), Some(user + 1)]);
        dir.create_sockets(user).unwrap();
        assert_eq!([lends(&importers), lends(&importers)], [Some(user + 1), Some(user + 1)]);
        let importers = ImporterUsers::new(user, user, state);
        assert_eq!(lends(&importers), None);
        dir.remove().unwrap();
        assert_eq!(lends(&importers), Some(user));
    }
}
