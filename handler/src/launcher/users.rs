//! The users that launchers run as: each VM has one of its own. The last one is that of `virt-importer`.

use std::collections::BTreeSet;
use std::str::FromStr;

use thiserror::Error;
use uuid::Uuid;

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
    /// The user that gets and reads images.
    pub(crate) fn importer(self) -> u32 {
        self.last
    }

    /// The user of a new VM, which none of `used` is. It follows from the UID where it is free, so that it is unlikely that
    /// two VMs have the same one soon after each other. `None` when all are used.
    pub(crate) fn choose(self, uid: Uuid, used: &BTreeSet<u32>) -> Option<u32> {
        // The last one is not a VM's.
        let count = u64::from(self.last - self.first);
        let start = uid.as_u64_pair().1 % count;
        let user = |number: u64| {
            let offset = u32::try_from((start + number) % count).unwrap_or_default();
            self.first.saturating_add(offset)
        };
        (0..count).map(user).find(|user| !used.contains(user))
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
        let users: Users = "100-110".parse().unwrap();
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
        let users: Users = "100-201".parse().unwrap();
        let uid = Uuid::from_u64_pair(0, 102);
        assert_eq!(users.choose(uid, &BTreeSet::new()), Some(101));
        assert_eq!(users.choose(uid, &BTreeSet::from([101, 102])), Some(103));
    }
}
