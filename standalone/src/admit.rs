//! Admission of KubeVirt's kinds, and of what this server has instead of Kubernetes' workloads and storage.

use serde_json::Value;
use vireo_apiserver::admission::{Admission, Attributes, Verdict};
use vireo_apiserver::auth::User;
use vireo_apiserver::http::ApiError;
use vireo_apiserver::meta;
use vireo_apiserver::resource::{Cause, Resource, is_workload};
use vireo_handler::provisioner::CLASS;
use vireo_handler::storage::AllowedPaths;

use crate::policy::is_component;
use crate::resource::{claim, kubevirt, reserved, vmi, volume};
use crate::{host_paths, instancetypes};

/// What one server admits.
#[derive(Debug)]
pub struct VirtAdmission {
    /// Which paths of this machine objects may name.
    pub allowed: AllowedPaths,
}

impl Admission for VirtAdmission {
    fn validate_metadata(&self, attributes: &Attributes<'_>, new: &Value) -> Vec<Cause> {
        if is_component(attributes.user) {
            return Vec::new();
        }
        reserved::validate(attributes.resource, new, attributes.old).into_iter().collect()
    }

    fn may_use_reserve(&self, user: &User) -> bool {
        is_component(user)
    }

    fn mutate(&self, attributes: &Attributes<'_>, new: &mut Value) -> Verdict {
        let Attributes { store, resource, old, .. } = *attributes;
        none(workload(resource).into_iter().collect())?;
        none(instancetypes::find_names(store, resource, new, old))
    }

    fn validate(&self, attributes: &Attributes<'_>, new: &Value) -> Verdict {
        let Attributes { store, resource, old, user, .. } = *attributes;
        if let Some(old) = old.filter(|_| resource.is(&kubevirt::VMIS)) {
            none(vmi::validate_update(new, old, is_component(user)))?;
        }
        none(storage(attributes, new))?;
        none(instancetypes::judge(store, resource, new, old))?;
        none(host_paths::judge(&self.allowed, resource, new, old))
    }

    fn delete(
        &self,
        attributes: &Attributes<'_>,
        new: &mut Value,
        grace_period: Option<i64>,
    ) -> Result<(), ApiError> {
        let Attributes { resource, old, .. } = *attributes;
        let name = meta::text(new, "name");
        if resource.is(&kubevirt::STORAGE_CLASSES) && name == CLASS {
            return Err(ApiError::forbidden(
                resource,
                name,
                "the class of this machine's storage cannot be deleted",
            ));
        }
        if let Some(seconds) = grace_period.filter(|_| resource.is(&kubevirt::VMIS)) {
            vmi::shorten_grace(new, seconds);
            meta::count_generation(new, old.unwrap_or(&Value::Null));
        }
        Ok(())
    }
}

/// Validates what the provisioner makes or completes.
fn storage(attributes: &Attributes<'_>, new: &Value) -> Vec<Cause> {
    let Attributes { resource, old, user, .. } = *attributes;
    let is_provisioner = is_component(user);
    match old {
        Some(old) if resource.is(&kubevirt::CLAIMS) => claim::validate_update(new, old, is_provisioner),
        _ if resource.is(&kubevirt::VOLUMES) && !is_provisioner => volume::validate(new, old),
        _ => Vec::new(),
    }
}

/// Why there are no objects of Kubernetes' workloads and services, and what there is instead.
fn workload(resource: &Resource) -> Option<Cause> {
    is_workload(&resource.api_version(), &resource.kind).then(|| {
        let message = match &*resource.kind {
            "Endpoints" | "Ingress" | "Service" => {
                "Forbidden: services are not supported here: virtctl port-forward reaches the ports of a guest"
            }
            _ => "Forbidden: no pods run here: what runs are VirtualMachineInstances",
        };
        Cause::forbidden("spec", message)
    })
}

fn none(causes: Vec<Cause>) -> Verdict {
    if causes.is_empty() { Ok(Vec::new()) } else { Err(causes) }
}
