//! The serial port's other end: terminal, file or socket; and the ways to end a VM from outside.

mod keys;
mod saving;
mod signals;
mod socket;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vireo_vmm::Controls;
use vireo_vmm::serial::SerialInput;

use crate::args::SerialArg;
use crate::spool::Spool;
use crate::terminal::RawTerminal;
use keys::{Keys, Wish};
pub(crate) use saving::read as read_saved;
use socket::Socket;

/// The threads here do nothing but wait, read and push.
const STACK: usize = 128 << 10;

/// Why the console cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConsoleError {
    #[error("--serial: cannot use {path:?}")]
    Path {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("--serial: cannot use the terminal")]
    Terminal(#[source] io::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("cannot take over signals")]
    Signals(#[source] io::Error),
}

/// Who ended the VM, if neither the guest nor an error did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Ctrl+].
    Detached,
    /// A signal to the monitor.
    Signal(i32),
    /// The VM was saved.
    Saved,
}

/// The console of all the VMs that a guest's resets make one after the other.
pub(crate) struct Console {
    output: Spool,
    seat: Arc<Seat>,
    terminal: Mutex<Option<RawTerminal>>,
    socket: Option<Socket>,
}

/// The VM that is running now.
#[derive(Default)]
struct Seat {
    controls: Mutex<Option<Controls>>,
    ended: Mutex<Option<Ended>>,
    /// The VM is paused.
    paused: Mutex<bool>,
    /// Where the VM is saved.
    save_to: Option<PathBuf>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    fn input(&self) -> Option<SerialInput> {
        lock(&self.controls).as_ref().map(Controls::serial_input)
    }

    /// The first reason stays. A VM that is being built meanwhile is ended when it is attached.
    fn end(&self, why: Ended) {
        lock(&self.ended).get_or_insert(why);
        if let Some(controls) = lock(&self.controls).as_ref() {
            controls.kill();
        }
    }

    /// Gives all of `bytes` to the guest, as fast as it reads.
    fn feed(&self, mut bytes: &[u8]) {
        while let (false, Some(input)) = (bytes.is_empty(), self.input()) {
            let taken = input.push(bytes);
            bytes = bytes.get(taken..).unwrap_or_default();
            if !bytes.is_empty() {
                input.wait_room();
            }
        }
    }

    /// Does what the user wants; `false` once the user has left. Keys that a guest does not read are lost, so that
    /// the key to leave is always seen.
    fn fulfil(&self, wish: &Wish) -> bool {
        match wish {
            Wish::Type(keys) => {
                self.input().map(|input| input.push(keys));
            }
            Wish::Break => {
                self.input().inspect(SerialInput::send_break);
            }
            Wish::PowerButton => self.power_button(),
            Wish::Pause => {
                let paused = *lock(&self.paused);
                self.set_paused(!paused);
            }
            Wish::Save => self.save(),
            Wish::Leave => self.end(Ended::Detached),
        }
        *wish != Wish::Leave
    }

    /// Pauses the VM, or resumes it.
    fn set_paused(&self, yes: bool) {
        let mut paused = lock(&self.paused);
        let Some(controls) = lock(&self.controls).clone() else { return };
        if *paused != yes {
            *paused = yes;
            if yes {
                controls.pause()
            } else {
                controls.resume()
            }
            eprint!("vmm: the VM is {}\r\n", if yes { "paused" } else { "resumed" });
        }
    }

    /// Saves the VM and ends it; one that cannot be saved goes on.
    fn save(&self) {
        let paused = lock(&self.paused);
        let Some(controls) = lock(&self.controls).clone() else { return };
        match saving::save(&controls, self.save_to.as_deref()) {
            Ok(()) => self.end(Ended::Saved),
            Err(error) => {
                eprint!("vmm: {}\r\n", crate::chain(&error));
                if !*paused {
                    controls.resume();
                }
            }
        }
    }

    fn power_button(&self) {
        if let Some(controls) = lock(&self.controls).as_ref() {
            controls.power_button();
        }
    }
}

impl Console {
    /// Opens what `serial` names. Must come before other threads: the signals taken over here are theirs too. The VM is
    /// saved to `save_to`.
    pub(crate) fn open(serial: &SerialArg, save_to: Option<PathBuf>) -> Result<Self, ConsoleError> {
        let seat = Arc::new(Seat { save_to, ..Seat::default() });
        signals::take_over(seat.clone())?;
        let path_error = |path: &PathBuf| {
            let path = path.clone();
            move |source| ConsoleError::Path { path, source }
        };
        let (output, terminal, socket) = match serial {
            SerialArg::Stdio => {
                let output = Spool::onto(Stdout).map_err(ConsoleError::Thread)?;
                let terminal = RawTerminal::enter().map_err(ConsoleError::Terminal)?;
                if terminal.is_some() {
                    eprint!(
                        "vmm: Ctrl+] leaves, Ctrl+^ p presses the power button, b sends a break, z pauses, s saves\r\n"
                    );
                }
                read_stdin(seat.clone(), terminal.is_some())?;
                (output, terminal, None)
            }
            SerialArg::File(path) => {
                let file = File::create(path).map_err(path_error(path))?;
                (Spool::onto(file).map_err(ConsoleError::Thread)?, None, None)
            }
            SerialArg::Socket(path) => {
                let (socket, output) = Socket::open(path, seat.clone()).map_err(path_error(path))?;
                (output, None, Some(socket))
            }
        };
        Ok(Self { output, seat, terminal: Mutex::new(terminal), socket })
    }

    /// Where the guest's output goes.
    pub(crate) fn output(&self) -> Spool {
        self.output.clone()
    }

    /// From now on keys and signals are for this VM.
    pub(crate) fn attach(&self, controls: Controls) {
        *lock(&self.seat.controls) = Some(controls);
        if let (Some(_), Some(controls)) = (self.ended(), lock(&self.seat.controls).as_ref()) {
            controls.kill();
        }
    }

    /// Who ended the VM from outside.
    pub(crate) fn ended(&self) -> Option<Ended> {
        *lock(&self.seat.ended)
    }

    /// Lets the last output out and gives the terminal back.
    pub(crate) fn close(&self) {
        if let Some(socket) = &self.socket {
            socket.close();
        }
        self.output.close();
        lock(&self.terminal).take();
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.close();
    }
}

/// Standard output without the line buffer of `std::io::Stdout`.
struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::write(rustix::stdio::stdout(), bytes)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends with standard input; the VM runs on.
fn read_stdin(seat: Arc<Seat>, is_terminal: bool) -> Result<(), ConsoleError> {
    let reader = move || {
        let mut buffer = [0; 1024];
        let mut keys = Keys::default();
        loop {
            let read = match io::stdin().lock().read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => buffer.get(..read).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    tracing::warn!(%error, "standard input is lost");
                    return;
                }
            };
            if !is_terminal {
                seat.feed(read);
            } else if !keys.read(read).iter().all(|wish| seat.fulfil(wish)) {
                return;
            }
        }
    };
    spawn("console-in", reader)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), ConsoleError> {
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK);
    builder.spawn(body).map(drop).map_err(ConsoleError::Thread)
}
