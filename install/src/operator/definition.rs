//! The definition of KubeVirt objects, which is installed with virt-operator. Helm installs a definition once and never
//! upgrades it, so virt-operator does.

use kube::Client;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use vireo_client::Kind;

use crate::objects::INSTALLED_BY;
use crate::resource::crd::kubevirt_definition;

const DEFINITION: Kind =
    Kind::new(("apiextensions.k8s.io", "v1"), "CustomResourceDefinition", "customresourcedefinitions");

/// Gives the definition of KubeVirt objects the spec of this release. It is not created where it is missing: an
/// administrator who removes virt-operator has deleted it. A merge patch, unlike an apply, owns no field of a definition that is up to date, so that it
/// can be applied by others.
///
/// # Errors
/// When the API server refuses it, or does not answer.
pub async fn update_definition(client: &Client) -> Result<(), kube::Error> {
    let definition = kubevirt_definition();
    let name = definition["metadata"]["name"].as_str().unwrap_or_default();
    let patch = Patch::Merge(json!({"spec": definition["spec"]}));
    let params = PatchParams { field_manager: Some(INSTALLED_BY.1.to_owned()), ..PatchParams::default() };
    match DEFINITION.all(client).patch(name, &params, &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        updated => updated.map(drop),
    }
}
