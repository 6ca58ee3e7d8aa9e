//! PersistentVolumeClaims as controllers read them.

use serde::Deserialize as _;
use serde_json::Value;
use vireo_api::v1::{ObjectMeta, OwnerReference};
use vireo_client::Kind;

/// What matters of a claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimState {
    owners: Vec<OwnerReference>,
}

impl ClaimState {
    /// Reads a claim for a cache.
    ///
    /// # Errors
    /// When it is not a claim.
    pub fn read(object: Value) -> Result<Self, serde_json::Error> {
        let metadata = ObjectMeta::deserialize(&object["metadata"])?;
        Ok(Self { owners: metadata.owner_references })
    }

    /// The DataVolume that controls it, and fills it.
    pub fn data_volume(&self) -> Option<&str> {
        let mut controllers = self.owners.iter().filter(|owner| owner.controller == Some(true));
        controllers.find(|owner| owner.kind == Kind::DATA_VOLUME.kind).map(|owner| owner.name.as_str())
    }
}
