use std::io;
use std::sync::Arc;

use vmm_sys_util::signal::{block_signal, create_sigset};

use super::{ConsoleError, Ended, Seat, spawn};

/// The power button.
const BUTTON: i32 = libc::SIGUSR1;
/// Has the VM saved.
const SAVE: i32 = libc::SIGUSR2;
/// Pause the VM, and resume it.
const PAUSE: i32 = libc::SIGTSTP;
const RESUME: i32 = libc::SIGCONT;
const TAKEN: [i32; 7] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, BUTTON, SAVE, PAUSE, RESUME];

/// From now on the signals that would end the process end the VM, so that everything is put back in order, and others
/// press its power button, save, pause and resume it.
pub(super) fn take_over(seat: Arc<Seat>) -> Result<(), ConsoleError> {
    for signal in TAKEN {
        block_signal(signal).map_err(|error| ConsoleError::Signals(io::Error::other(error.to_string())))?;
    }
    let set = create_sigset(&TAKEN).map_err(|errno| ConsoleError::Signals(errno.into()))?;
    spawn("signals", move || {
        loop {
            let mut signal = 0;
            // SAFETY: both pointers are to live values of the types that sigwait is declared with.
            #[expect(unsafe_code, reason = "there is no safe binding of sigwait here")]
            let outcome = unsafe { libc::sigwait(&raw const set, &raw mut signal) };
            match (outcome, signal) {
                (0, BUTTON) => seat.power_button(),
                (0, SAVE) => seat.save(),
                (0, PAUSE) => seat.set_paused(true),
                (0, RESUME) => seat.set_paused(false),
                (0, signal) => seat.end(Ended::Signal(signal)),
                _ => {}
            }
        }
    })
}
