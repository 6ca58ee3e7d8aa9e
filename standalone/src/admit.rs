//! Admission of KubeVirt's kinds, and of what this server has instead of Kubernetes' workloads and storage.

use serde_json::Value;
use tokio::runtime::Handle;
use vireo_apiserver::admission::{Admission, AdmissionResult, Attributes, Operation, Rejection};
use vireo_apiserver::auth::User;
use vireo_apiserver::http::ApiError;
use vireo_apiserver::meta;
use vireo_apiserver::resource::{Cause, PODS, Resource, is_workload};
use vireo_client::Kind;
use vireo_handler::provisioner::CLASS;
use vireo_handler::storage::AllowedPaths;
use vireo_operators::Problem;
use vireo_operators::admission::{self, data_volumes, luns, networks, reserved, vmi};

use crate::host_paths;
use crate::resource::{claim, storage, volume};
use vireo_install::policy::is_component;
use vireo_install::resource::{causes, kubevirt};

/// What one server admits.
#[derive(Debug)]
pub struct VirtAdmission {
    /// Which paths of this host objects may name.
    pub allowed: AllowedPaths,
    /// KubeVirt's.
    pub virt: admission::Admission,
    /// Where it runs.
    pub runtime: Handle,
}

/// The kind of a resource, if it is one of KubeVirt's that admission knows.
fn kind(resource: &Resource) -> Option<Kind> {
    let is_it = |kind: &Kind| (&*resource.group, &*resource.kind) == (kind.group, kind.kind);
    [Kind::VM, Kind::VMI, Kind::REPLICA_SET, Kind::POOL].into_iter().find(is_it)
}

/// What KubeVirt's admission answers.
fn answered(found: Result<Vec<Problem>, kube::Error>) -> AdmissionResult {
    match found {
        Ok(problems) => none(causes(problems)),
        Err(error) => Err(failed(error)),
    }
}

fn failed(error: kube::Error) -> Rejection {
    ApiError::internal(format!("the admission of KubeVirt failed: {error}")).into()
}

impl Admission for VirtAdmission {
    fn validate_metadata(&self, attributes: &Attributes<'_>, new: &Value) -> Vec<Cause> {
        if is_component(attributes.user) {
            return Vec::new();
        }
        let Some(kind) = kind(attributes.resource) else { return Vec::new() };
        causes(reserved::validate(kind, new, attributes.old))
    }

    fn may_use_reserve(&self, user: &User) -> bool {
        is_component(user)
    }

    fn mutate(&self, attributes: &Attributes<'_>, new: &mut Value) -> AdmissionResult {
        let Attributes { resource, old, .. } = *attributes;
        none(workload(attributes).into_iter().collect())?;
        match kind(resource) {
            Some(kind) => {
                let completed = self.runtime.block_on(self.virt.mutate(kind, new, old)).map_err(failed)?;
                none(causes(completed.problems)).map(|_| completed.warnings)
            }
            None => Ok(Vec::new()),
        }
    }

    fn validate(&self, attributes: &Attributes<'_>, new: &Value) -> AdmissionResult {
        let Attributes { resource, old, user, .. } = *attributes;
        if let Some(old) = old.filter(|_| resource.is(&kubevirt::VMIS)) {
            none(causes(vmi::validate_update(new, old, is_component(user))))?;
        }
        none(storage(attributes, new))?;
        let Some(kind) = kind(resource) else { return Ok(Vec::new()) };
        answered(self.runtime.block_on(self.virt.validate(kind, new, old)))?;
        none(host_paths::validate(&self.allowed, kind, new, old))?;
        if let Some(problem) = data_volumes::without_data_volumes(kind, new, old)
            && !self.runtime.block_on(self.virt.serves_data_volumes()).map_err(failed)?
        {
            none(causes(vec![problem]))?;
        }
        none(causes(networks::without_pods(kind, new, old)))?;
        none(causes(luns::without_block_devices(kind, new, old)))
    }

    fn delete(
        &self,
        attributes: &Attributes<'_>,
        new: &mut Value,
        grace_period: Option<i64>,
    ) -> Result<(), ApiError> {
        let Attributes { resource, old, .. } = *attributes;
        let name = meta::text(new, "name");
        if resource.is(&storage::STORAGE_CLASSES) && name == CLASS {
            return Err(ApiError::forbidden(
                resource,
                name,
                "the StorageClass of this node cannot be deleted",
            ));
        }
        if let Some(seconds) = grace_period.filter(|_| resource.is(&kubevirt::VMIS)) {
            vmi::shorten_grace(new, seconds);
            meta::count_generation(new, old.unwrap_or(&Value::Null));
        }
        Ok(())
    }

    fn evict(&self, attributes: &Attributes<'_>, dry_run: bool) -> Result<(), ApiError> {
        match attributes.old {
            Some(pod) => {
                self.runtime.block_on(self.virt.evict(pod, dry_run)).map_err(ApiError::too_many_requests)
            }
            None => Ok(()),
        }
    }
}

/// Validates what the provisioner makes or completes.
fn storage(attributes: &Attributes<'_>, new: &Value) -> Vec<Cause> {
    let Attributes { resource, old, user, .. } = *attributes;
    let is_provisioner = is_component(user);
    match old {
        Some(old) if resource.is(&storage::CLAIMS) => claim::validate_update(new, old, is_provisioner),
        _ if resource.is(&storage::VOLUMES) && !is_provisioner => volume::validate(new, old),
        _ => Vec::new(),
    }
}

/// Why there are no objects of Kubernetes' workloads and services, and what there is instead. Components create the pods
/// of launchers.
fn workload(attributes: &Attributes<'_>) -> Option<Cause> {
    let Attributes { resource, operation, user, .. } = *attributes;
    let is_pod = resource.is(&PODS) && operation == Operation::Create && !is_component(user);
    (is_pod || is_workload(&resource.api_version(), &resource.kind)).then(|| {
        let message = match &*resource.kind {
            "Endpoints" | "Ingress" | "Service" => {
                "Forbidden: services are not supported here: virtctl port-forward reaches the ports of a guest"
            }
            _ => "Forbidden: only VirtualMachineInstances run here, and the pods of their launchers",
        };
        Cause::forbidden("spec", message)
    })
}

fn none(causes: Vec<Cause>) -> AdmissionResult {
    if causes.is_empty() { Ok(Vec::new()) } else { Err(causes.into()) }
}
