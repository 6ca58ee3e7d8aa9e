//! Files and devices that the node agent opened for the VM.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{debug, warn};
use vireo_proto::files::{self, Passed};

/// Passed files by their names. What is not among them, the launcher opens itself.
#[derive(Clone, Debug, Default)]
pub struct PassedFiles(Arc<Mutex<HashMap<String, OwnedFd>>>);

impl PassedFiles {
    /// Receives files at a socket until the process ends, on a thread of its own.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn serve(socket: &Path) -> io::Result<Self> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = files::listener(socket)?;
        let passed = Self::default();
        let receiver = passed.clone();
        let serve = move || {
            loop {
                let received = files::receive(listener.as_fd(), |passed| receiver.note(passed));
                if let Err(error) = received {
                    warn!(%error, "cannot receive files");
                }
            }
        };
        std::thread::Builder::new().name("files".to_owned()).spawn(serve)?;
        Ok(passed)
    }

    fn note(&self, passed: Passed) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match passed {
            Passed::File(name, file) => {
                debug!(name, "received an open file");
                files.insert(name, file);
            }
            Passed::Discard => files.clear(),
        }
    }

    /// Takes a file, which the VM then owns: a lock of it ends with the VM.
    pub fn take(&self, name: &str) -> Option<OwnedFd> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    /// Another descriptor of a file, which may be taken again.
    pub fn duplicate(&self, name: &str) -> Option<OwnedFd> {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The limit of open files is all that it can fail for, which the next file meets too.
        files.get(name)?.try_clone().ok()
    }

    /// Takes the file of a path.
    pub fn take_file(&self, path: &Path) -> Option<File> {
        self.take(path.to_str()?).map(File::from)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// A tap that an earlier node agent passed could not be opened again.
    #[test]
    fn what_no_vm_has_taken_is_closed_before_it_is_discarded() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join(files::FILES_SOCKET);
        let passed = PassedFiles::serve(&socket).unwrap();
        let pipe = || {
            let (reader, writer) = io::pipe().unwrap();
            (reader, OwnedFd::from(writer))
        };
        let ((mut left, left_writer), (_taken, taken_writer)) = (pipe(), pipe());
        files::pass(&socket, &[("left".into(), left_writer), ("taken".into(), taken_writer)]).unwrap();
        let kept = passed.take("taken");
        files::discard(&socket).unwrap();
        assert_eq!(left.read(&mut [0]).unwrap(), 0, "no writer is left");
        assert!(kept.is_some() && passed.take("left").is_none());
    }
}
