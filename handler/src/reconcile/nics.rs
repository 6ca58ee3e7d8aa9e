//! NICs that are attached to a guest while it runs, and detached: those of the spec on bridges, in clusters.

use std::path::PathBuf;

use tokio::time::Instant;
use vireo_api::spec::{Binding, Vm};
use vireo_proto::files;
use vireo_proto::launcher::State;

use super::act::{Done, run_blocking, sync_error};
use super::deadline::Interrupt;
use super::reconciler::VmiReconciler;
use super::status::SyncError;
use crate::launcher;
use crate::launcher::link::chain;
use crate::network::bridge::{self, Bridge, Bridged, PodInterface};
use crate::network::{NetworkError, dns};
use crate::resolve;

/// The reason of a sync error: a NIC was not attached or detached.
pub(super) const NIC_FAILED: &str = "FailedNICSync";
/// The reason of a sync error: the Pod of a launcher is not on the network of a NIC yet.
pub(crate) const NO_POD_INTERFACE: &str = "PodInterfaceNotFound";

/// One change of the NICs of a guest.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The guest is to get the NIC of this name.
    Attach(String),
    /// The guest is to release it.
    Detach(String),
    /// The guest does not have it any more: the interface of the Pod leaves its bridge.
    Release(String),
}

/// The changes that make the NICs of a guest match the spec; the first ones make room. Launchers of earlier releases do not report
/// their NICs.
pub(super) fn changes(vm: &Vm, state: &State, bridged: &Bridged) -> Vec<Change> {
    let Some(links) = &state.links else { return Vec::new() };
    let has = |name: &str| links.up.iter().chain(&links.down).any(|known| known == name);
    let is_wanted = |name: &str| vm.interfaces().iter().any(|nic| nic.name() == name);
    let detached = links.up.iter().chain(&links.down).filter(|name| !is_wanted(name));
    let released = bridged.keys().filter(|name| !is_wanted(name) && !has(name));
    let on_bridges = vm.interfaces().iter().filter(|nic| matches!(nic.binding(), Binding::Bridge));
    let attached = on_bridges.map(|nic| nic.name()).filter(|name| !has(name));
    let detached = detached.map(|name| Change::Detach(name.clone()));
    let released = released.map(|name| Change::Release(name.clone()));
    detached.chain(released).chain(attached.map(|name| Change::Attach(name.to_owned()))).collect()
}

fn network_error(error: &NetworkError) -> SyncError {
    let reason = match error {
        NetworkError::NoPodInterface(_) => NO_POD_INTERFACE,
        _ => NIC_FAILED,
    };
    SyncError { reason, message: chain(error) }
}

impl VmiReconciler {
    /// Makes a change, unless it is interrupted.
    pub(super) async fn change_nic(
        &mut self,
        vm: &Vm,
        change: Change,
        interrupt: &mut Interrupt<'_>,
    ) -> Done {
        match change {
            Change::Attach(name) => self.attach_nic(vm, &name, interrupt).await,
            Change::Detach(name) => {
                self.reattach.forget(NIC_FAILED, &name);
                let Some(done) = interrupt.or(self.link()?.detach_interface(name.clone())).await else {
                    return Ok(());
                };
                done.map_err(sync_error(NIC_FAILED))?;
                self.release_nic(&name).await
            }
            Change::Release(name) => self.release_nic(&name).await,
        }
    }

    async fn attach_nic(&mut self, vm: &Vm, name: &str, interrupt: &mut Interrupt<'_>) -> Done {
        // A Pod that changes from here on triggers another reconcile.
        self.pods.mark_unchanged();
        let Some(bridge) = Bridge::of(vm, name) else { return Ok(()) };
        self.reattach.check(NIC_FAILED, name, Instant::now())?;
        let namespace = self.namespace_of_pod()?;
        let before = self.take_over(name, &bridge, namespace.clone()).await?;
        let (within, bridges) = (namespace.clone(), vec![(bridge, before)]);
        let ensure = move || bridge::ensure(&within, bridges).map_err(|error| network_error(&error));
        run_blocking(NIC_FAILED, ensure).await?;
        let record = self.known()?;
        let Some(interface) = resolve::bridged_interface(vm, name, &record.bridged, &dns::of_host()) else {
            let message = format!("the interface of the Pod for the NIC {name} has no MAC address");
            return Err(SyncError { reason: NIC_FAILED, message });
        };
        let (socket, opened) = (record.dir.files_socket(), interface.clone());
        let pass = move || {
            let mut nic = Vec::new();
            launcher::files::open_interface(&opened, &namespace, &mut nic)?;
            files::pass(&socket, &nic)
        };
        run_blocking(NIC_FAILED, move || pass().map_err(sync_error(NIC_FAILED))).await?;
        let Some(done) = interrupt.or(self.link()?.attach_interface(interface)).await else { return Ok(()) };
        done.map_err(sync_error(NIC_FAILED))?;
        self.reattach.attached(NIC_FAILED, name, Instant::now());
        Ok(())
    }

    /// What the guest takes over of the Pod for a NIC, which is on disk before the interface changes.
    async fn take_over(
        &mut self,
        name: &str,
        bridge: &Bridge,
        namespace: PathBuf,
    ) -> Result<PodInterface, SyncError> {
        let mut record = self.known()?;
        if let Some(known) = record.bridged.get(name) {
            return Ok(known.clone());
        }
        let names = vec![bridge.pod_interface.clone()];
        let read = move || bridge::read(&namespace, names).map_err(|error| network_error(&error));
        let found = run_blocking(NIC_FAILED, read).await?.pop();
        let found = found
            .ok_or_else(|| network_error(&NetworkError::NoPodInterface(bridge.pod_interface.clone())))?;
        record.bridged.insert(name.to_owned(), found.clone());
        record.write_bridged().map_err(sync_error(NIC_FAILED))?;
        self.record = Some(record);
        Ok(found)
    }

    /// Removes the bridge and the tap of a NIC that the guest does not have any more.
    async fn release_nic(&mut self, name: &str) -> Done {
        let mut record = self.known()?;
        let Some(before) = record.bridged.remove(name) else { return Ok(()) };
        let namespace = self.namespace_of_pod()?;
        let remove = move || bridge::remove(&namespace, before.name).map_err(|error| network_error(&error));
        run_blocking(NIC_FAILED, remove).await?;
        record.write_bridged().map_err(sync_error(NIC_FAILED))?;
        self.record = Some(record);
        Ok(())
    }

    fn namespace_of_pod(&self) -> Result<PathBuf, SyncError> {
        Ok(launcher::pod::network_namespace(self.link()?.pid()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use vireo_api::v1::VirtualMachineInstance;
    use vireo_proto::launcher::Links;

    use super::*;

    fn vm(nics: &[(&str, &str)]) -> Vm {
        let interfaces: Vec<_> =
            nics.iter().map(|(name, state)| json!({"name": name, "bridge": {}, "state": state})).collect();
        let networks: Vec<_> =
            nics.iter().map(|(name, _)| json!({"name": name, "multus": {"networkName": "lan"}})).collect();
        let interfaces = [vec![json!({"name": "default", "masquerade": {}})], interfaces].concat();
        let networks = [vec![json!({"name": "default", "pod": {}})], networks].concat();
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "x", "namespace": "n", "uid": "5649d1a6-7e1c-4d0c-9f3a-3f0e63d1f7a1"},
            "spec": {
                "domain": {"memory": {"guest": "64Mi"},
                    "devices": {"interfaces": interfaces}},
                "networks": networks,
            },
        }))
        .unwrap();
        Vm::try_from(&vmi).unwrap()
    }

    fn bridged(names: &[&str]) -> Bridged {
        let interface = |name: &&str| PodInterface {
            name: format!("pod{name}"),
            mac: [2, 0, 0, 0, 0, 9],
            mtu: 1500,
            address: None,
            routes: Vec::new(),
        };
        names.iter().map(|name| ((*name).to_owned(), interface(name))).collect()
    }

    #[test]
    fn the_nics_of_a_guest_become_those_of_the_spec() {
        let has = |up: &[&str], down: &[&str]| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            State { links: Some(Links { up: names(up), down: names(down) }), ..State::default() }
        };
        let (attach, detach, release) = (
            |name: &str| Change::Attach(name.to_owned()),
            |name: &str| Change::Detach(name.to_owned()),
            |name: &str| Change::Release(name.to_owned()),
        );
        let lan = vm(&[("lan", "")]);
        assert_eq!(changes(&lan, &has(&["default"], &[]), &Bridged::new()), [attach("lan")]);
        assert_eq!(changes(&lan, &has(&["default"], &["lan"]), &bridged(&["lan"])), []);
        let absent = vm(&[("lan", "absent"), ("red", "down")]);
        assert_eq!(
            changes(&absent, &has(&["default", "lan"], &[]), &bridged(&["lan"])),
            [detach("lan"), attach("red")]
        );
        let gone = vm(&[]);
        assert_eq!(changes(&gone, &has(&["default"], &["lan"]), &bridged(&["lan"])), [detach("lan")]);
        assert_eq!(changes(&gone, &has(&["default"], &[]), &bridged(&["lan"])), [release("lan")]);
        // A launcher of an earlier release.
        assert_eq!(changes(&lan, &State::default(), &Bridged::new()), []);
    }
}
