//! What the API server has refused a VM.

use super::Action;

/// An action that the API server may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusable {
    /// [`Action::CreateDataVolumes`].
    CreateDataVolumes,
    /// [`Action::CreateVmi`].
    CreateVmi,
    /// [`Action::DeleteVmi`].
    DeleteVmi,
}

impl Refusable {
    /// What an action is, if its refusal is remembered.
    pub fn of(action: &Action) -> Option<Self> {
        match action {
            Action::CreateDataVolumes(_) => Some(Self::CreateDataVolumes),
            Action::CreateVmi(_) => Some(Self::CreateVmi),
            Action::DeleteVmi => Some(Self::DeleteVmi),
            Action::Wait
            | Action::AddFinalizer
            | Action::ApplyVolumes(_)
            | Action::SyncInstance(_)
            | Action::ApplyMemoryDump(_)
            | Action::ReleaseVmi
            | Action::SetRunStrategy(_)
            | Action::RemoveFinalizer => None,
        }
    }
}

/// The last action of a VM that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The action.
    pub action: Refusable,
    /// The API server's reason.
    pub message: String,
}
