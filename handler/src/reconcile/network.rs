//! The network of a VMI: made before its launcher, removed after it.

use std::path::PathBuf;

use super::act::{Done, run_blocking, sync_error};
use super::reconciler::VmiReconciler;
use super::status::SyncError;
use crate::launcher;
use crate::network::bridge::{Bridge, PodInterface};
use crate::network::inside::{by_passt, requested};
use crate::network::{self, Plan, Uplink};

impl VmiReconciler {
    pub(super) async fn ensure_network(&mut self, vm: &vireo_api::spec::Vm) -> Done {
        if let Some((nic, _)) = Bridge::requested(vm).next() {
            let message =
                format!("the interface {nic} is on a bridge, and there are no networks of Pods on this host");
            return Err(SyncError { reason: "FailedNetwork", message });
        }
        let inside = requested(vm);
        if inside.is_none() && by_passt(vm).next().is_none() {
            return Ok(());
        }
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
                .and_then(|()| network::ensure(&plan, inside.as_ref()))
                .map_err(sync_error("FailedNetwork"))
        })
        .await
    }

    /// Makes the guest's side of its Pod's networks. Returns what is behind masquerade or passt.
    pub(super) async fn ensure_network_in_pod(
        &mut self,
        vm: &vireo_api::spec::Vm,
    ) -> Result<Uplink, SyncError> {
        let namespace = launcher::pod::network_namespace(self.link()?.pid());
        self.ensure_bridges(vm, namespace.clone()).await?;
        let (inside, is_by_passt) = (requested(vm), by_passt(vm).next().is_some());
        let ensure = move || match inside {
            Some(inside) => network::ensure_in_pod(&namespace, &inside),
            None if is_by_passt => network::addresses_in_pod(&namespace)
                .map(|addresses| Uplink { addresses, ..Uplink::default() }),
            None => Ok(Uplink::default()),
        };
        let ensure = move || ensure().map_err(sync_error("FailedNetwork"));
        let uplink = run_blocking("FailedNetwork", ensure).await?;
        self.pod_addresses.clone_from(&uplink.addresses);
        Ok(uplink)
    }

    /// Puts the interfaces of the Pod that the guest takes over into bridges.
    async fn ensure_bridges(&mut self, vm: &vireo_api::spec::Vm, namespace: PathBuf) -> Done {
        let bridges: Vec<(String, Bridge)> =
            Bridge::requested(vm).map(|(nic, bridge)| (nic.to_owned(), bridge)).collect();
        if bridges.is_empty() {
            return Ok(());
        }
        let mut record = self.known()?;
        if record.bridged.is_empty() {
            let names = bridges.iter().map(|(_, bridge)| bridge.pod_interface.clone()).collect();
            let within = namespace.clone();
            let read = move || network::bridge::read(&within, names).map_err(sync_error("FailedNetwork"));
            let interfaces = run_blocking("FailedNetwork", read).await?;
            record.bridged = bridges.iter().map(|(nic, _)| nic.clone()).zip(interfaces).collect();
            record.write_bridged().map_err(sync_error("FailedNetwork"))?;
            self.record = Some(record.clone());
        }
        let bridges = bridges.into_iter();
        let bridges: Vec<(Bridge, PodInterface)> =
            bridges.filter_map(|(nic, bridge)| Some((bridge, record.bridged.remove(&nic)?))).collect();
        let ensure =
            move || network::bridge::ensure(&namespace, bridges).map_err(sync_error("FailedNetwork"));
        run_blocking("FailedNetwork", ensure).await
    }

    pub(super) async fn release_network(&mut self) -> Done {
        let mut record = self.known()?;
        // Other VMs may have its CPUs, too. It may have had none.
        let _ = std::fs::remove_file(record.dir.cpus());
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
