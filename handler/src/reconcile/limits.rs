//! The cgroups of a launcher: made with their limits before it, removed after it.

use std::path::PathBuf;
use std::sync::Arc;

use tracing::warn;
use vireo_api::spec::Vm;

use super::act::{Done, run_blocking, sync_error};
use super::reconciler::VmiReconciler;
use super::record::now;
use super::status::{SyncError, note_limits};
use crate::devices::check_kvm;
use crate::launcher::cgroup::limits::Limits;
use crate::launcher::cgroup::{self, CgroupError, Cgroups};
use crate::launcher::link::chain;
use crate::settings::LauncherCgroups;
use crate::state::{StateError, VmiDir, read_json, write_json};

/// The memory of this node in bytes.
pub(super) fn node_memory() -> u64 {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit).max(1);
    info.totalram.saturating_mul(unit)
}

/// The cgroups that the launcher of a VMI was given.
fn recorded(dir: &VmiDir) -> Vec<PathBuf> {
    read_json(&dir.cgroups()).ok().flatten().unwrap_or_default()
}

/// Why a launcher has no cgroups with its limits.
#[derive(Debug, thiserror::Error)]
enum LimitError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("--launcher-cgroups=none")]
    Unwanted,
    #[error("this host has no cgroups for launchers")]
    Absent,
}

/// Makes the cgroups of a launcher. Returns those that it is to join, and what is missing.
fn make(
    cgroups: &Cgroups,
    dir: &VmiDir,
    uid: uuid::Uuid,
    limits: &Limits,
) -> (Vec<PathBuf>, Result<(), LimitError>) {
    if let Err(error) = write_json(&dir.cgroups(), &cgroups.paths(uid)) {
        return (Vec::new(), Err(error.into()));
    }
    match cgroups.create(uid) {
        Ok(paths) => (paths, cgroups.limit(uid, limits).map_err(LimitError::from)),
        Err(error) => (Vec::new(), Err(error.into())),
    }
}

impl VmiReconciler {
    /// Makes the cgroups of the launcher. A VMI whose limits are not in force says so.
    pub(super) async fn make_cgroups(&mut self, vm: &Vm) -> Result<Vec<PathBuf>, SyncError> {
        let (node, record) = (Arc::clone(&self.node), self.known()?);
        let (limits, wanted) = (self.limits(vm), self.node.settings.cgroups);
        let (paths, done) = run_blocking("FailedLauncher", move || {
            Ok(match (&node.cgroups, wanted) {
                (Some(cgroups), _) => make(cgroups, &record.dir, record.uid, &limits),
                (None, LauncherCgroups::None) => (Vec::new(), Err(LimitError::Unwanted)),
                (None, _) => (Vec::new(), Err(LimitError::Absent)),
            })
        })
        .await?;
        let problem = match done {
            Ok(()) => None,
            Err(error) if wanted == LauncherCgroups::Required => {
                let message = format!(
                    "cannot limit the launcher, as --launcher-cgroups=required asks: {}",
                    chain(&error)
                );
                return Err(SyncError { reason: "FailedLauncher", message });
            }
            Err(error) => Some(chain(&error)),
        };
        let resources = vm.resources();
        let is_limited = resources.cpu_limit().is_some()
            || resources.memory_limit().is_some()
            || !self.node.settings.io_max.is_empty();
        let problem = problem
            .filter(|_| is_limited)
            .map(|problem| format!("limits of the launcher are not in force: {problem}"));
        if let Some(problem) = &problem {
            warn!("{problem}");
        }
        let mut record = self.known()?;
        note_limits(&mut record.vmi.status, problem.as_deref(), &now());
        self.unsaved = true;
        self.record = Some(record);
        Ok(paths)
    }

    /// Whether the kernel killed processes of the launcher for its limit of memory; then the limit, in MiB.
    pub(super) fn exceeded_memory(&self) -> Option<u64> {
        let record = self.known().ok()?;
        if cgroup::oom_kills(&recorded(&record.dir)) == 0 {
            return None;
        }
        let vm = record.vm().ok()?;
        Some(self.limits(&vm).memory >> 20)
    }

    fn limits(&self, vm: &Vm) -> Limits {
        Limits::of(vm, self.node.settings.hypervisor, check_kvm().is_ok())
    }

    /// Removes the cgroups of a launcher that is gone and kills the processes left in them. The VMI's resources are
    /// released only after that.
    pub(super) async fn end_leftovers(&self) -> Done {
        let record = self.known()?;
        let node = Arc::clone(&self.node);
        run_blocking("FailedKill", move || {
            let others = recorded(&record.dir);
            let removed = match &node.cgroups {
                Some(cgroups) => cgroups.remove(record.uid, others),
                None => cgroup::remove_all(record.uid, others),
            };
            removed.map_err(sync_error("FailedKill"))
        })
        .await
    }
}
