//! The user's terminal in raw mode, for as long as a guest's console has it.

use std::io;
use std::os::fd::AsFd as _;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

/// Puts the terminal back as it was when dropped, also when that is by a panic.
#[must_use = "the terminal is raw only as long as this lives"]
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// `None` where standard input is not a terminal.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            return Ok(None);
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin.as_fd(), OptionalActions::Now, &raw)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(io::stdin().as_fd(), OptionalActions::Now, &self.before);
    }
}
