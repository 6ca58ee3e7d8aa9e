//! The state of a launcher as [`decide`](super::decide) sees it.

use vireo_proto::launcher::state::Phase;

use super::decide::Launcher;
use crate::launcher::link::LauncherStatus;

/// The state of a launcher by its last status.
pub(super) fn observe_launcher(status: &LauncherStatus) -> Launcher {
    match status {
        LauncherStatus::Silent => Launcher::Silent,
        LauncherStatus::Foreign(_) => Launcher::Foreign,
        LauncherStatus::Gone(_) => Launcher::Vanished,
        LauncherStatus::Connected(state) => match state.phase() {
            Phase::Unspecified | Phase::Waiting => Launcher::Waiting,
            Phase::Starting => Launcher::Starting,
            Phase::Running | Phase::Paused | Phase::Stopping => Launcher::Alive,
            Phase::Exited => Launcher::Exited,
        },
    }
}
