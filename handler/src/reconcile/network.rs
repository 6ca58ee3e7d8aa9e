//! The network of a VMI: made before its launcher, removed after it.

use super::act::{Done, run_blocking, sync_error};
use super::reconciler::VmiReconciler;
use super::status::SyncError;
use crate::launcher;
use crate::network::inside::requested;
use crate::network::{self, Plan};

impl VmiReconciler {
    pub(super) async fn ensure_network(&mut self, vm: &vireo_api::spec::Vm) -> Done {
        let Some(inside) = requested(vm) else { return Ok(()) };
        let mut record = self.known()?;
        let node = self.node.clone();
        let uid = record.uid;
        let plan = match record.plan.clone() {
            Some(plan) => plan,
            None => {
                let plan = run_blocking("FailedNetwork", move || {
                    node.plan_network(uid).map_err(sync_error("FailedNetwork"))
                })
                .await?;
                record.plan = Some(plan.clone());
                if let Err(error) = record.write_plan() {
                    self.node.release_wire(&plan);
                    return Err(sync_error("FailedNetwork")(error));
                }
                self.record = Some(record);
                plan
            }
        };
        let node = self.node.clone();
        run_blocking("FailedNetwork", move || {
            node.prepare_host()
                .and_then(|()| network::ensure(&plan, &inside))
                .map_err(sync_error("FailedNetwork"))
        })
        .await
    }

    /// Makes the guest's side of its Pod's network. Returns the MTU.
    pub(super) async fn ensure_network_in_pod(&self, vm: &vireo_api::spec::Vm) -> Result<u32, SyncError> {
        let Some(inside) = requested(vm) else { return Ok(0) };
        let namespace = launcher::pod::network_namespace(self.link()?.pid());
        let ensure = move || network::ensure_in_pod(&namespace, &inside).map_err(sync_error("FailedNetwork"));
        run_blocking("FailedNetwork", ensure).await
    }

    pub(super) async fn release_network(&mut self) -> Done {
        let mut record = self.known()?;
        let Some(plan) = record.plan.take() else { return Ok(()) };
        self.end_leftovers().await?;
        remove_network(plan.clone()).await?;
        record.write_plan().map_err(sync_error("FailedNetwork"))?;
        self.node.release_wire(&plan);
        self.record = Some(record);
        Ok(())
    }
}

/// Removes the network of a VMI, also of one without a record.
pub(super) async fn remove_network(plan: Plan) -> Done {
    run_blocking("FailedNetwork", move || network::remove(&plan).map_err(sync_error("FailedNetwork"))).await
}
