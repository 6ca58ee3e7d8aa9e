//! How the host's scheduler treats a thread.

use std::ffi::c_int;
use std::io;

/// Has the calling thread take no CPU from a thread that runs when it is woken (`SCHED_BATCH`), or take it as usual
/// (`SCHED_OTHER`). Where a CPU is idle, there is no difference.
pub(crate) fn set_batch(batch: bool) -> io::Result<()> {
    set(0, if batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER }, 0)
}

/// Has a thread, or the calling one for 0, run in real time (`SCHED_FIFO`) with the least priority: before all threads that do
/// not, and until it waits. Threads that it starts do not.
///
/// # Errors
/// When this process has no right to that.
pub fn set_realtime(thread: i32) -> io::Result<()> {
    set(thread, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)
}

fn set(thread: libc::pid_t, policy: c_int, priority: c_int) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    #[expect(unsafe_code, reason = "no safe wrapper of sched_setscheduler")]
    // SAFETY: sched_setscheduler reads one `sched_param`, which outlives the call.
    let result = unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) };
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
    fn what_a_thread_in_real_time_starts_is_scheduled_as_usual() {
        std::thread::spawn(|| {
            if let Err(error) = set_realtime(0) {
                eprintln!("SKIPPED: this process may schedule no thread in real time: {error}");
                return;
            }
            assert!(!is_usual());
            assert!(std::thread::spawn(is_usual).join().unwrap());
        })
        .join()
        .unwrap();
    }

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
