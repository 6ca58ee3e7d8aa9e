//! Metrics of all VMIs, whether they run or not.

use std::collections::BTreeMap;

use vireo_api::v1::VirtualMachineInstance;
use vireo_client::metrics::{Labels, Metric, MetricSet, NONE, gauge, vnics};

use super::Outdated;
use crate::manifests::Key;

const INFO: Metric = gauge("kubevirt_vmi_info", "A VMI and what it is.");
const COUNT: Metric = gauge("kubevirt_vmi_phase_count", "How many VMIs of a sort are in a phase.");
const NON_EVICTABLE: Metric =
    gauge("kubevirt_vmi_non_evictable", "Whether a VMI that is to migrate away from its node cannot.");
const ADDRESSES: Metric = gauge("kubevirt_vmi_status_addresses", "An address of a VMI.");
const VNIC_INFO: Metric = gauge("kubevirt_vmi_vnic_info", "A NIC of a VMI, and what it is.");

/// The eviction strategies that migrate a VMI.
const MIGRATES: [&str; 2] = ["LiveMigrate", "External"];

/// Adds the metrics of all VMIs.
pub(super) fn add<'a>(
    metric_set: &mut MetricSet,
    node: &str,
    vmis: impl Iterator<Item = &'a VirtualMachineInstance>,
    outdated: &Outdated,
) {
    let mut phases: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for vmi in vmis {
        let sort = sort(vmi);
        let phase = vmi.status.phase.to_lowercase();
        let counted =
            [node.to_owned(), phase.clone()].into_iter().chain(sort.iter().map(|(_, value)| value.clone()));
        *phases.entry(counted.collect()).or_default() += 1;
        let mut labels = info(node, vmi, &phase, &sort);
        let key = Key::new(vmi.metadata.namespace.as_str(), vmi.metadata.name.as_str());
        labels.push(("outdated".into(), outdated.contains(&key).to_string()));
        labels.push(("vmi_pod".into(), NONE.to_owned()));
        metric_set.add(&INFO, labels, Some(1.into()));
        let stuck = !is_evictable(vmi);
        metric_set.add(&NON_EVICTABLE, vmi_labels(node, vmi), Some(u64::from(stuck).into()));
        addresses(metric_set, node, vmi);
        for vnic in vnics(&vmi.spec) {
            let labels = vmi_labels(node, vmi).into_iter().filter(|(name, _)| name != "node").chain(vnic);
            metric_set.add(&VNIC_INFO, labels.collect(), Some(1.into()));
        }
    }
    let names = ["node", "phase", "os", "workload", "flavor", "instance_type", "preference"];
    for (values, count) in phases {
        let labels = names.iter().zip(values).map(|(name, value)| ((*name).into(), value));
        metric_set.add(&COUNT, labels.collect(), Some(count.into()));
    }
}

fn vmi_labels(node: &str, vmi: &VirtualMachineInstance) -> Labels {
    vec![
        ("node".into(), node.to_owned()),
        ("namespace".into(), vmi.metadata.namespace.clone()),
        ("name".into(), vmi.metadata.name.clone()),
    ]
}

/// The labels that come from the VMI's annotations.
fn sort(vmi: &VirtualMachineInstance) -> [(&'static str, String); 5] {
    let first = |names: &[&str]| {
        let value = names.iter().find_map(|name| vmi.metadata.annotations.get(*name));
        known(value.map_or("", String::as_str))
    };
    [
        ("os", first(&["vm.kubevirt.io/os"])),
        ("workload", first(&["vm.kubevirt.io/workload"])),
        ("flavor", first(&["vm.kubevirt.io/flavor"])),
        ("instance_type", first(&["kubevirt.io/instancetype-name", "kubevirt.io/cluster-instancetype-name"])),
        ("preference", first(&["kubevirt.io/preference-name", "kubevirt.io/cluster-preference-name"])),
    ]
}

fn known(value: &str) -> String {
    if value.is_empty() { NONE.to_owned() } else { value.to_owned() }
}

fn info(node: &str, vmi: &VirtualMachineInstance, phase: &str, sort: &[(&'static str, String)]) -> Labels {
    let guest = &vmi.status.guest_os_info;
    let rest = [
        ("guest_os_kernel_release", known(&guest.kernel_release)),
        ("guest_os_machine", known(&guest.machine)),
        ("guest_os_arch", known(&guest.machine)),
        ("guest_os_name", known(&guest.name)),
        ("guest_os_version_id", known(&guest.version_id)),
        ("evictable", is_evictable(vmi).to_string()),
    ];
    let mut labels = vmi_labels(node, vmi);
    labels.push(("phase".into(), phase.to_owned()));
    labels.extend(sort.iter().cloned().chain(rest).map(|(name, value)| (name.into(), value)));
    labels
}

/// Migration is not implemented: a VMI that is to migrate when it is evicted stays.
fn is_evictable(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.eviction_strategy.as_deref().is_none_or(|strategy| !MIGRATES.contains(&strategy))
}

fn addresses(metric_set: &mut MetricSet, node: &str, vmi: &VirtualMachineInstance) {
    for interface in &vmi.status.interfaces {
        for address in &interface.ip_addresses {
            let mut labels = vmi_labels(node, vmi);
            labels.extend([
                ("vnic_name".into(), interface.name.clone()),
                ("interface_name".into(), interface.interface_name.clone()),
                ("address".into(), address.clone()),
                ("type".into(), "ExternalInterface".to_owned()),
            ]);
            metric_set.add(&ADDRESSES, labels, Some(1.into()));
        }
    }
}
