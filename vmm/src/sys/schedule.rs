//! How the host's scheduler treats a thread.

use std::ffi::c_int;
use std::io;

/// Has the calling thread take no CPU from a thread that runs when it is woken (`SCHED_BATCH`), or take it as usual
/// (`SCHED_OTHER`). Where a CPU is idle, there is no difference.
pub(crate) fn set_batch(batch: bool) -> io::Result<()> {
    let policy = if batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: 0 };
    #[expect(unsafe_code, reason = "no safe wrapper of sched_setscheduler")]
    // SAFETY: sched_setscheduler reads one `sched_param`, which outlives the call.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    check(result)
}

/// Whether the scheduler treats the calling thread as most others (`SCHED_OTHER`).
pub(crate) fn is_usual() -> bool {
    #[expect(unsafe_code, reason = "no safe wrapper of sched_getscheduler")]
    // SAFETY: sched_getscheduler takes its argument by value.
    let policy = unsafe { libc::sched_getscheduler(0) };
    policy == libc::SCHED_OTHER
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_for_its_turn_and_does_so_no_longer() {
        std::thread::spawn(|| {
            assert!(is_usual());
            set_batch(true).unwrap();
            assert!(!is_usual());
            set_batch(false).unwrap();
            assert!(is_usual());
        })
        .join()
        .unwrap();
    }
}
