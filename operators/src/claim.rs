//! PersistentVolumeClaims as controllers read them.

use serde::Deserialize as _;
use serde_json::Value;
use vireo_api::v1::{ObjectMeta, OwnerReference, Quantity};
use vireo_client::Kind;

/// What matters of a claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClaimState {
    owners: Vec<OwnerReference>,
    volume_mode: String,
    capacity: Option<Quantity>,
}

impl ClaimState {
    /// Reads a claim for a cache.
    ///
    /// # Errors
    /// When it is not a claim.
    pub fn read(object: Value) -> Result<Self, serde_json::Error> {
        let metadata = ObjectMeta::deserialize(&object["metadata"])?;
        let text = |path: &str| Some(object.pointer(path)?.as_str()?.to_owned());
        Ok(Self {
            owners: metadata.owner_references,
            volume_mode: text("/spec/volumeMode").unwrap_or_else(|| "Filesystem".to_owned()),
            capacity: text("/status/capacity/storage").map(Quantity),
        })
    }

    /// `Filesystem` or `Block`.
    pub(crate) fn volume_mode(&self) -> &str {
        &self.volume_mode
    }

    /// How large it is, once it is bound.
    pub(crate) fn capacity(&self) -> Option<&Quantity> {
        self.capacity.as_ref()
    }

    /// The DataVolume that controls it, and fills it.
    pub fn data_volume(&self) -> Option<&str> {
        let mut controllers = self.owners.iter().filter(|owner| owner.controller == Some(true));
        controllers.find(|owner| owner.kind == Kind::DATA_VOLUME.kind).map(|owner| owner.name.as_str())
    }
}
