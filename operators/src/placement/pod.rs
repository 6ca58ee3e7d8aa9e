//! A Pod as a scheduler reads it.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use vireo_api::v1::{Affinity, Condition, ObjectMeta, Quantity, Toleration};

use super::Resources;

/// What matters of a core `Pod`.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Name, UID and time of creation.
    pub metadata: ObjectMeta,
    /// Where it may run.
    pub spec: PodSpec,
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// `Pending`, `Running`, `Succeeded` or `Failed`.
    pub phase: String,
    /// The sum of what its containers request.
    pub requests: Resources,
}

/// What matters of a Pod's specification.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// The node that it is bound to; empty until it is bound.
    pub node_name: String,
    /// Labels that its node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Further requirements on its node.
    pub affinity: Option<Affinity>,
    /// Taints that it tolerates.
    pub tolerations: Vec<Toleration>,
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    resources: Requirements,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Requirements {
    requests: BTreeMap<String, Quantity>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Whole {
    metadata: ObjectMeta,
    spec: PodSpec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
    conditions: Vec<Condition>,
}

impl Pod {
    /// Reads a Pod for a cache.
    ///
    /// # Errors
    /// When it is not a Pod.
    pub fn read(object: Value) -> Result<Self, serde_json::Error> {
        let Whole { mut metadata, mut spec, status } = serde_json::from_value(object)?;
        metadata.labels.clear();
        metadata.annotations.clear();
        let containers = std::mem::take(&mut spec.containers);
        let requests = containers.iter().map(|container| Resources::requested(&container.resources.requests));
        let requests = requests.fold(Resources { memory: 0, cpu: 0 }, Resources::with);
        Ok(Self { metadata, spec, conditions: status.conditions, phase: status.phase, requests })
    }

    /// Whether it is to be bound to a node.
    pub(super) fn is_pending(&self) -> bool {
        !self.is_bound() && !self.is_final() && self.metadata.deletion_timestamp.is_none()
    }

    pub(super) fn is_bound(&self) -> bool {
        !self.spec.node_name.is_empty()
    }

    fn is_final(&self) -> bool {
        crate::vmi::is_final(&self.phase)
    }

    /// What it takes of its node while it is bound.
    pub(super) fn takes(&self) -> Option<Resources> {
        (self.is_bound() && !self.is_final()).then_some(self.requests)
    }
}
