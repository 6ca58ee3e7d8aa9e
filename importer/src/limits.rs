//! What this process may use.

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, setrlimit};

/// Address space in bytes: a manifest that does not end meets this.
const MEMORY: u64 = 512 << 20;
/// Open files.
const FILES: u64 = 128;

/// Limits memory and open files of this process, and what it may become. The node agent limits the time.
///
/// # Errors
/// Errors of the system calls.
pub fn confine() -> Result<(), Errno> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    for (resource, most) in [(Resource::As, MEMORY), (Resource::Nofile, FILES), (Resource::Core, 0)] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}
