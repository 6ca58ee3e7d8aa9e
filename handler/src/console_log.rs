//! The log of a guest's serial console: plain text, at most as long as its launcher keeps.

use std::io;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::launcher::socket;
use crate::state::{StateError, VmiDir, write_atomically};

/// How long a launcher may take to send the log.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest log that is read, in bytes: some more than launchers keep.
const MAX_LENGTH: u32 = 1 << 20;

/// The log of a serial console.
#[derive(Debug)]
pub(crate) struct ConsoleLog {
    /// The output so far.
    pub(crate) text: Vec<u8>,
    /// The stream of further output, while the guest runs.
    pub(crate) rest: Option<UnixStream>,
}

/// Reads the log of a guest from its launcher, or from the file that was kept at its end. Returns `None` when there is
/// neither.
///
/// # Errors
/// When it cannot be read.
pub(crate) async fn read(dir: &VmiDir) -> io::Result<Option<ConsoleLog>> {
    match socket::connect(&dir.console_history_socket()).await {
        Ok(mut console) => {
            let text = timeout(READ_TIMEOUT, history(&mut console)).await??;
            Ok(Some(ConsoleLog { text, rest: Some(console) }))
        }
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused].contains(&error.kind()) => {
            match tokio::fs::read(dir.console_log()).await {
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
pub(crate) async fn keep(dir: &VmiDir) -> Result<(), StateError> {
    let path = dir.console_log();
    let io = |verb, source| StateError::Io { verb, path: path.clone(), source };
    match read(dir).await.map_err(|error| io("read", error))? {
        Some(ConsoleLog { text, rest: Some(_) }) => write_atomically(&path, &text),
        Some(_) | None => Ok(()),
    }
}

/// The length of the history, and the history.
async fn history(console: &mut UnixStream) -> io::Result<Vec<u8>> {
    let length = console.read_u32().await?;
    if length > MAX_LENGTH {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the launcher sends too long a history"));
    }
    let mut text = vec![0; usize::try_from(length).unwrap_or_default()];
    console.read_exact(&mut text).await?;
    Ok(text)
}
