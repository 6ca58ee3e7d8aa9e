//! All controllers of virt-controller, over caches that they share.

use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher::Config;
use vireo_api::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use vireo_client::Kind;
use vireo_client::informer::{Informer, whole, without_spec};

use crate::replicaset;

/// The controllers of one client.
pub struct Controllers {
    vmis: Arc<Informer<VirtualMachineInstance>>,
    replica_sets: Arc<Informer<VirtualMachineInstanceReplicaSet>>,
    replica_set: replicaset::controller::Controller,
}

impl std::fmt::Debug for Controllers {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Controllers").finish_non_exhaustive()
    }
}

impl Controllers {
    /// Controllers that act as the user of a client.
    pub fn new(client: &Client) -> Self {
        let vmis = Informer::new(Kind::VMI.all(client), Config::default(), without_spec);
        let replica_sets = Informer::new(Kind::REPLICA_SET.all(client), Config::default(), whole);
        let replica_set = replicaset::controller::Controller::new(
            client.clone(),
            Arc::clone(&replica_sets),
            Arc::clone(&vmis),
        );
        Self { vmis, replica_sets, replica_set }
    }

    /// Controls until it is dropped.
    pub async fn run(&self) {
        tokio::join!(self.vmis.run(), self.replica_sets.run(), self.replica_set.run());
    }
}
