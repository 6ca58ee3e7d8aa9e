//! Writes the statuses of a node's VMIs to the API server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Client;
use vireo_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus as Status};
use vireo_client::controller::{self, Reconcile, Requeue};
use vireo_client::events::{EventRecorder, Regarding};
use vireo_client::informer::{Informer, revision};
use vireo_client::queue::WorkQueue;
use vireo_client::{Kind, write};

use super::instance::Instance;
use super::pods::LauncherPod;
use super::{RETRY, delay, events};
use crate::manifests::Key;
use crate::node::Node;
use crate::reconcile::status::Phase;
use crate::settings::Runtime;

const COMPONENT: &str = "virt-handler";
/// How many statuses are written at a time.
const WORKERS: usize = 4;

/// Writes the changes of the statuses.
pub(super) struct StatusWriter {
    client: Client,
    vmis: Arc<Informer<Instance>>,
    pods: Arc<Informer<LauncherPod>>,
    node: Arc<Node>,
    recorder: Arc<EventRecorder>,
    queue: Arc<WorkQueue<Key>>,
    /// As they were reported last.
    reported: Mutex<BTreeMap<Key, Arc<VirtualMachineInstance>>>,
}

impl StatusWriter {
    pub(super) fn new(
        client: Client,
        (vmis, pods): (Arc<Informer<Instance>>, Arc<Informer<LauncherPod>>),
        node: Arc<Node>,
    ) -> Self {
        let queue = Arc::new(WorkQueue::new(RETRY.0, RETRY.1));
        let (appears, shows) = (Arc::clone(&queue), Arc::clone(&node));
        vmis.on_change(move |change| {
            // It may be shown already. Else its status is written when it is.
            if let (None, Some(shown)) = (&change.before, shows.vmi(&change.key)) {
                appears.add_after(change.key.clone(), delay(&shown));
            }
        });
        let recorder = EventRecorder::new(client.clone(), COMPONENT, Some(&node.settings.node_name));
        let recorder = Arc::new(recorder);
        node.set_recorder(Arc::clone(&recorder));
        Self { client, vmis, pods, node, recorder, queue, reported: Mutex::default() }
    }

    pub(super) async fn run(&self) {
        let write = async {
            self.vmis.synced().await;
            controller::run(self, &self.queue, WORKERS).await;
        };
        write.await;
    }

    /// Has the status of a VMI written that the node shows, after a delay.
    pub(super) fn shown(&self, key: &Key, delay: Duration) {
        self.queue.add_after(key.clone(), delay);
    }

    /// Notes the launcher Pods on this node that may run a VMI, and the image of the launcher, which has one where the kubelet
    /// starts it. virt-controller, which writes both when they change, leaves it to the node agent to note the first one, as
    /// that writes the status anyway.
    fn note_pods(&self, uid: &str, status: &mut Status) {
        let pods = self.pods.owned_by(uid);
        let active = || pods.iter().filter(|pod| pod.is_active());
        let node = &self.node.settings.node_name;
        status.active_pods = active().map(|pod| (pod.uid.clone(), node.clone())).collect();
        if let (Runtime::Pods(_), Some(pod)) = (&self.node.settings.runtime, active().next()) {
            status.launcher_container_image_version.clone_from(&pod.image);
        }
    }

    fn reported(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<VirtualMachineInstance>>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reconcile for StatusWriter {
    type Key = Key;
    type Error = kube::Error;
    const NAME: &'static str = "virt-handler-status";

    async fn reconcile(&self, key: &Key) -> Result<Requeue, kube::Error> {
        let Some(now) = self.node.vmi(key) else {
            self.reported().remove(key);
            return Ok(None);
        };
        let before = self.reported().get(key).cloned();
        if before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &now)) {
            return Ok(None);
        }
        // Another object of this name, or one that the informer does not have yet, triggers an event later.
        let object = self.vmis.get(key).filter(|object| object.uid == now.metadata.uid);
        let Some(object) = object else { return Ok(None) };
        let mut after = with_own_fields(&object.status, &now.status);
        if after.active_pods.is_empty() && !Phase::parse(&after.phase).is_final() {
            self.note_pods(&object.uid, &mut after);
        }
        // Only the node writes these fields, so the patch applies to any version of the object.
        let version = write::Version { resource_version: "", ..(&object.metadata).into() };
        let api = Kind::VMI.namespaced(&self.client, &key.namespace);
        let written = match write::change_status(&api, version, &object.status, &after).await {
            // It is gone.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            written => written?,
        };
        // Wait for the informer, so that the next patch is computed from this version.
        self.vmis.shows(written.as_ref().map_or(0, revision), &[]).await;
        let regarding = Regarding::new(Kind::VMI, &now.metadata);
        for event in events::events(&object.status, before.as_deref(), &now) {
            self.recorder.publish(regarding, event.reason, event.message).await;
        }
        self.reported().insert(key.clone(), now);
        Ok(None)
    }
}

/// A status with the fields that the node owns; controllers write the others.
fn with_own_fields(object: &Status, node: &Status) -> Status {
    let node = node.clone();
    Status {
        node_name: node.node_name,
        reason: node.reason,
        conditions: node.conditions,
        phase: node.phase,
        phase_transition_timestamps: node.phase_transition_timestamps,
        interfaces: node.interfaces,
        guest_os_info: node.guest_os_info,
        volume_status: node.volume_status,
        memory: node.memory,
        current_cpu_topology: node.current_cpu_topology,
        vsock_cid: node.vsock_cid,
        ..object.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controllers_write_stays() {
        let object = Status {
            virtual_machine_revision_name: "revision".to_owned(),
            phase: "Pending".to_owned(),
            ..Status::default()
        };
        let node = Status {
            phase: "Running".to_owned(),
            node_name: "node1".to_owned(),
            vsock_cid: Some(77),
            ..Status::default()
        };
        let after = with_own_fields(&object, &node);
        assert_eq!(after, Status { virtual_machine_revision_name: "revision".to_owned(), ..node });
    }
}
