//! What a launcher may do whose VM is scheduled in real time: it has no privileges.

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

/// A launcher that may not do that.
#[derive(Debug, thiserror::Error)]
#[error("spec.domain.cpu.realtime: cannot raise the limits of the launcher")]
pub(crate) struct RealtimeError(#[from] Errno);

/// The priority of vCPUs.
const PRIORITY: u64 = 1;

/// Lets the launcher with a process ID, and QEMU, schedule its threads in real time, and lock its memory: as much as it has,
/// which its cgroup limits.
///
/// # Errors
/// When the node agent has no right to do that, or the process has ended.
pub(crate) fn permit(pid: i32) -> Result<(), RealtimeError> {
    for (resource, limit) in [(Resource::Rtprio, Some(PRIORITY)), (Resource::Memlock, None)] {
        prlimit(Pid::from_raw(pid), resource, Rlimit { current: limit, maximum: limit })?;
    }
    Ok(())
}
