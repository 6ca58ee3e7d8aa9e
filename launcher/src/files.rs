//! Files and devices that the node agent opened for the VM.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{debug, warn};
use vireo_proto::files;

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
                let received = files::receive(listener.as_fd(), |name, file| receiver.put(name, file));
                if let Err(error) = received {
                    warn!(%error, "cannot receive files");
                }
            }
        };
        std::thread::Builder::new().name("files".to_owned()).spawn(serve)?;
        Ok(passed)
    }

    fn put(&self, name: String, file: OwnedFd) {
        debug!(name, "received an open file");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, file);
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
