//! Drops privileges of this process before it serves requests.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit};

/// Makes this a quiet process with little to lose: no controlling terminal, no new privileges, no core with guest
/// memory in it, files for its owner only. Its VM's start adds a filter of system
/// calls: [`crate::seccomp`].
///
/// # Errors
/// Errors of the system calls.
pub fn harden() -> Result<(), Errno> {
    match rustix::process::setsid() {
        // EPERM: already the leader of a group, thus of the session its starter made for it.
        Ok(_) | Err(Errno::PERM) => {}
        Err(errno) => return Err(errno),
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    // Inherited by QEMU, whose exec makes it dumpable again.
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    let files = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: files.maximum, maximum: files.maximum })
}
