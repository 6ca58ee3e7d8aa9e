//! Creates the DataVolumes of templates. virt-controller may clone from every namespace, so that the service account of a
//! VM is asked for before anything is cloned for it.

use std::sync::Arc;

use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Error};
use serde::Deserialize as _;
use serde_json::{Map, Value, json};
use vireo_api::v1::{DataVolumeTemplateSpec, VirtualMachine};
use vireo_client::controller::Requeue;
use vireo_client::events::Reason;
use vireo_client::informer::revision;
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, ObjectKey, write};

use super::super::{Refusable, provision};
use super::Caches;
use super::actuator::{Actuator, START_AGAIN};
use crate::ReconcileError;
use crate::data_volume::source::{self, Cloned, Source};

/// Reconciles VMs whenever the DataVolumes of their templates change.
pub(super) fn watch(caches: &Caches, queue: &Arc<WorkQueue<ObjectKey>>) {
    let wake = {
        let (changed, vms) = (Arc::clone(queue), Arc::clone(&caches.vms));
        move |key: &ObjectKey| {
            let names_it = |vm: &VirtualMachine| {
                vm.spec.data_volume_templates.iter().any(|template| template.metadata.name == key.name)
            };
            let vms = vms.namespace(&key.namespace);
            vms.iter().filter(|vm| names_it(&vm.value)).for_each(|vm| changed.add(vm.key.clone()));
        }
    };
    let changed = wake.clone();
    caches.storage.on_change(move |data_volume| changed(&data_volume.key));
    caches.storage.on_claim(move |claim| wake(&claim.key));
    let (changed, vms) = (Arc::clone(queue), Arc::clone(&caches.vms));
    caches.storage.on_served(move || {
        let vms = vms.all();
        let with_templates = vms.iter().filter(|vm| !vm.value.spec.data_volume_templates.is_empty());
        with_templates.for_each(|vm| changed.add(vm.key.clone()));
    });
}

/// Why a DataVolume is not created.
enum CreateError {
    /// It cannot be, until something changes.
    Refused(Reason, String),
    /// A request failed.
    Failed(ReconcileError),
}

impl CreateError {
    fn invalid(error: impl std::fmt::Display) -> Self {
        Self::Refused(Reason::FailedDataVolumeCreate, error.to_string())
    }
}

impl From<Error> for CreateError {
    fn from(error: Error) -> Self {
        match write::rejection(&error) {
            Some(status) => Self::invalid(&status.message),
            None => Self::Failed(error.into()),
        }
    }
}

impl From<serde_json::Error> for CreateError {
    fn from(error: serde_json::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl Actuator<'_> {
    /// Creates the DataVolumes of these templates. When to try it again, if one was refused: the status that says so is
    /// written first.
    pub(super) async fn create_data_volumes(&self, indices: &[usize]) -> Result<Requeue, ReconcileError> {
        let mut again = None;
        let mut refusals = Vec::new();
        let templates = &self.vm.spec.data_volume_templates;
        for template in indices.iter().filter_map(|index| templates.get(*index)) {
            match self.create_data_volume(template).await {
                Ok(is_new) => again = again.or((!is_new).then_some(START_AGAIN)),
                Err(CreateError::Refused(reason, why)) => {
                    let is_unauthorized = reason == Reason::UnauthorizedDataVolumeCreate;
                    let what = if is_unauthorized { "Not authorized to create" } else { "Error creating" };
                    let message = format!("{what} DataVolume {}: {why}", template.metadata.name);
                    self.publish(reason, message.clone()).await;
                    refusals.push(message);
                }
                Err(CreateError::Failed(error)) => return Err(error),
            }
        }
        if refusals.is_empty() {
            self.controller.refused().remove(&self.key());
            return Ok(again);
        }
        Ok(Some(self.refused(Refusable::CreateDataVolumes, refusals.join("; "))))
    }

    /// Whether it did not exist before.
    async fn create_data_volume(&self, template: &DataVolumeTemplateSpec) -> Result<bool, CreateError> {
        let mut spec = provision::spec(self.vm, template);
        if let Some(cloned) = self.cloned(&spec).await? {
            self.authorize(&cloned).await?;
            source::set(&mut spec, &cloned);
        }
        let object = DynamicObject::deserialize(provision::data_volume(self.vm, template, spec))?;
        let namespace = &self.vm.metadata.namespace;
        let data_volumes = Kind::DATA_VOLUME.namespaced(&self.controller.client, namespace);
        match data_volumes.create(&PostParams::default(), &object).await {
            Ok(created) => {
                let text = format!("Created DataVolume {}", template.metadata.name);
                self.publish(Reason::SuccessfulDataVolumeCreate, text).await;
                self.controller.caches.storage.shows(revision(&created)).await;
                Ok(true)
            }
            // The cache does not show it yet.
            Err(error) if write::already_exists(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// What the spec of a DataVolume clones, if it is a clone.
    async fn cloned(&self, spec: &Map<String, Value>) -> Result<Option<Cloned>, CreateError> {
        match Source::of(&json!(spec), &self.vm.metadata.namespace).map_err(CreateError::invalid)? {
            Source::Other => Ok(None),
            Source::Cloned(cloned) => Ok(Some(cloned)),
            Source::DataSource(key) => {
                let data_sources = Kind::DATA_SOURCE.namespaced(&self.controller.client, &key.namespace);
                let found = serde_json::to_value(data_sources.get(&key.name).await?)?;
                source::of_data_source(&key, &found).map(Some).map_err(CreateError::invalid)
            }
        }
    }

    /// Asks whether the service account of the VM may have something cloned.
    async fn authorize(&self, cloned: &Cloned) -> Result<(), CreateError> {
        let account = (self.vm.metadata.namespace.as_str(), provision::account(self.vm));
        let Some(alternatives) = source::access_reviews(account, cloned) else { return Ok(()) };
        let reviews: Api<SubjectAccessReview> = Api::all(self.controller.client.clone());
        for all_of in alternatives {
            let mut is_allowed = true;
            for review in &all_of {
                let answer = reviews.create(&PostParams::default(), review).await?;
                is_allowed &= answer.status.is_some_and(|status| status.allowed);
            }
            if is_allowed {
                return Ok(());
            }
        }
        let denial = source::denial(account, cloned);
        Err(CreateError::Refused(Reason::UnauthorizedDataVolumeCreate, denial))
    }
}
