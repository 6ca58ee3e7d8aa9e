//! Gives up what a process started as root does not need: before it serves a guest (launcher), or reads an image
//! (importer). That are its privileges, most of its files ([`root`], [`landlock`]) and system calls ([`seccomp`]).

pub mod landlock;
pub mod root;
pub mod seccomp;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// More capabilities than any kernel has.
const CAPABILITIES: u32 = 64;

/// What comes next where this process lacks the privilege to give up another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unprivileged {
    /// It is an error.
    Fails,
    /// The rest is given up.
    GoesOn,
}

impl Unprivileged {
    /// Whether something was done; it was not for want of a privilege where that is no error.
    fn permitted(self, done: Result<(), Errno>) -> Result<bool, Errno> {
        match done {
            Err(Errno::PERM) if self == Self::GoesOn => Ok(false),
            done => done.map(|()| true),
        }
    }
}

/// Limits resources of this process and of what it starts. Lower limits, such as those of a container, stay.
///
/// # Errors
/// Errors of the system calls.
pub fn limit(limits: &[(Resource, u64)]) -> Result<(), Errno> {
    for (resource, limit) in limits {
        let limit = Some(getrlimit(*resource).maximum.map_or(*limit, |maximum| maximum.min(*limit)));
        setrlimit(*resource, Rlimit { current: limit, maximum: limit })?;
    }
    Ok(())
}

/// Becomes a user, whose group has the same number, without capabilities, for good: no program that is executed later has
/// more. For a process with one thread. Returns whether it has become the user.
///
/// # Errors
/// Errors of the system calls.
pub fn give_up(user: Option<u32>, unprivileged: Unprivileged) -> Result<bool, Errno> {
    leave_session_keyring();
    for number in 0..CAPABILITIES {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            // The kernel has no such capability.
            Err(Errno::INVAL) => break,
            removed => unprivileged.permitted(removed)?,
        };
    }
    clear_ambient_capability_set()?;
    let has_become = match user {
        Some(user) => unprivileged.permitted(become_user(user))?,
        None => false,
    };
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)?;
    Ok(has_become)
}

/// Gives up all capabilities but these, for this thread, those that it starts, and every program that is executed later. For a
/// process with one thread. What it lacks already stays so.
///
/// # Errors
/// Errors of the system calls.
pub fn keep_capabilities(kept: CapabilitySet) -> Result<(), Errno> {
    for number in 0..CAPABILITIES {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            // The kernel has no such capability.
            Err(Errno::INVAL) => break,
            removed => Unprivileged::GoesOn.permitted(removed)?,
        };
    }
    let CapabilitySets { effective, permitted, inheritable } = capabilities(None)?;
    let [effective, permitted, inheritable] = [effective, permitted, inheritable].map(|set| set & kept);
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable })
}

fn become_user(user: u32) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// Joins a new session keyring: that of the node agent is possessed by every process that inherits it.
fn leave_session_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: with a null name, keyctl(KEYCTL_JOIN_SESSION_KEYRING) reads no memory of this process.
    #[expect(unsafe_code, reason = "rustix has no keyctl")]
    // It fails only on kernels without keys.
    unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_bounds_what_is_executed() {
        let kept = CapabilitySet::CHOWN | CapabilitySet::KILL;
        // The thread is one of its own, and all of this is by thread.
        let sets = std::thread::spawn(move || {
            keep_capabilities(kept).unwrap();
            std::fs::read_to_string("/proc/thread-self/status").unwrap()
        });
        let status = sets.join().unwrap();
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        };
        for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(set(name) & !kept.bits(), 0, "{name}");
        }
        if rustix::process::geteuid().is_root() {
            assert_eq!(set("CapBnd:") & !kept.bits(), 0);
        }
    }

    #[test]
    fn a_missing_privilege_is_an_error_unless_it_is_expected() {
        let missing = Err(Errno::PERM);
        assert_eq!(Unprivileged::Fails.permitted(missing), Err(Errno::PERM));
        assert_eq!(Unprivileged::GoesOn.permitted(missing), Ok(false));
        for unprivileged in [Unprivileged::Fails, Unprivileged::GoesOn] {
            assert_eq!(unprivileged.permitted(Ok(())), Ok(true));
            assert_eq!(unprivileged.permitted(Err(Errno::INVAL)), Err(Errno::INVAL));
        }
    }
}
