use std::io;

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

/// The terminal on standard input in raw mode: every key goes to the guest. Restored when dropped.
#[derive(Debug)]
pub(crate) struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// Switches to raw mode; `None` if standard input is not a terminal.
    pub(crate) fn enter() -> io::Result<Option<Self>> {
        let stdin = rustix::stdio::stdin();
        if !isatty(stdin) {
            return Ok(None);
        }
        let before = tcgetattr(stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin, OptionalActions::Now, &raw)?;
        Ok(Some(Self { before }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _gone = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &self.before);
    }
}
