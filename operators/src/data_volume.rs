//! DataVolumes of CDI, each of which fills a claim of its name: what the controllers of VMs and instances decide by, and the
//! caches of both, which work in clusters without CDI too.

mod cache;
pub mod source;

use serde::Deserialize;
use vireo_api::v1::{Condition, ObjectMeta};
use vireo_client::ObjectKey;

use crate::claim::ClaimState;
use crate::conditions::has;

pub use cache::StorageCache;

/// What matters of a DataVolume.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DataVolume {
    /// Name and owners.
    pub metadata: ObjectMeta,
    status: Status,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
    progress: String,
    conditions: Vec<Condition>,
}

impl DataVolume {
    /// Whether its claim can be used. A claim that is filled before it is bound is mounted when it is.
    pub fn is_filled(&self) -> bool {
        ["Succeeded", "PendingPopulation"].contains(&self.status.phase.as_str())
    }

    /// Whether it is filled once a Pod that uses its claim is scheduled.
    pub fn waits_for_consumer(&self) -> bool {
        self.status.phase == "WaitForFirstConsumer"
    }

    /// Whether it will not be filled any more.
    pub fn has_failed(&self) -> bool {
        self.status.phase == "Failed"
    }

    /// Why it is not being filled.
    pub fn failure(&self) -> Option<String> {
        let name = &self.metadata.name;
        if self.has_failed() {
            return Some(format!("DataVolume {name} has failed"));
        }
        let of = |kind: &str| self.status.conditions.iter().find(|one| one.r#type == kind);
        let stopped = of("Running").filter(|one| one.status == "False");
        let stopped = stopped.filter(|one| ["Error", "ImagePullFailed"].contains(&one.reason.as_str()));
        let no_quota = of("Bound").filter(|one| one.status != "True" && one.reason == "ErrExceededQuota");
        let why = stopped.or(no_quota)?;
        Some(format!("DataVolume {name} is not being filled: {}", why.message))
    }

    /// Whether it is being filled. One that waits for its first consumer is not.
    pub fn is_provisioning(&self) -> bool {
        let is_bound = has(&self.status.conditions, "Bound", "True");
        !self.is_filled() && (is_bound || !self.waits_for_consumer())
    }

    /// Its phase and its progress, for people.
    pub fn progress(&self) -> String {
        let phase = if self.status.phase.is_empty() { "Pending" } else { &self.status.phase };
        match self.status.progress.as_str() {
            "" | "N/A" => phase.to_owned(),
            progress => format!("{phase}, {progress}"),
        }
    }
}

/// The claims and DataVolumes of a cluster, as caches show them.
pub trait Storage {
    /// A claim.
    fn claim(&self, key: &ObjectKey) -> Option<ClaimState>;
    /// A DataVolume.
    fn data_volume(&self, key: &ObjectKey) -> Option<DataVolume>;
    /// Whether the cluster has DataVolumes.
    fn serves_data_volumes(&self) -> bool;
}

#[cfg(test)]
pub(crate) mod tests;
