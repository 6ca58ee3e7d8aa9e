//! Resources of the containers beside the launcher: `supportContainerResources`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource;
use vireo_api::spec::{Bytes, Cause, Field, MilliCpus};
use vireo_api::v1::{Quantity, SupportContainerResources};

use super::{ClusterConfig, Findings};

/// The types of containers that launcher Pods and attachment Pods have.
pub const SUPPORTED_TYPES: [&str; 3] = ["container-disk", "guest-console-log", "hotplug-disk"];

/// The resources of a type of containers: CPU and memory that are requested, and those that they may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerResources {
    requests: BTreeMap<String, Quantity>,
    limits: BTreeMap<String, Quantity>,
}

impl Default for ContainerResources {
    fn default() -> Self {
        let quantities = |cpu: &str, memory: &str| {
            [("cpu", cpu), ("memory", memory)]
                .map(|(name, quantity)| (name.to_owned(), Quantity(quantity.to_owned())))
                .into()
        };
        Self { requests: quantities("1m", "1M"), limits: quantities("100m", "40M") }
    }
}

impl From<&ContainerResources> for ResourceRequirements {
    fn from(resources: &ContainerResources) -> Self {
        let quantities = |of: &BTreeMap<String, Quantity>| {
            of.iter().map(|(name, quantity)| (name.clone(), resource::Quantity(quantity.0.clone()))).collect()
        };
        Self {
            requests: Some(quantities(&resources.requests)),
            limits: Some(quantities(&resources.limits)),
            ..Self::default()
        }
    }
}

/// The number of a quantity of a resource, in its smallest unit.
fn number(resource: &str, quantity: &Quantity) -> Option<u64> {
    match resource {
        "cpu" => MilliCpus::try_from(quantity).ok().map(MilliCpus::get),
        _ => Bytes::try_from(quantity).ok().map(Bytes::get),
    }
}

impl ContainerResources {
    /// These resources with others in their place.
    fn with(&self, given: &SupportContainerResources, at: &Field, found: &mut Findings) -> Option<Self> {
        let before = found.0.len();
        let mut after = self.clone();
        let resources = &given.resources;
        for (name, given, into) in [
            ("requests", &resources.requests, &mut after.requests),
            ("limits", &resources.limits, &mut after.limits),
        ] {
            for (resource, quantity) in given {
                let field = at.at("resources").at(name).at(resource);
                if !["cpu", "memory"].contains(&resource.as_str()) {
                    found.add(Cause::NotSupported, &field, "only cpu and memory are supported".to_owned());
                } else if number(resource, quantity).is_none() {
                    found.invalid(&field, quantity.as_str(), "must be a quantity");
                } else {
                    into.insert(resource.clone(), quantity.clone());
                }
            }
        }
        for (resource, request) in &after.requests {
            let limit = after.limits.get(resource).and_then(|limit| number(resource, limit));
            if limit.is_some_and(|limit| number(resource, request).is_some_and(|request| request > limit)) {
                let field = at.at("resources").at("requests").at(resource);
                found.invalid(&field, request.as_str(), "must be less than or equal to the limit");
            }
        }
        (found.0.len() == before).then_some(after)
    }
}

impl ClusterConfig {
    /// Those of other types are left alone: they are named as without effect.
    pub(super) fn read_support(
        &mut self,
        given: &[SupportContainerResources],
        at: &Field,
        found: &mut Findings,
    ) {
        let [container_disk, console_log, hotplug_disk] = SUPPORTED_TYPES;
        for (index, one) in given.iter().enumerate() {
            let at = at.at("supportContainerResources").index(index);
            let of = match one.r#type.as_str() {
                kind if kind == container_disk => &mut self.container_disk,
                kind if kind == console_log => &mut self.console_log,
                kind if kind == hotplug_disk => &mut self.hotplug_disk,
                "" => {
                    found.add(
                        Cause::Required,
                        &at.at("type"),
                        "Required value: name the containers".to_owned(),
                    );
                    continue;
                }
                _ => continue,
            };
            if let Some(with) = of.with(one, &at, found) {
                *of = with;
            }
        }
    }
}
