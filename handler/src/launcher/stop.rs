//! The end of all guests, when their machine goes down.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{info, warn};
use vireo_api::v1::VirtualMachineInstance;

use super::cgroup::Cgroups;
use super::process::{self, Found, Process};
use crate::reconcile::{EXIT_TIMEOUT, grace, time_to_end};
use crate::state::{MachineDir, StateDir, StateError, read_json, write_atomically};

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
/// period of its VMI, after which its launcher ends it; a launcher that does not is ended a little later, since a machine
/// waits for this on its way down. No node agent may run meanwhile.
///
/// # Errors
/// When an agent runs, or launchers are left; the others are stopped all the same.
pub async fn all(state: &StateDir) -> Result<usize, StopError> {
    let _lock = state.take().await?;
    // Without them, who is to be killed is found otherwise.
    let cgroups = Cgroups::find().ok();
    let mut stopping = JoinSet::new();
    let mut left = 0;
    for (uid, machine) in state.machines()? {
        let asked = process::find(&machine.launcher_stamp()).and_then(|found| match found {
            Found::Running(launcher) => launcher.leave().map(|()| Some(launcher)),
            Found::Unstarted | Found::Gone => Ok(None),
        });
        match asked {
            Ok(Some(launcher)) => {
                remember(&machine);
                info!(%uid, pid = launcher.pid(), "asked its guest to shut down");
                let cgroup = cgroups.as_ref().and_then(|cgroups| cgroups.of(uid));
                stopping.spawn(ended(launcher, cgroup, patience(&machine)));
            }
            Ok(None) => {}
            Err(error) => left += unasked(uid, &error),
        }
    }
    let ended = stopping.join_all().await;
    let stopped = ended.iter().filter(|ended| **ended).count();
    left += ended.len() - stopped;
    match left {
        0 => Ok(stopped),
        left => Err(StopError::Left(left)),
    }
}

/// Leaves word for the next node agent, which nobody tells how the guest ended.
fn remember(machine: &MachineDir) {
    if let Err(error) = write_atomically(&machine.node_shutdown(), b"") {
        warn!(%error, "its end will look like an accident");
    }
}

/// How long a launcher may take that was asked to leave.
fn patience(machine: &MachineDir) -> Duration {
    let vmi = read_json::<VirtualMachineInstance>(&machine.vmi()).unwrap_or_else(|error| {
        warn!(%error, "its grace period is not known: it has the usual one");
        None
    });
    time_to_end(grace(&vmi.unwrap_or_default()))
}

/// Waits for a launcher's end, and brings it about when its time is over. Whether it has ended.
async fn ended(launcher: Process, cgroup: Option<PathBuf>, patience: Duration) -> bool {
    let pid = launcher.pid();
    if timeout(patience, launcher.gone()).await.is_ok() {
        return true;
    }
    warn!(pid, "a launcher does not end: killing it");
    if let Err(error) = launcher.kill_all(cgroup.as_deref()) {
        warn!(pid, %error, "it cannot be killed");
    }
    timeout(EXIT_TIMEOUT, launcher.gone()).await.is_ok()
}

fn unasked(uid: uuid::Uuid, error: &io::Error) -> usize {
    warn!(%uid, %error, "its launcher cannot be asked to stop");
    1
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::launcher::process::{Start, spawn};
    use crate::state::write_json;

    /// A machine whose launcher is this line of the shell.
    fn machine(state: &StateDir, line: &str, grace: i64) -> MachineDir {
        let machine = state.machine(uuid::Uuid::new_v4());
        machine.create().unwrap();
        let mut vmi = VirtualMachineInstance::default();
        vmi.spec.termination_grace_period_seconds = Some(grace);
        write_json(&machine.vmi(), &vmi).unwrap();
        let (log, stamp) = (machine.launcher_log(), machine.launcher_stamp());
        spawn(&Start {
            program: Path::new("/bin/sh"),
            arguments: vec!["-c".into(), line.into()],
            log: &log,
            stamp: &stamp,
            namespace: None,
            cgroup: None,
        })
        .unwrap();
        machine
    }

    /// Waits for a line of the launcher's own.
    async fn until(machine: &MachineDir, line: &str) {
        while !std::fs::read_to_string(machine.launcher_log()).unwrap().contains(line) {
            tokio::task::yield_now().await;
        }
    }

    fn is_gone(machine: &MachineDir) -> bool {
        matches!(process::find(&machine.launcher_stamp()).unwrap(), Found::Gone)
    }

    #[tokio::test]
    async fn an_orderly_launcher_takes_the_time_it_needs() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::at(dir.path());
        let machine = machine(&state, "trap 'echo left; exit' TERM; echo ready; sleep 600 & wait", 600);
        until(&machine, "ready").await;
        assert_eq!(all(&state).await.unwrap(), 1);
        assert!(is_gone(&machine) && machine.node_shutdown().exists());
        until(&machine, "left").await;
        assert_eq!(all(&state).await.unwrap(), 0, "nobody is left to be asked");
    }

    #[tokio::test]
    async fn a_launcher_that_hangs_is_ended_when_its_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let machine = machine(&StateDir::at(dir.path()), "trap '' TERM; echo ready; exec sleep 600", 7);
        until(&machine, "ready").await;
        let Found::Running(launcher) = process::find(&machine.launcher_stamp()).unwrap() else {
            panic!("it was just started")
        };
        launcher.leave().unwrap();
        assert_eq!(patience(&machine), time_to_end(7));
        assert!(ended(launcher, None, Duration::ZERO).await);
        assert!(is_gone(&machine));
    }

    #[test]
    fn who_has_no_readable_vmi_has_the_usual_time() {
        let dir = tempfile::tempdir().unwrap();
        let machine = StateDir::at(dir.path()).machine(uuid::Uuid::nil());
        assert_eq!(patience(&machine), time_to_end(30), "nothing is recorded");
        machine.create().unwrap();
        std::fs::write(machine.vmi(), "{").unwrap();
        assert_eq!(patience(&machine), time_to_end(30), "the record is damaged");
    }
}
