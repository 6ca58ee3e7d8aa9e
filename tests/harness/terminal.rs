//! A command at a terminal of its own, as a person would have it.

use crate::host::Invocation;
use crate::host::{Host, HostError};
use crate::wire::Status;

/// Ctrl+], which leaves a console.
pub const LEAVE: &[u8] = b"\x1d";

/// A command line that runs with a terminal as its input and output, and what is known of that terminal.
#[derive(Debug)]
pub struct Terminal<'h> {
    host: &'h Host,
    before: String,
    after: String,
}

impl<'h> Terminal<'h> {
    /// `name` distinguishes it from the other terminals of the host.
    pub fn new(host: &'h Host, name: &str) -> Self {
        let file = |end: &str| host.work(&format!("{name}.{end}"));
        Self { host, before: file("before"), after: file("after") }
    }

    /// Runs a shell line there; its standard output and error come as one, and it ends with the line's exit code.
    pub fn shell(&self, line: &str) -> Invocation<'h> {
        let (before, after) = (&self.before, &self.after);
        let line = format!("stty -g >{before}; {line}; code=$?; stty -g >{after}; exit $code");
        self.host.command("script").args(["-qefc".to_owned(), line, "/dev/null".to_owned()])
    }

    /// How the terminal of the first running `program` is set, as `stty -a` prints it.
    pub fn settings(&self, program: &str) -> Result<String, HostError> {
        Ok(self.host.shell(&format!("set -- $(pidof {program}); stty -a </proc/$1/fd/0")).run()?.ok())
    }

    /// Checks that the line left the terminal as it found it.
    ///
    /// # Panics
    /// If it did not.
    pub fn assert_restored(&self) -> Result<(), HostError> {
        let same = self.host.command("cmp").args([&self.before, &self.after]).run()?;
        assert_eq!(same.status, Status::Code(0), "the terminal is not as it was: {}", same.stdout);
        Ok(())
    }
}
