use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::flash_query::query;
use crate::bus::BusDevice;
use crate::state::{Section, SectionError};

/// What one erasure clears.
pub(super) const BLOCK: usize = 4096;
/// The most that one buffered write takes.
pub(super) const BUFFER: usize = 256;

/// Commands of the Intel basic and extended set (Intel application note 646, table 2).
mod command {
    pub(super) const PROGRAM: u8 = 0x40;
    pub(super) const PROGRAM_OLD: u8 = 0x10;
    pub(super) const ERASE: u8 = 0x20;
    pub(super) const CLEAR_STATUS: u8 = 0x50;
    pub(super) const LOCK: u8 = 0x60;
    pub(super) const READ_STATUS: u8 = 0x70;
    pub(super) const READ_ID: u8 = 0x90;
    pub(super) const QUERY: u8 = 0x98;
    pub(super) const WRITE_BUFFER: u8 = 0xe8;
    pub(super) const CONFIRM: u8 = 0xd0;
}

/// Status: the last operation is over. Clearing the status clears this too, by which OVMF knows that this is a flash.
const READY: u8 = 1 << 7;
/// Status: an erasure failed.
const ERASE_FAILED: u8 = 1 << 5;
/// Status: a write failed.
const PROGRAM_FAILED: u8 = 1 << 4;
/// Status: both together report a wrong sequence of commands.
const WRONG_SEQUENCE: u8 = ERASE_FAILED | PROGRAM_FAILED;

/// Manufacturer and device: Intel's, as firmware expects of a flash with this command set.
const ID: [u8; 2] = [0x89, 0x18];

/// How reads of the flash are served while no command is active.
pub(crate) trait Window: Send + Sync {
    /// From now on reads see the bytes themselves, and do not come to the device.
    fn show(&self) -> io::Result<()>;
    /// From now on reads come to the device.
    fn hide(&self) -> io::Result<()>;
}

/// A flash with the Intel command set, in which firmware keeps its variables. It is eight bits wide, and what is
/// written to it is in its file at once.
pub(crate) struct Flash {
    state: Mutex<State>,
}

struct State {
    file: File,
    size: usize,
    window: Box<dyn Window>,
    mode: Mode,
    status: u8,
    shown: bool,
}

/// What the last command was, and so what the next access means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Mode {
    Array,
    Status,
    Id,
    Query,
    Program,
    Erase,
    Lock,
    /// The number of bytes comes next.
    BufferCount,
    /// Bytes for one block; those that are outstanding.
    Buffer {
        writes: Vec<(usize, u8)>,
        left: usize,
    },
    BufferConfirm {
        writes: Vec<(usize, u8)>,
    },
}

impl Flash {
    /// `file` has `size` bytes; `window` shows them.
    pub(crate) fn new(file: File, size: usize, window: Box<dyn Window>) -> Self {
        let state = State { file, size, window, mode: Mode::Array, status: READY, shown: true };
        Self { state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state of the commands, as it is saved. The content is in the file.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FlashState {
    size: u64,
    mode: Mode,
    status: u8,
}

impl Section for Flash {
    const TAG: &'static str = "pflash";
    const VERSION: u16 = 1;
    type State = FlashState;

    fn save(&self) -> Result<FlashState, SectionError> {
        let state = self.state();
        state.file.sync_all().map_err(SectionError::Host)?;
        let size = u64::try_from(state.size).unwrap_or(u64::MAX);
        Ok(FlashState { size, mode: state.mode.clone(), status: state.status })
    }

    fn load(&self, FlashState { size, mode, status }: FlashState) -> Result<(), SectionError> {
        let mut state = self.state();
        if u64::try_from(state.size) != Ok(size) {
            return Err(SectionError::Invalid("the flash has another size"));
        }
        let possible = match &mode {
            Mode::Buffer { writes, left } => writes.len().saturating_add(*left) <= BUFFER,
            Mode::BufferConfirm { writes } => writes.len() <= BUFFER,
            _ => true,
        };
        if !possible {
            return Err(SectionError::Invalid("more waits to be written than a flash takes"));
        }
        (state.mode, state.status) = (mode, status);
        let shown = matches!(state.mode, Mode::Array);
        state.set_shown(shown);
        Ok(())
    }
}

impl BusDevice for Flash {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        let state = self.state();
        let Ok(at) = usize::try_from(offset) else { return };
        for (at, byte) in (at..).zip(data) {
            *byte = state.read(at);
        }
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut state = self.state();
        let Ok(at) = usize::try_from(offset) else { return };
        state.write(at, data);
        let shown = matches!(state.mode, Mode::Array);
        state.set_shown(shown);
    }
}

impl State {
    fn read(&self, at: usize) -> u8 {
        match self.mode {
            Mode::Array => {
                let mut byte = [0xff];
                match u64::try_from(at).map(|at| self.file.read_exact_at(&mut byte, at)) {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!(%error, "firmware's variables cannot be read"),
                    Err(_) => {}
                }
                byte[0]
            }
            Mode::Id => ID.get(at % BLOCK).copied().unwrap_or(0),
            Mode::Query => query(self.size, at % BLOCK),
            _ => self.status,
        }
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        let first = data.first().copied().unwrap_or(0);
        self.mode = match std::mem::replace(&mut self.mode, Mode::Status) {
            Mode::Program => {
                self.program(at, data);
                Mode::Status
            }
            Mode::Erase => {
                self.erase(at, first);
                Mode::Status
            }
            Mode::Lock => Mode::Status,
            Mode::BufferCount => match usize::from(first) + 1 {
                left @ ..=BUFFER => Mode::Buffer { writes: Vec::with_capacity(left), left },
                _ => self.wrong(),
            },
            Mode::Buffer { mut writes, left } => {
                writes.extend((at..).zip(data.iter().copied()).take(left));
                match left.saturating_sub(data.len()) {
                    0 => Mode::BufferConfirm { writes },
                    left => Mode::Buffer { writes, left },
                }
            }
            Mode::BufferConfirm { writes } if first == command::CONFIRM => {
                for run in writes.chunk_by(|(at, _), (next, _)| at + 1 == *next) {
                    let bytes: Vec<u8> = run.iter().map(|(_, byte)| *byte).collect();
                    if let Some((at, _)) = run.first() {
                        self.program(*at, &bytes);
                    }
                }
                Mode::Status
            }
            Mode::BufferConfirm { .. } => self.wrong(),
            Mode::Array | Mode::Status | Mode::Id | Mode::Query => self.command(first),
        };
    }

    fn command(&mut self, command: u8) -> Mode {
        match command {
            command::PROGRAM | command::PROGRAM_OLD => Mode::Program,
            command::ERASE => Mode::Erase,
            command::LOCK => Mode::Lock,
            command::READ_STATUS => Mode::Status,
            command::READ_ID => Mode::Id,
            command::QUERY => Mode::Query,
            command::WRITE_BUFFER => Mode::BufferCount,
            command::CLEAR_STATUS => {
                self.status = 0;
                Mode::Array
            }
            // `READ_ARRAY`, and unknown commands: reads return the content again.
            _ => Mode::Array,
        }
    }

    fn wrong(&mut self) -> Mode {
        self.status |= READY | WRONG_SEQUENCE;
        Mode::Status
    }

    fn program(&mut self, at: usize, data: &[u8]) {
        let room = self.size.saturating_sub(at);
        let data = data.get(..room).unwrap_or(data);
        self.status |= READY;
        if !self.store(at, data) {
            self.status |= PROGRAM_FAILED;
        }
    }

    fn erase(&mut self, at: usize, confirmation: u8) {
        self.status |= READY;
        if confirmation != command::CONFIRM {
            self.wrong();
        } else if at >= self.size || !self.store(at / BLOCK * BLOCK, &[0xff; BLOCK]) {
            self.status |= ERASE_FAILED;
        }
    }

    fn store(&self, at: usize, data: &[u8]) -> bool {
        match u64::try_from(at).map(|at| self.file.write_all_at(data, at)) {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::error!(%error, "firmware's variables cannot be written");
                false
            }
            Err(_) => false,
        }
    }

    fn set_shown(&mut self, shown: bool) {
        if shown == self.shown {
            return;
        }
        let outcome = if shown { self.window.show() } else { self.window.hide() };
        match outcome {
            Ok(()) => self.shown = shown,
            Err(error) => tracing::error!(%error, shown, "firmware's variables cannot be mapped"),
        }
    }
}

#[cfg(test)]
#[path = "flash_tests.rs"]
mod tests;
