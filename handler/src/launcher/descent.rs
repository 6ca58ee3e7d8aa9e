//! The processes that a launcher started, found by what the kernel says of their descent: for hosts without cgroup v2.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::process::Birth;

/// A line of `/proc/<pid>/stat`, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kin {
    birth: Birth,
    parent: i32,
    session: i32,
}

impl Kin {
    /// Fields count from the command name's closing parenthesis, as in [`Birth::parse`].
    fn parse(stat: &str) -> Option<Self> {
        let birth = Birth::parse(stat)?;
        let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Self { birth, parent, session })
    }

    fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn pid(&self) -> i32 {
        self.birth.pid().as_raw_nonzero().get()
    }
}

/// Everybody who descends from `ancestor` or belongs to its session, itself excepted. A session survives its leader's
/// other relations: who was orphaned is still in it.
fn relatives(all: &BTreeMap<i32, Kin>, ancestor: i32) -> Vec<Kin> {
    let mut found: BTreeSet<i32> = BTreeSet::from([ancestor]);
    loop {
        let fresh: Vec<i32> = all
            .values()
            .filter(|kin| !found.contains(&kin.pid()))
            .filter(|kin| kin.session == ancestor || found.contains(&kin.parent))
            .map(Kin::pid)
            .collect();
        if fresh.is_empty() {
            break;
        }
        found.extend(fresh);
    }
    found.remove(&ancestor);
    found.iter().filter_map(|pid| all.get(pid).copied()).collect()
}

fn everybody() -> io::Result<BTreeMap<i32, Kin>> {
    let pids = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(pids.filter_map(Kin::of).map(|kin| (kin.pid(), kin)).collect())
}

/// Kills everybody who descends from a process or belongs to its session. The process itself must exist while this
/// runs, be it as a zombie, so that its id is nobody else's; and it must not go on to start others.
///
/// # Errors
/// When the processes cannot be listed, or the kernel refuses.
pub(super) fn kill_relatives(of: Pid) -> io::Result<()> {
    let mut killed = BTreeSet::new();
    // Who was not seen the first time may have been started meanwhile.
    loop {
        let all = everybody()?;
        let fresh: Vec<Kin> = relatives(&all, of.as_raw_nonzero().get())
            .into_iter()
            .filter(|kin| !killed.contains(&kin.pid()))
            .collect();
        if fresh.is_empty() {
            return Ok(());
        }
        for kin in fresh {
            killed.insert(kin.pid());
            kill(kin)?;
        }
    }
}

fn kill(kin: Kin) -> io::Result<()> {
    let fd = match pidfd_open(kin.birth.pid(), PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Read after the pidfd was opened: if it is still the same process, so is the pidfd's.
    if Kin::of(kin.pid()).is_none_or(|now| now.birth != kin.birth) {
        return Ok(());
    }
    match pidfd_send_signal(&fd, Signal::KILL) {
        Err(error) if error != rustix::io::Errno::SRCH => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kin(pid: i32, parent: i32, session: i32) -> (i32, Kin) {
        let fields = (7..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        (pid, Kin::parse(&format!("{pid} (a) b) S {parent} {pid} {session} {fields}")).unwrap())
    }

    #[test]
    fn relatives_are_descendants_and_the_session() {
        let all = BTreeMap::from([
            kin(1, 0, 1),
            // The launcher, its child, a grandchild with a session of its own, and an orphan of the session.
            kin(100, 50, 100),
            kin(101, 100, 100),
            kin(102, 101, 102),
            kin(103, 1, 100),
            // Of the handler, and of another launcher.
            kin(50, 1, 50),
            kin(200, 50, 200),
            kin(201, 200, 200),
        ]);
        let found: Vec<i32> = relatives(&all, 100).iter().map(Kin::pid).collect();
        assert_eq!(found, [101, 102, 103]);
        assert!(relatives(&all, 201).is_empty());
    }

    #[test]
    fn a_line_that_breaks_off_is_nobody() {
        for line in ["", "1", "1 (x) S", "1 (x) S 1 2 3", "x (y) S 1 2 3"] {
            assert_eq!(Kin::parse(line), None, "{line}");
        }
    }
}
