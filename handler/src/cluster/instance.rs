//! A VMI as the node agent caches it.

use std::sync::Arc;

use serde::Deserialize as _;
use serde_json::{Value, json};
use tracing::error;
use uuid::Uuid;
use vireo_api::v1::{ObjectMeta, VirtualMachineInstance, VirtualMachineInstanceStatus as Status};
use vireo_client::Kind;

use crate::manifests::Origin;
use crate::manifests::desired::Entry;
use crate::manifests::document::Accepted;
use crate::reconcile::status::Phase;

/// A VMI whose spec is read when it is validated.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) metadata: ObjectMeta,
    pub(super) status: Status,
    /// All but the status.
    object: Value,
}

impl Instance {
    pub(super) fn read(mut object: Value) -> Result<Self, serde_json::Error> {
        let status = object.as_object_mut().and_then(|fields| fields.remove("status")).unwrap_or_default();
        let metadata = ObjectMeta::deserialize(&object["metadata"])?;
        let phase = status.get("phase").and_then(Value::as_str).unwrap_or_default().to_owned();
        // The phase decides whether it may start, whatever else is in the status.
        let status = Status::deserialize(status).unwrap_or_else(|_| Status { phase, ..Status::default() });
        object["apiVersion"] = json!(Kind::VMI.api_version());
        object["kind"] = json!(Kind::VMI.kind);
        Ok(Self { metadata, status, object })
    }

    pub(super) fn is_final(&self) -> bool {
        Phase::parse(&self.status.phase).is_final()
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The grace period in seconds, if the spec has one.
    pub(super) fn grace(&self) -> Option<u64> {
        let seconds = self.object.pointer("/spec/terminationGracePeriodSeconds")?.as_i64()?;
        Some(u64::try_from(seconds).unwrap_or(0))
    }

    /// Parses and validates it.
    pub(super) fn validate(&self, uid: Uuid) -> Entry {
        // A VMI that has ended never starts again, even when this node has no record of it.
        if self.is_final() {
            return Entry::Held;
        }
        let accepted = VirtualMachineInstance::deserialize(&self.object)
            .map_err(|error| error.to_string())
            .and_then(|vmi| Accepted::object(vmi).map_err(|report| report.to_string()));
        match accepted {
            Ok(accepted) => {
                Entry::Present { manifest: Arc::new(accepted), origin: Origin::Object(uid), stop: None }
            }
            Err(error) => {
                error!(%uid, error, "a VMI of the API server is invalid; it is left as it is");
                Entry::Held
            }
        }
    }
}
