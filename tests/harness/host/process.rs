//! Commands in a host.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::{Host, HostError, Link};
use crate::wire::{Frame, PIECE, Start, Status};

const SIGKILL: i32 = 9;
/// How long a killed command may take to be gone before the whole host counts as hung.
const DEATH: Duration = Duration::from_secs(30);
const TAIL: usize = 4 << 10;
const TAIL_OF_LINE: usize = 200;

/// An event of a command.
#[derive(Debug)]
pub(crate) enum Event {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Exit(Status),
}

/// A command that was not started yet.
#[derive(Debug)]
#[must_use = "nothing happens before run or spawn"]
pub struct Invocation<'h> {
    host: &'h Host,
    start: Start,
    deadline: Duration,
    stream: bool,
}

impl<'h> Invocation<'h> {
    pub(crate) fn new(host: &'h Host, program: &str) -> Self {
        let start = Start { argv: vec![program.to_owned()], env: Vec::new(), directory: None };
        Self { host, start, deadline: Duration::from_secs(60), stream: false }
    }

    /// One argument.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.start.argv.push(arg.into());
        self
    }

    /// Several arguments.
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.start.argv.extend(args.into_iter().map(Into::into));
        self
    }

    /// An environment variable.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.start.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The working directory.
    pub fn directory(mut self, path: &str) -> Self {
        self.start.directory = Some(path.to_owned());
        self
    }

    /// How long [`run`](Self::run) waits before it kills the command. Default one minute.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Also prints the command's output as it comes.
    pub fn stream(mut self) -> Self {
        self.stream = true;
        self
    }

    /// Starts it and leaves it running, its standard input open.
    pub fn spawn(self) -> Result<Process<'h>, HostError> {
        let link = self.host.link();
        let (id, events) = link.attach();
        let process = Process {
            host: self.host,
            link,
            id,
            events,
            command: self.start.argv.join(" "),
            received: RefCell::default(),
            seen: 0,
            seen_stderr: 0,
            stream: self.stream,
        };
        process.send(&Frame::Start(id, self.start))?;
        Ok(process)
    }

    /// Starts it without input and waits for its end.
    pub fn run(self) -> Result<Output, HostError> {
        let deadline = self.deadline;
        let mut process = self.spawn()?;
        process.close_stdin()?;
        process.wait(deadline)
    }
}

/// What a command left.
#[derive(Clone, Debug)]
pub struct Output {
    /// How it ended.
    pub status: Status,
    /// All it wrote to standard output, lossily decoded as UTF-8.
    pub stdout: String,
    /// The same for standard error.
    pub stderr: String,
}

impl Output {
    /// The standard output of a command that must not fail.
    ///
    /// # Panics
    /// If it failed, with all its output.
    #[track_caller]
    pub fn ok(self) -> String {
        let Self { status, stdout, stderr } = &self;
        assert!(*status == Status::Code(0), "{status:?}\nstdout:\n{stdout}\nstderr:\n{stderr}");
        self.stdout
    }
}

/// A running command. Dropping it kills its process group.
#[derive(Debug)]
pub struct Process<'h> {
    host: &'h Host,
    link: Arc<Link>,
    id: u32,
    events: Receiver<Event>,
    command: String,
    received: RefCell<Received>,
    seen: usize,
    seen_stderr: usize,
    stream: bool,
}

/// What has come of a command.
#[derive(Debug, Default)]
struct Received {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    status: Option<Status>,
}

impl Process<'_> {
    /// Sends bytes to its standard input.
    pub fn write(&self, bytes: &[u8]) -> Result<(), HostError> {
        bytes.chunks(PIECE).try_for_each(|piece| self.send(&Frame::Stdin(self.id, piece.to_vec())))
    }

    /// Ends its standard input.
    pub fn close_stdin(&self) -> Result<(), HostError> {
        self.send(&Frame::Stdin(self.id, Vec::new()))
    }

    /// Sends a signal to its process group.
    pub fn signal(&self, number: i32) -> Result<(), HostError> {
        self.send(&Frame::Signal(self.id, number))
    }

    /// Waits until its standard output has `needle`, and returns what came since the last such wait, up to and with
    /// it. Where the deadline passes first the command is killed.
    pub fn wait_for(&mut self, needle: &str, deadline: Duration) -> Result<String, HostError> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(text) = upto(&self.received.borrow().stdout, self.seen, needle) {
                self.seen += text.len();
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
            if let Some(error) = self.ended_without(needle) {
                return Err(error);
            }
            if !self.next(end)? {
                let what =
                    format!("{needle:?} from {}, which wrote last {:?}", self.command, self.output_tail());
                return Err(self.overdue(what, deadline));
            }
        }
    }

    /// As [`Self::wait_for`], of its standard error.
    pub fn wait_for_stderr(&mut self, needle: &str, deadline: Duration) -> Result<(), HostError> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(text) = upto(&self.received.borrow().stderr, self.seen_stderr, needle) {
                self.seen_stderr += text.len();
                return Ok(());
            }
            if let Some(error) = self.ended_without(needle) {
                return Err(error);
            }
            if !self.next(end)? {
                let what = format!("{needle:?} from the standard error of {}", self.command);
                return Err(self.overdue(what, deadline));
            }
        }
    }

    /// Waits for its end. Where the deadline passes first it is killed.
    pub fn wait(&mut self, deadline: Duration) -> Result<Output, HostError> {
        let end = Instant::now() + deadline;
        loop {
            let status = self.received.borrow().status.clone();
            if let Some(status) = status {
                return Ok(Output { status, stdout: self.stdout(), stderr: self.stderr() });
            }
            if !self.next(end)? {
                return Err(self.overdue(format!("the end of {}", self.command), deadline));
            }
        }
    }

    /// Whether it has ended, as far as is known by now.
    pub fn ended(&self) -> Result<Option<Status>, HostError> {
        while self.received.borrow().status.is_none() && self.next(Instant::now())? {}
        Ok(self.received.borrow().status.clone())
    }

    /// All it wrote to standard output, as far as it has come by now.
    pub fn stdout(&self) -> String {
        self.receive();
        String::from_utf8_lossy(&self.received.borrow().stdout).into_owned()
    }

    /// All it wrote to standard error, as far as it has come by now.
    pub fn stderr(&self) -> String {
        self.receive();
        String::from_utf8_lossy(&self.received.borrow().stderr).into_owned()
    }

    /// Handles what has come, without waiting.
    fn receive(&self) {
        // That its host is gone is for those to report who wait for something.
        self.events.try_iter().for_each(|event| self.handle(event));
    }

    /// Handles one event; returns whether one came before `end`.
    fn next(&self, end: Instant) -> Result<bool, HostError> {
        match self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(event) => self.handle(event),
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                self.print_tails();
                return Err(self.host.fail(HostError::Gone("its control channel closed")));
            }
        }
        Ok(true)
    }

    fn handle(&self, event: Event) {
        let mut received = self.received.borrow_mut();
        match event {
            Event::Stdout(bytes) => {
                if self.stream {
                    // A closed reader must not end the command.
                    let _ = std::io::stdout().write_all(&bytes).and_then(|()| std::io::stdout().flush());
                }
                received.stdout.extend(bytes);
            }
            Event::Stderr(bytes) => {
                if self.stream {
                    let _ = std::io::stderr().write_all(&bytes);
                }
                received.stderr.extend(bytes);
            }
            Event::Exit(status) => received.status = Some(status),
        }
    }

    /// The error of a wait for what an ended command will not write.
    fn ended_without(&self, needle: &str) -> Option<HostError> {
        let status = self.received.borrow().status.clone()?;
        self.print_tails();
        Some(HostError::Ended { command: self.command.clone(), status, what: format!("{needle:?}") })
    }

    fn overdue(&self, what: String, deadline: Duration) -> HostError {
        self.print_tails();
        if let Err(error) = self.signal(SIGKILL) {
            return error;
        }
        let end = Instant::now() + DEATH;
        while self.received.borrow().status.is_none() {
            match self.next(end) {
                Ok(true) => {}
                Ok(false) => {
                    return self.host.fail(HostError::Hung(format!("{} cannot be killed", self.command)));
                }
                Err(error) => return error,
            }
        }
        HostError::Deadline { what, deadline }
    }

    /// The end of its standard output, short enough for a line of a log.
    fn output_tail(&self) -> String {
        String::from_utf8_lossy(last(&self.received.borrow().stdout, TAIL_OF_LINE)).into_owned()
    }

    /// Its last output, where that was not printed already.
    fn print_tails(&self) {
        if !self.stream {
            let received = self.received.borrow();
            for (name, bytes) in [("stdout", &received.stdout), ("stderr", &received.stderr)] {
                let tail = last(bytes, TAIL);
                if !tail.is_empty() {
                    let text = String::from_utf8_lossy(tail);
                    eprintln!("nested: the end of the {name} of {}:\n{text}", self.command);
                }
            }
        }
    }

    fn send(&self, frame: &Frame) -> Result<(), HostError> {
        self.link.send(frame).map_err(|_| self.host.fail(HostError::Gone("its control channel is closed")))
    }
}

impl Drop for Process<'_> {
    fn drop(&mut self) {
        if self.received.get_mut().status.is_none() {
            // Fails only where the host is gone, and the command with it.
            let _ = self.link.send(&Frame::Signal(self.id, SIGKILL));
        }
        self.link.forget(self.id);
    }
}

/// What is in `bytes` after `seen` of them, up to and with `needle`.
fn upto(bytes: &[u8], seen: usize, needle: &str) -> Option<Vec<u8>> {
    let fresh = bytes.get(seen..)?;
    let at = fresh.windows(needle.len().max(1)).position(|window| window == needle.as_bytes())?;
    fresh.get(..at + needle.len()).map(<[u8]>::to_vec)
}

fn last(bytes: &[u8], length: usize) -> &[u8] {
    bytes.get(bytes.len().saturating_sub(length)..).unwrap_or_default()
}
