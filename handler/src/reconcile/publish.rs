//! Writes the status of a VMI to disk and publishes it.

use std::net::IpAddr;

use tracing::{error, info, warn};
use vireo_api::names::MANIFEST_ANNOTATION;
use vireo_proto::launcher::{State, state};

use super::credentials::CredentialSync;
use super::desired::Desired;
use super::prober::Prober;
use super::reconciler::VmiReconciler;
use super::record::{Record, now};
use super::status::{self, ConditionType, Facts, Phase};
use super::volumes::Places;
use crate::launcher::link::chain;
use crate::launcher::numa;
use crate::manifests::Origin;
use crate::network::{Uplink, first_of_each_family};
use crate::resolve;
use crate::settings::Runtime;
use crate::state::read_json;

impl VmiReconciler {
    /// Updates and publishes the status, and writes it when the reconciler `waits` for a change: what follows at once is
    /// written with it. A status that cannot be written is published all the same. Returns whether the last write succeeded.
    pub(super) fn publish(&mut self, desired: &Desired, waits: bool) -> bool {
        let state = self.state();
        let Some(record) = &self.record else { return true };
        let mut next = record.clone();
        let vm = next.vm().ok();
        let addresses = if next.phase().is_final() { Vec::new() } else { self.addresses(&next) };
        let pod = self.node.launcher_pod(&self.key.namespace, record.uid);
        let multus = pod.map(|pod| pod.multus.into_keys().collect()).unwrap_or_default();
        let changed = desired.differs(record);
        let attachments = match self.volume_places() {
            Places::Pods(attachments) => Some(attachments),
            Places::Node(_) => None,
        };
        let credentials = self.credential_sync.as_ref().and_then(CredentialSync::result);
        let results = self.prober.as_ref().map(Prober::results);
        next.vmi.status = status::next(
            &record.vmi.status,
            &Facts {
                phase: phase(record.phase(), state.as_ref()),
                vm: vm.as_ref(),
                on_single_host: self.node.settings.runtime.is_single_host().then_some(&record.vmi.spec),
                state: state.as_ref(),
                readiness: results.as_ref().map(|results| &results.readiness),
                credentials: credentials.as_ref(),
                attachments: attachments.as_ref(),
                addresses,
                bridged: &record.bridged,
                multus: &multus,
                sync_error: self.sync_error.as_ref(),
                manifest_changed: changed,
                node: &self.node.settings.node_name,
                now: &now(),
            },
        );
        if let Some((_, Origin::File(file))) = desired.manifest() {
            next.vmi.metadata.annotations.insert(MANIFEST_ANNOTATION.to_owned(), file.to_owned());
        }
        let changed = next.vmi != record.vmi;
        self.unsaved |= changed;
        if waits && self.unsaved {
            self.save(&next);
        }
        if changed {
            if let Some(record) = &self.record {
                log_changes(record, &next);
            }
            self.node.show(&self.key, Some(next.vmi.clone()));
            self.record = Some(next);
        }
        !self.save_failed
    }

    /// The VMI's addresses, IPv4 first: of its wire, or of its Pod.
    fn addresses(&self, record: &Record) -> Vec<IpAddr> {
        match &record.plan {
            Some(plan) => plan.vm_addresses(),
            None if self.node.settings.runtime == Runtime::Process => Vec::new(),
            None => {
                // After a restart the Pod is not known at once. Its addresses do not change.
                let before = status::primary(&record.vmi.status.interfaces);
                let before = before.into_iter().flat_map(|interface| &interface.ip_addresses);
                let pod = self.node.launcher_pod(&self.key.namespace, record.uid).map(|pod| pod.address);
                let reported = pod.iter().chain(before).filter_map(|address| address.parse().ok());
                first_of_each_family(self.pod_addresses.iter().copied().chain(reported))
            }
        }
    }

    /// Writes a record to disk. A failure is logged once; later reconciles retry it.
    pub(super) fn save(&mut self, record: &Record) {
        let written = record.write();
        if let Err(error) = &written
            && !self.save_failed
        {
            error!(
                error = chain(error),
                "cannot write the status; VMs keep running, and the write is retried"
            );
        }
        self.save_failed = written.is_err();
        self.unsaved = self.save_failed;
    }

    /// Builds the launch message.
    pub(super) fn request(
        &self,
        record: &Record,
        vm: &vireo_api::spec::Vm,
        prepared: &crate::storage::Prepared,
        uplink: &Uplink,
    ) -> vireo_proto::launcher::LaunchRequest {
        // Those of Pods are the kubelet's to give.
        let cpus: Vec<u32> = read_json(&record.dir.cpus()).ok().flatten().unwrap_or_default();
        let has_nodes = vm.cpu_placement().is_some_and(|placement| placement.numa.is_some());
        let numa = if has_nodes { numa::of_this_node(vm.memory().huge_page()) } else { Vec::new() };
        let facts = resolve::Facts {
            dir: &record.dir,
            cpus: &cpus,
            numa: &numa,
            prepared,
            mtu: uplink.mtu,
            has_ipv6: uplink.has_ipv6(),
            bridged: &record.bridged,
            resolver: &crate::network::dns::of_host(),
            now: jiff::Timestamp::now(),
            hypervisor: self.node.settings.hypervisor,
            smbios: &self.node.smbios(),
            keep_free_pages: self.node.keeps_free_pages(),
            in_pod: self.node.settings.runtime != Runtime::Process,
        };
        resolve::request(vm, &facts)
    }
}

/// The phase that follows from the launcher's state. Final phases are set with the outcome, never here.
fn phase(recorded: Phase, state: Option<&State>) -> Phase {
    match (recorded, state.map(State::phase)) {
        (
            Phase::Pending | Phase::Scheduling | Phase::Scheduled | Phase::Running,
            Some(state::Phase::Running | state::Phase::Paused),
        ) => Phase::Running,
        (recorded, _) => recorded,
    }
}

/// Logs the changes that matter to a user.
fn log_changes(before: &Record, after: &Record) {
    let hypervisor = |record: &Record| {
        ConditionType::Hypervisor
            .find(&record.vmi.status)
            .map(|condition| (condition.reason.clone(), condition.message.clone()))
    };
    if let Some((hypervisor, why)) = hypervisor(after).filter(|now| hypervisor(before).as_ref() != Some(now))
    {
        info!(hypervisor, why, "hypervisor chosen");
    }
    if before.phase() != after.phase() {
        let reason = &after.vmi.status.reason;
        info!(from = before.vmi.status.phase, to = after.vmi.status.phase, reason, "phase");
    }
    let appeared = |kind: ConditionType| {
        let has = |record: &Record| kind.find(&record.vmi.status).is_some();
        has(after) && !has(before)
    };
    if appeared(ConditionType::NoBootableDevice) {
        warn!("the firmware found nothing to start");
    }
    if appeared(ConditionType::ManifestChanged) {
        warn!("the manifest was changed; the running VMI is not: delete and create it to apply the change");
    }
}
