//! Gives up what a launcher does not need.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// The most processes and threads of a VM: vCPUs, workers of disks and viewers are hundreds at most.
const THREADS: u64 = 4096;
/// The most locked memory of a VM: the rings of asynchronous I/O, on kernels before 5.12.
const LOCKED_BYTES: u64 = 64 << 20;
/// More capabilities than any kernel has.
const CAPABILITIES: u32 = 64;

/// Sets the limits of the launcher and of what it starts.
pub(super) fn limit_resources() -> Result<(), Errno> {
    for (resource, limit) in [
        // A core would have the guest's memory.
        (Resource::Core, 0),
        (Resource::Nproc, THREADS),
        (Resource::Memlock, LOCKED_BYTES),
        (Resource::Msgqueue, 0),
    ] {
        // A container may have lower limits, and no privilege to raise them.
        let limit = Some(getrlimit(resource).maximum.map_or(limit, |maximum| maximum.min(limit)));
        setrlimit(resource, Rlimit { current: limit, maximum: limit })?;
    }
    Ok(())
}

/// Becomes a user without privileges, for good: no program that is executed later has more.
pub(super) fn become_user(user: u32) -> Result<(), Errno> {
    leave_session_keyring();
    for number in 0..CAPABILITIES {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            // The kernel has no such capability.
            Err(Errno::INVAL) => break,
            removed => removed?,
        }
    }
    clear_ambient_capability_set()?;
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)
}

/// Joins a new session keyring: that of the node agent is possessed by whoever inherits it.
fn leave_session_keyring() {
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: with a null name, keyctl(KEYCTL_JOIN_SESSION_KEYRING) reads no memory of this process.
    #[expect(unsafe_code, reason = "rustix has no keyctl")]
    // It fails only on kernels without keys.
    unsafe {
        libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    };
}
