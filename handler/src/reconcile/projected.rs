//! Reads the files that Kubernetes projects into the volumes of a VMI: in its launcher Pod, or from the API.

use uuid::Uuid;
use vireo_api::spec::{Field, ProjectedSource, Vm, VolumeSource};

use super::act::{Sources, storage_error};
use super::reconciler::VmiReconciler;
use super::status::SyncError;
use crate::jobs::JobContext;
use crate::launcher;
use crate::node::Node;
use crate::settings::Runtime;
use crate::storage::projected::{AbsentObject, ProjectedError, ProjectedFiles, Projection, projections};
use crate::storage::{PullSecrets, StorageError};

impl VmiReconciler {
    /// What a VMI starts with that is read from the API.
    pub(super) async fn sources(&mut self, vm: &Vm) -> Result<Sources, SyncError> {
        let projected = self.project(vm).await?;
        Ok(Sources { projected, pull_secrets: self.pull_secrets(vm).await?, is_prepared: false })
    }

    /// The projected files that a VMI starts with. Where an object is absent, the reconciler waits for it.
    async fn project(&mut self, vm: &Vm) -> Result<ProjectedFiles, SyncError> {
        self.awaited_object = None;
        let wanted = projections(vm);
        if wanted.is_empty() {
            return Ok(ProjectedFiles::new());
        }
        let read = match &self.node.settings.runtime {
            Runtime::Pods(_) => {
                read_in_pod(&self.node, &self.key.namespace, self.link()?.pid(), wanted).await
            }
            Runtime::Process => {
                read_objects(&self.node, (&self.key.namespace, self.known()?.uid), wanted).await
            }
        };
        read.map_err(|error| self.awaiting(error))
    }

    /// The credentials for the images of registries that this node pulls. Where a Secret is absent, the reconciler waits for
    /// it.
    async fn pull_secrets(&mut self, vm: &Vm) -> Result<PullSecrets, SyncError> {
        self.awaited_object = None;
        let named = vm.pull_secrets();
        if self.node.settings.registries.is_none() || !vm.has_registry_images() {
            return Ok(PullSecrets::default());
        }
        let read = self.read_pull_secrets(named, service_account(vm)).await;
        read.map_err(|error| self.awaiting(error))
    }

    async fn read_pull_secrets(
        &self,
        named: Vec<(Field, &str)>,
        account: &str,
    ) -> Result<PullSecrets, StorageError> {
        let namespace = &self.key.namespace;
        let Some(projector) = self.node.projector() else {
            return match named.into_iter().next() {
                Some((field, _)) => Err(ProjectedError::NoApi.at(field)),
                None => Ok(PullSecrets::default()),
            };
        };
        let mut secrets = PullSecrets::default();
        for (field, name) in named {
            let secret = projector.pull_secret(namespace, name).await.map_err(|error| error.at(field))?;
            secrets.named.insert(name.to_owned(), secret);
        }
        // As for the kubelet, what the account names and is not there does not keep VMs from starting.
        secrets.of_account = projector.pull_secrets_of(namespace, account).await;
        Ok(secrets)
    }

    /// The error to report; where an object is absent, the reconciler waits for it.
    fn awaiting(&mut self, error: StorageError) -> SyncError {
        if let StorageError::Projected { source: ProjectedError::Absent(object), .. } = &error {
            self.awaited_object = Some((**object).clone());
        }
        storage_error(error)
    }
}

/// Reads what the kubelet has mounted in the Pod of the launcher with this process ID.
pub(super) async fn read_in_pod(
    node: &Node,
    namespace: &str,
    pid: i32,
    wanted: Vec<Projection>,
) -> Result<ProjectedFiles, StorageError> {
    let read = move |_: &JobContext| {
        let files = wanted.into_iter().map(|Projection { directory, field, .. }| {
            let files = launcher::pod::projected::read(pid, &directory);
            Ok((directory, files.map_err(|error| error.at(field))?))
        });
        files.collect()
    };
    node.jobs.quick.run(namespace, read).await?
}

/// Reads the objects as a kubelet would, for the VMI with this namespace and UID.
pub(super) async fn read_objects(
    node: &Node,
    vmi: (&str, Uuid),
    wanted: Vec<Projection>,
) -> Result<ProjectedFiles, StorageError> {
    let mut all = ProjectedFiles::new();
    for Projection { directory, field, source } in wanted {
        let files = match node.projector() {
            Some(projector) => projector.files(vmi, &source).await,
            None => Err(ProjectedError::NoApi),
        };
        all.insert(directory, files.map_err(|error| error.at(field))?);
    }
    Ok(all)
}

/// The ServiceAccount of a VM's launcher Pod.
fn service_account(vm: &Vm) -> &str {
    let accounts = vm.fixed_disks().filter_map(|disk| match disk.source() {
        VolumeSource::Projected(projected) => match projected.source() {
            ProjectedSource::ServiceAccount { name } => Some(name.as_str()),
            _ => None,
        },
        _ => None,
    });
    accounts.last().unwrap_or("default")
}

/// Returns once an object exists that a VMI waits for. Never returns where there is none.
pub(super) async fn appears(node: &Node, object: Option<&AbsentObject>) {
    match (object, node.projector()) {
        (Some(object), Some(projector)) => projector.appears(object).await,
        _ => std::future::pending().await,
    }
}
