//! What a guest wrote to its serial console, as a log: as plain text, at most as much as its launcher keeps.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::state::{MachineDir, StateError, write_atomically};

/// How long a launcher may take to send the log.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest log that is read, in bytes: some more than launchers keep.
const LONGEST: u32 = 1 << 20;

/// A log.
#[derive(Debug)]
pub(crate) struct ConsoleLog {
    /// What was written until now.
    pub(crate) text: Vec<u8>,
    /// Where the rest comes, while the guest runs.
    pub(crate) rest: Option<UnixStream>,
}

/// Reads the log of a guest: from its launcher, or as it was at its end. None where there is neither.
///
/// # Errors
/// When it cannot be read.
pub(crate) async fn read(machine: &MachineDir) -> io::Result<Option<ConsoleLog>> {
    match UnixStream::connect(machine.console_history_socket()).await {
        Ok(mut console) => {
            let text = timeout(LIMIT, history(&mut console)).await??;
            Ok(Some(ConsoleLog { text, rest: Some(console) }))
        }
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind()) => {
            match tokio::fs::read(machine.console_log()).await {
                Ok(text) => Ok(Some(ConsoleLog { text, rest: None })),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

/// Keeps the log of a guest that has ended, while its launcher is still there.
///
/// # Errors
/// When it cannot be read or written.
pub(crate) async fn keep(machine: &MachineDir) -> Result<(), StateError> {
    let path = machine.console_log();
    let io = |verb, source| StateError::Io { verb, path: path.clone(), source };
    match read(machine).await.map_err(|error| io("read", error))? {
        Some(ConsoleLog { text, rest: Some(_) }) => write_atomically(&path, &text),
        Some(_) | None => Ok(()),
    }
}

/// The length of the history, and the history.
async fn history(console: &mut UnixStream) -> io::Result<Vec<u8>> {
    let length = console.read_u32().await?;
    if length > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the launcher sends too long a history"));
    }
    let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
    console.read_exact(&mut text).await?;
    Ok(text)
}
