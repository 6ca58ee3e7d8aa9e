//! The end of all guests, when their machine goes down.

use std::io;

use thiserror::Error;
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::process::{self, Found};
use crate::state::{StateDir, StateError};

/// Why not every guest could be stopped.
#[derive(Debug, Error)]
pub enum StopError {
    /// The state directory cannot be read, or a node agent runs on it, which would start guests again.
    #[error(transparent)]
    State(#[from] StateError),
    /// Some launchers could not be asked, or not be followed to their end.
    #[error("{0} launchers could not be stopped")]
    Left(usize),
}

/// Has every launcher of a state directory shut its guest down, all at once, and waits for them. A guest has the grace
/// period of its VMI. No node agent may run meanwhile.
///
/// # Errors
/// When an agent runs, or launchers are left; the others are stopped all the same.
pub async fn all(state: &StateDir) -> Result<usize, StopError> {
    let _lock = state.take()?;
    let mut stopping = JoinSet::new();
    let mut left = 0;
    for (uid, machine) in state.machines()? {
        let asked = process::find(&machine.launcher_stamp()).and_then(|found| match found {
            Found::Running(launcher) => launcher.leave().map(|()| Some(launcher)),
            Found::Unstarted | Found::Gone => Ok(None),
        });
        match asked {
            Ok(Some(launcher)) => {
                info!(%uid, pid = launcher.pid(), "asked its guest to shut down");
                stopping.spawn(async move { launcher.gone().await });
            }
            Ok(None) => {}
            Err(error) => left += unasked(uid, &error),
        }
    }
    let stopped = stopping.join_all().await.len();
    match left {
        0 => Ok(stopped),
        left => Err(StopError::Left(left)),
    }
}

fn unasked(uid: uuid::Uuid, error: &io::Error) -> usize {
    warn!(%uid, %error, "its launcher cannot be asked to stop");
    1
}
