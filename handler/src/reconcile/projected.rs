//! Reads the files that Kubernetes projects into the volumes of a VMI: in its launcher Pod, or from the API.

use uuid::Uuid;
use vireo_api::spec::Vm;

use super::act::storage_error;
use super::reconciler::VmiReconciler;
use super::status::SyncError;
use crate::jobs::JobContext;
use crate::launcher;
use crate::node::Node;
use crate::settings::Runtime;
use crate::storage::StorageError;
use crate::storage::projected::{AbsentObject, ProjectedError, ProjectedFiles, Projection, projections};

impl VmiReconciler {
    /// The projected files that a VMI starts with. Where an object is absent, the reconciler waits for it.
    pub(super) async fn project(&mut self, vm: &Vm) -> Result<ProjectedFiles, SyncError> {
        self.awaited_object = None;
        let wanted = projections(vm);
        if wanted.is_empty() {
            return Ok(ProjectedFiles::new());
        }
        let read = match &self.node.settings.runtime {
            Runtime::Pods(_) => self.read_in_pod(self.link()?.pid(), wanted).await,
            Runtime::Process => self.read_objects(self.known()?.uid, wanted).await,
        };
        read.map_err(|error| {
            if let StorageError::Projected { source: ProjectedError::Absent(object), .. } = &error {
                self.awaited_object = Some((**object).clone());
            }
            storage_error(error)
        })
    }

    /// Reads what the kubelet has mounted in the Pod of the launcher with this process ID.
    async fn read_in_pod(&self, pid: i32, wanted: Vec<Projection>) -> Result<ProjectedFiles, StorageError> {
        let read = move |_: &JobContext| {
            let files = wanted.into_iter().map(|Projection { directory, field, .. }| {
                let files = launcher::pod::projected::read(pid, &directory);
                Ok((directory, files.map_err(|error| error.at(field))?))
            });
            files.collect()
        };
        self.node.jobs.quick.run(&self.key.namespace, read).await?
    }

    /// Reads the objects as a kubelet would, for the VMI with this UID.
    async fn read_objects(&self, uid: Uuid, wanted: Vec<Projection>) -> Result<ProjectedFiles, StorageError> {
        let mut all = ProjectedFiles::new();
        for Projection { directory, field, source } in wanted {
            let files = match self.node.projector() {
                Some(projector) => projector.files((&self.key.namespace, uid), &source).await,
                None => Err(ProjectedError::NoApi),
            };
            all.insert(directory, files.map_err(|error| error.at(field))?);
        }
        Ok(all)
    }
}

/// Returns once an object exists that a VMI waits for. Never returns where there is none.
pub(super) async fn appears(node: &Node, object: Option<&AbsentObject>) {
    match (object, node.projector()) {
        (Some(object), Some(projector)) => projector.appears(object).await,
        _ => std::future::pending().await,
    }
}
