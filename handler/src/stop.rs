//! Stops all guests when their node shuts down.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};
use vireo_api::v1::VirtualMachineInstance;

use crate::launcher::cgroup::Cgroups;
use crate::launcher::process::{self, Found, Process};
use crate::reconcile::{EXIT_TIMEOUT, grace, time_to_end};
use crate::state::{StateDir, StateError, VmiDir, read_json, write_atomically};

/// Why not every guest could be stopped.
#[derive(Debug, Error)]
pub enum StopError {
    /// The state directory cannot be read, or a node agent runs on it, which would start guests again.
    #[error(transparent)]
    State(#[from] StateError),
    /// Some launchers could not be asked, or not be followed to their end.
    #[error("{0} launchers could not be stopped")]
    Remaining(usize),
}

/// Asks all launchers of a state directory to shut their guests down, and waits for them. A launcher kills its guest
/// after the VMI's grace period. A launcher that does not end is killed a little later, since the shutdown of the node
/// waits for it. No node agent may run meanwhile.
///
/// # Errors
/// When a node agent runs, or when some launchers could not be stopped; the others are stopped.
pub async fn all(state: &StateDir) -> Result<usize, StopError> {
    let _lock = state.take().await?;
    // Without cgroups, processes are found by parent and session.
    let cgroups = Cgroups::find().ok();
    let mut stopping = JoinSet::new();
    let mut left = 0;
    for (uid, vmi_dir) in state.vmi_dirs()? {
        let asked = process::find(&vmi_dir.launcher_stamp()).and_then(|found| match found {
            Found::Running(launcher) => launcher.terminate().map(|()| Some(launcher)),
            Found::Unstarted | Found::Gone => Ok(None),
        });
        match asked {
            Ok(Some(launcher)) => {
                mark_node_shutdown(&vmi_dir);
                info!(%uid, pid = launcher.pid(), "asked its guest to shut down");
                let cgroup = cgroups.as_ref().and_then(|cgroups| cgroups.of(uid));
                stopping.spawn(ended(launcher, cgroup, stop_timeout(&vmi_dir)));
            }
            Ok(None) => {}
            Err(error) => left += log_stop_error(uid, &error),
        }
    }
    let ended = stopping.join_all().await;
    let stopped = ended.iter().filter(|ended| **ended).count();
    left += ended.len() - stopped;
    match left {
        0 => Ok(stopped),
        left => Err(StopError::Remaining(left)),
    }
}

/// Marks the shutdown for the next node agent, which does not get the guest's outcome.
fn mark_node_shutdown(vmi_dir: &VmiDir) {
    if let Err(error) = write_atomically(&vmi_dir.node_shutdown(), b"") {
        warn!(%error, "cannot mark the shutdown: the VMI will be reported as LauncherLost");
    }
}

/// How long a launcher may take to shut its guest down and to exit.
fn stop_timeout(vmi_dir: &VmiDir) -> Duration {
    let vmi = read_json::<VirtualMachineInstance>(&vmi_dir.vmi()).unwrap_or_else(|error| {
        warn!(%error, "cannot read the grace period: using the default");
        None
    });
    time_to_end(grace(&vmi.unwrap_or_default()))
}

/// Waits for a launcher to end, and kills it after the timeout. Returns whether it has ended.
async fn ended(launcher: Process, cgroup: Option<PathBuf>, stop_timeout: Duration) -> bool {
    let pid = launcher.pid();
    if timeout(stop_timeout, launcher.gone()).await.is_ok() {
        return true;
    }
    warn!(pid, "a launcher does not end: killing it");
    if let Err(error) = launcher.kill_all(cgroup.as_deref()) {
        warn!(pid, %error, "cannot kill the launcher");
    }
    timeout(EXIT_TIMEOUT, launcher.gone()).await.is_ok()
}

fn log_stop_error(uid: uuid::Uuid, error: &io::Error) -> usize {
    warn!(%uid, %error, "cannot ask the launcher to stop");
    1
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::launcher::process::{Start, spawn};
    use crate::state::write_json;

    /// The directory of a VMI whose launcher is this shell command.
    fn vmi_dir(state: &StateDir, line: &str, grace: i64) -> VmiDir {
        let vmi_dir = state.vmi_dir(uuid::Uuid::new_v4());
        vmi_dir.create().unwrap();
        let mut vmi = VirtualMachineInstance::default();
        vmi.spec.termination_grace_period_seconds = Some(grace);
        write_json(&vmi_dir.vmi(), &vmi).unwrap();
        let (log, stamp) = (vmi_dir.launcher_log(), vmi_dir.launcher_stamp());
        spawn(&Start {
            program: Path::new("/bin/sh"),
            arguments: vec!["-c".into(), line.into()],
            log: &log,
            stamp: &stamp,
            namespace: None,
            cgroups: &[],
            oom_score_adj: None,
            confinement: None,
        })
        .unwrap();
        vmi_dir
    }

    /// Waits for a line of the launcher's own.
    async fn until(vmi_dir: &VmiDir, line: &str) {
        while !std::fs::read_to_string(vmi_dir.launcher_log()).unwrap().contains(line) {
            tokio::task::yield_now().await;
        }
    }

    fn is_gone(vmi_dir: &VmiDir) -> bool {
        matches!(process::find(&vmi_dir.launcher_stamp()).unwrap(), Found::Gone)
    }

    #[tokio::test]
    async fn an_orderly_launcher_takes_the_time_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path());
        let vmi_dir = vmi_dir(&state, "trap 'echo left; exit' TERM; echo ready; sleep 600 & wait", 600);
        until(&vmi_dir, "ready").await;
        assert_eq!(all(&state).await.unwrap(), 1);
        assert!(is_gone(&vmi_dir) && vmi_dir.node_shutdown().exists());
        until(&vmi_dir, "left").await;
        assert_eq!(all(&state).await.unwrap(), 0, "no launcher is left");
    }

    #[tokio::test]
    async fn a_launcher_that_hangs_is_ended_when_its_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let vmi_dir = vmi_dir(&StateDir::at(dir.path()), "trap '' TERM; echo ready; exec sleep 600", 7);
        until(&vmi_dir, "ready").await;
        let Found::Running(launcher) = process::find(&vmi_dir.launcher_stamp()).unwrap() else {
            panic!("it was just started")
        };
        launcher.terminate().unwrap();
        assert_eq!(stop_timeout(&vmi_dir), time_to_end(7));
        assert!(ended(launcher, None, Duration::ZERO).await);
        assert!(is_gone(&vmi_dir));
    }

    #[test]
    fn an_unreadable_vmi_has_the_default_grace_period() {
        let dir = tempfile::tempdir().unwrap();
        let vmi_dir = StateDir::at(dir.path()).vmi_dir(uuid::Uuid::nil());
        assert_eq!(stop_timeout(&vmi_dir), time_to_end(30), "nothing is recorded");
        vmi_dir.create().unwrap();
        std::fs::write(vmi_dir.vmi(), "{").unwrap();
        assert_eq!(stop_timeout(&vmi_dir), time_to_end(30), "the record is damaged");
    }
}
