//! USB devices of clients: each is a websocket that relays usbredir's protocol to a free slot of the guest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path as Segments, State};
use axum::response::Response;
use uuid::Uuid;
use vireo_api::v1::VirtualMachineInstance;
use vireo_proto::USB_REDIRECTION_SOCKETS;

use super::console::running;
use super::error::ApiError;
use super::find;
use super::relay::{PLAIN, relay_stream};
use crate::launcher::socket;
use crate::metrics::Endpoint;
use crate::node::Node;

/// Attaches a device: the guest has it until the client leaves.
pub(super) async fn attach(
    State(node): State<Arc<Node>>,
    Segments((namespace, name)): Segments<(String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let vmi = find(&node, namespace, name)?;
    redirectable(&vmi)?;
    let upgrade = upgrade
        .map_err(|rejection| ApiError::bad_request(format!("a USB device is a websocket: {rejection}")))?;
    let uid = vmi.metadata.uid.parse().map_err(|_| ApiError::internal("the VMI has no UID"))?;
    let sockets = node.state.vmi_dir(uid).usb_redirection_sockets();
    let taken = node.usb_slots.take(uid).and_then(|slot| sockets.get(slot.index).map(|path| (slot, path)));
    let (slot, path) = taken.ok_or_else(|| ApiError::unavailable("All USB devices are in use."))?;
    let device = socket::connect(path)
        .await
        .map_err(|error| ApiError::internal(format!("cannot connect to the guest's USB slot: {error}")))?;
    let connection = node.metrics.connections.open(&vmi, Endpoint::UsbRedirection);
    Ok(upgrade.protocols([PLAIN]).on_upgrade(async move |client| {
        let _in_use = (connection, slot);
        relay_stream(client, device.into_split()).await;
    }))
}

/// Checks that a running VMI has slots, with KubeVirt's errors.
fn redirectable(vmi: &VirtualMachineInstance) -> Result<(), ApiError> {
    if vmi.spec.domain.devices.client_passthrough.is_none() {
        return Err(ApiError::not_now(&vmi.metadata.name, "Not configured with USB Redirection"));
    }
    running(vmi)
}

/// The slots that have a client, by the UIDs of their VMIs. A connection to one of them would wait until that has left.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsbSlots(Arc<Mutex<BTreeMap<Uuid, BTreeSet<usize>>>>);

/// A slot of a VMI, which is in use until this is dropped.
#[derive(Debug)]
struct UsbSlot {
    all: UsbSlots,
    vmi: Uuid,
    index: usize,
}

impl UsbSlots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Uuid, BTreeSet<usize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first slot that is free.
    fn take(&self, vmi: Uuid) -> Option<UsbSlot> {
        let mut all = self.lock();
        let used = all.entry(vmi).or_default();
        let index = (0..USB_REDIRECTION_SOCKETS.len()).find(|index| !used.contains(index))?;
        used.insert(index);
        Some(UsbSlot { all: self.clone(), vmi, index })
    }
}

impl Drop for UsbSlot {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(used) = all.get_mut(&self.vmi) {
            used.remove(&self.index);
            if used.is_empty() {
                all.remove(&self.vmi);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_are_kubevirts() {
        let vmi = |phase: &str, slots: bool| {
            let mut vmi = VirtualMachineInstance::default();
            vmi.metadata.name = "one".to_owned();
            vmi.status.phase = phase.to_owned();
            vmi.spec.domain.devices.client_passthrough = slots.then(Default::default);
            redirectable(&vmi).map_err(|fault| (fault.code.as_u16(), fault.message))
        };
        assert_eq!(vmi("Running", true), Ok(()));
        let without = "Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io \"one\": Not configured with USB Redirection";
        for phase in ["Running", "Scheduled"] {
            assert_eq!(vmi(phase, false), Err((409, without.to_owned())), "{phase}");
        }
        assert_eq!(vmi("Scheduled", true), Err((400, "VMI is not running".to_owned())));
    }

    #[test]
    fn each_vmi_has_four_slots_and_a_free_one_is_taken_again() {
        let slots = UsbSlots::default();
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut taken: Vec<UsbSlot> = (0..4).filter_map(|_| slots.take(one)).collect();
        assert_eq!(taken.iter().map(|slot| slot.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(slots.take(one).is_none());
        assert_eq!(slots.take(other).map(|slot| slot.index), Some(0));
        drop(taken.remove(2));
        assert_eq!(slots.take(one).map(|slot| slot.index), Some(2));
        drop(taken);
        assert!(slots.lock().is_empty(), "nothing is kept of VMIs without clients");
    }
}
