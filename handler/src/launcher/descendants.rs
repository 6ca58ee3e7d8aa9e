//! The processes that a launcher started, found by parent and session: for hosts without cgroup v2.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::process::ProcessIdentity;

/// The fields of `/proc/<pid>/stat` that identify a process and its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessEntry {
    identity: ProcessIdentity,
    parent: i32,
    session: i32,
}

impl ProcessEntry {
    /// Fields count from the command name's closing parenthesis, as in [`ProcessIdentity::parse`].
    fn parse(stat: &str) -> Option<Self> {
        let identity = ProcessIdentity::parse(stat)?;
        let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        Some(Self { identity, parent, session })
    }

    fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn pid(&self) -> i32 {
        self.identity.pid().as_raw_nonzero().get()
    }
}

/// The descendants of `ancestor` and the members of its session, without itself. A process that was orphaned is still
/// in the session.
fn descendants(all: &BTreeMap<i32, ProcessEntry>, ancestor: i32) -> Vec<ProcessEntry> {
    let mut found: BTreeSet<i32> = BTreeSet::from([ancestor]);
    loop {
        let fresh: Vec<i32> = all
            .values()
            .filter(|process| !found.contains(&process.pid()))
            .filter(|process| process.session == ancestor || found.contains(&process.parent))
            .map(ProcessEntry::pid)
            .collect();
        if fresh.is_empty() {
            break;
        }
        found.extend(fresh);
    }
    found.remove(&ancestor);
    found.iter().filter_map(|pid| all.get(pid).copied()).collect()
}

fn all_processes() -> io::Result<BTreeMap<i32, ProcessEntry>> {
    let pids = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(pids.filter_map(ProcessEntry::of).map(|process| (process.pid(), process)).collect())
}

/// Kills the descendants of a process and the members of its session. The process itself must exist meanwhile, at least
/// as a zombie, so that its id is not reused, and it must not start further processes.
///
/// # Errors
/// When the processes cannot be listed, or the kernel refuses.
pub(super) fn kill_descendants(of: Pid) -> io::Result<()> {
    let mut killed = BTreeSet::new();
    // Repeat until nothing is found: processes may have been started meanwhile.
    loop {
        let all = all_processes()?;
        let fresh: Vec<ProcessEntry> = descendants(&all, of.as_raw_nonzero().get())
            .into_iter()
            .filter(|process| !killed.contains(&process.pid()))
            .collect();
        if fresh.is_empty() {
            return Ok(());
        }
        for process in fresh {
            killed.insert(process.pid());
            kill(process)?;
        }
    }
}

fn kill(process: ProcessEntry) -> io::Result<()> {
    let fd = match pidfd_open(process.identity.pid(), PidfdFlags::empty()) {
        Ok(fd) => fd,
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    // Read after the pidfd was opened: if it is still the same process, so is the pidfd's.
    if ProcessEntry::of(process.pid()).is_none_or(|now| now.identity != process.identity) {
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

    fn process(pid: i32, parent: i32, session: i32) -> (i32, ProcessEntry) {
        let fields = (7..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        (pid, ProcessEntry::parse(&format!("{pid} (a) b) S {parent} {pid} {session} {fields}")).unwrap())
    }

    #[test]
    fn descendants_include_the_session() {
        let all = BTreeMap::from([
            process(1, 0, 1),
            // The launcher, its child, a grandchild with a session of its own, and an orphan of the session.
            process(100, 50, 100),
            process(101, 100, 100),
            process(102, 101, 102),
            process(103, 1, 100),
            // The handler, and another launcher.
            process(50, 1, 50),
            process(200, 50, 200),
            process(201, 200, 200),
        ]);
        let found: Vec<i32> = descendants(&all, 100).iter().map(ProcessEntry::pid).collect();
        assert_eq!(found, [101, 102, 103]);
        assert!(descendants(&all, 201).is_empty());
    }

    #[test]
    fn a_truncated_line_is_rejected() {
        for line in ["", "1", "1 (x) S", "1 (x) S 1 2 3", "x (y) S 1 2 3"] {
            assert_eq!(ProcessEntry::parse(line), None, "{line}");
        }
    }
}
