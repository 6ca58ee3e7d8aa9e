//! A directory with a saved VM.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vireo_vmm::Controls;
use vireo_vmm::state::{LoadError, SaveError, SavedVm};

/// The state, which is there once all is written.
const STATE: &str = "state";
const PARTIAL: &str = "state.partial";
const RAM: &str = "ram";

/// Why a VM is not saved, or not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SavingError {
    #[error("the VM is not saved: --save names no directory")]
    NoDirectory,
    #[error("the VM is not saved: cannot use {path:?}")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the VM is not saved")]
    Save(#[from] SaveError),
    #[error("--load: cannot read {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("--load: cannot use {path:?}")]
    Load {
        path: PathBuf,
        #[source]
        source: LoadError,
    },
}

/// Pauses the VM and saves it to a directory, which is created.
pub(super) fn save(controls: &Controls, directory: Option<&Path>) -> Result<(), SavingError> {
    let directory = directory.ok_or(SavingError::NoDirectory)?;
    let failed = |source| SavingError::Write { path: directory.to_owned(), source };
    // The guest's RAM is as secret as the guest.
    fs::DirBuilder::new().mode(0o700).create(directory).map_err(failed)?;
    let outcome = write(controls, directory);
    if outcome.is_err()
        && let Err(error) = fs::remove_dir_all(directory)
    {
        tracing::warn!(%error, ?directory, "what was written cannot be removed");
    }
    outcome
}

fn write(controls: &Controls, directory: &Path) -> Result<(), SavingError> {
    let failed = |source| SavingError::Write { path: directory.to_owned(), source };
    let create = |name: &str| {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(name)).map_err(failed)
    };
    let (ram, mut state) = (create(RAM)?, create(PARTIAL)?);
    controls.save(&mut state, &ram)?;
    state.sync_all().map_err(failed)?;
    fs::rename(directory.join(PARTIAL), directory.join(STATE)).map_err(failed)?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

/// Reads a saved VM.
pub(crate) fn read(directory: &Path) -> Result<SavedVm, SavingError> {
    let open = |name| {
        let path = directory.join(name);
        File::open(&path).map_err(|source| SavingError::Read { path, source })
    };
    let (mut state, ram) = (open(STATE)?, open(RAM)?);
    let failed = |source| SavingError::Load { path: directory.to_owned(), source };
    SavedVm::read(&mut state, ram).map_err(failed)
}
