//! All controllers of virt-controller, over caches that they share.

use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher::Config;
use serde_json::Value as Json;
use vireo_api::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachinePool};
use vireo_client::Kind;
use vireo_client::informer::{Informer, whole};
use vireo_client::metrics::{MetricSet, Value};

use crate::config::LiveConfig;
use crate::node::{self, Node};
use crate::pool::controller::PoolRevision;
use crate::vmi::{self, Launcher, StartedBy};
use crate::{attachments, instancetype, metrics, pool, replicaset, vm, workload_update};

/// The controllers of one client.
pub struct Controllers {
    config: LiveConfig,
    vmis: Arc<Informer<VirtualMachineInstance>>,
    vmi: vmi::controller::Controller,
    /// Where the kubelet mounts claims.
    attachments: Option<attachments::controller::Controller>,
    /// Where nodes fail by themselves.
    nodes: Option<(Arc<Informer<Node>>, node::Controller)>,
    /// Where launchers have images.
    workload_update: Option<workload_update::controller::Controller>,
    replica_sets: Arc<Informer<VirtualMachineInstanceReplicaSet>>,
    replica_set: replicaset::controller::Controller,
    vm_caches: vm::controller::Caches,
    vm: vm::controller::Controller,
    pools: Arc<Informer<VirtualMachinePool>>,
    pool_revisions: Arc<Informer<PoolRevision>>,
    pool: pool::controller::Controller,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controllers").finish_non_exhaustive()
    }
}

impl Controllers {
    /// Controllers that act as the user of a client. The caller watches the configuration.
    pub fn new(client: &Client, launcher: Launcher, config: LiveConfig) -> Self {
        let vmis = Informer::new(Kind::VMI.all(client), Config::default(), vm::with_volumes);
        // The node agent of one host is in the same process.
        let nodes = (launcher.started_by == StartedBy::Kubelet).then(|| node::informer(client));
        let image = launcher.image.clone();
        let vmi = vmi::controller::Controller::new(
            client.clone(),
            Arc::clone(&vmis),
            nodes.clone(),
            launcher,
            config.clone(),
        );
        let attachments = vmi.attachment_caches().map(|caches| {
            attachments::controller::Controller::new(client.clone(), caches, image.clone(), config.clone())
        });
        let workload_update = nodes.is_some().then(|| {
            let (vmis, pods) = (Arc::clone(&vmis), vmi.pods());
            workload_update::controller::Controller::new(client.clone(), vmis, pods, image)
        });
        let nodes = nodes.map(|nodes| {
            let controller =
                node::Controller::new(client.clone(), Arc::clone(&nodes), Arc::clone(&vmis), vmi.queue());
            (nodes, controller)
        });
        let replica_sets = Informer::new(Kind::REPLICA_SET.all(client), Config::default(), whole);
        let replica_set = replicaset::controller::Controller::new(
            client.clone(),
            Arc::clone(&replica_sets),
            Arc::clone(&vmis),
        );
        let vms = Informer::new(Kind::VM.all(client), Config::default(), whole);
        let vm_caches = vm::controller::Caches {
            vms: Arc::clone(&vms),
            vmis: Arc::clone(&vmis),
            revisions: Informer::new(Kind::CONTROLLER_REVISION.all(client), Config::default(), data),
            instancetypes: instancetype::Informers::new(client),
            storage: vmi.storage(),
        };
        let vm = vm::controller::Controller::new(client.clone(), vm_caches.clone(), config.clone());
        let pools = Informer::new(Kind::POOL.all(client), Config::default(), whole);
        let pool_revisions = Informer::new(
            Kind::CONTROLLER_REVISION.all(client),
            Config::default(),
            pool::controller::read_revision,
        );
        let pool = pool::controller::Controller::new(
            client.clone(),
            pool::controller::Caches {
                pools: Arc::clone(&pools),
                vms: Arc::clone(&vms),
                vmis: Arc::clone(&vmis),
                revisions: Arc::clone(&pool_revisions),
            },
        );
        Self {
            config,
            vmis,
            vmi,
            attachments,
            nodes,
            workload_update,
            replica_sets,
            replica_set,
            vm_caches,
            vm,
            pools,
            pool_revisions,
            pool,
        }
    }

    /// Adds the metrics of what they control, as far as they know it.
    pub fn add_metrics(&self, set: &mut MetricSet) {
        if let Some(controller) = &self.workload_update {
            set.add(
                &metrics::OUTDATED,
                Vec::new(),
                u64::try_from(controller.outdated()).ok().map(Value::from),
            );
        }
        let is_emulated = self.config.current().use_emulation;
        set.add(&metrics::EMULATION, Vec::new(), Some(u64::from(is_emulated).into()));
        let storage = &*self.vm_caches.storage;
        self.vmi.add_metrics(set);
        self.vm_caches.vms.all().iter().for_each(|vm| metrics::add_vm(set, vm, storage));
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        let vm::controller::Caches { vms, revisions, instancetypes, .. } = &self.vm_caches;
        let nodes = async {
            if let Some((nodes, controller)) = &self.nodes {
                tokio::join!(nodes.run(), controller.run());
            }
        };
        let attachments = async {
            if let Some(controller) = &self.attachments {
                controller.run().await;
            }
        };
        let workload_update = async {
            if let Some(controller) = &self.workload_update {
                controller.run().await;
            }
        };
        tokio::join!(
            workload_update,
            attachments,
            nodes,
            self.vmis.run(),
            self.vmi.run(),
            self.replica_sets.run(),
            self.replica_set.run(),
            vms.run(),
            revisions.run(),
            instancetypes.run(),
            self.vm.run(),
            self.pools.run(),
            self.pool_revisions.run(),
            self.pool.run(),
        );
    }
}

/// Reads the `data` of a ControllerRevision.
#[expect(clippy::unnecessary_wraps, reason = "caches read objects by functions that may fail")]
fn data(mut revision: Json) -> Result<Json, serde_json::Error> {
    let owners = revision.pointer("/metadata/ownerReferences").and_then(Json::as_array);
    // Those of other controllers may be large, and are none of ours.
    let is_of_vm = owners.into_iter().flatten().any(|owner| owner["kind"] == Kind::VM.kind);
    Ok(if is_of_vm { revision["data"].take() } else { Json::Null })
}
