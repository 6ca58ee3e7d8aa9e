//! What VMs request: resources, and the disks of claims.

use vireo_api::spec::{Bytes, MilliCpus};
use vireo_api::v1::{DomainSpec, Quantity, VirtualMachine};
use vireo_client::ObjectKey;
use vireo_client::metrics::{Labels, Metric, MetricSet, Value, gauge};

use super::labels;
use crate::data_volume::Storage;

const REQUESTS: Metric =
    gauge("kubevirt_vm_resource_requests", "What a VM requests of a resource, by its source.");
const LIMITS: Metric = gauge("kubevirt_vm_resource_limits", "The limit of a VM for a resource.");
const DISK: Metric = gauge("kubevirt_vm_disk_allocated_size_bytes", "The size of the claim of a VM's disk.");
const MILLI: u64 = 1000;

/// Adds them.
pub(super) fn add(set: &mut MetricSet, vm: &VirtualMachine, storage: &dyn Storage) {
    let Some(template) = &vm.spec.template else { return };
    for (resource, unit, source, value) in requests(&template.spec.domain) {
        let labels = labels_with(vm, &[("resource", resource), ("unit", unit), ("source", source)]);
        set.add(&REQUESTS, labels, Some(value));
    }
    let limits = &template.spec.domain.resources.limits;
    let limits = [
        ("memory", "bytes", limits.get("memory").and_then(bytes)),
        ("cpu", "cores", limits.get("cpu").and_then(cores)),
    ];
    for (resource, unit, value) in limits {
        set.add(&LIMITS, labels_with(vm, &[("resource", resource), ("unit", unit)]), value);
    }
    for volume in &template.spec.volumes {
        let Some(used) = volume.claim() else { continue };
        let Some(claim) = storage.claim(&ObjectKey::new(vm.metadata.namespace.as_str(), used.name)) else {
            continue;
        };
        let of_disk = [
            ("persistentvolumeclaim", used.name),
            ("volume_mode", claim.volume_mode()),
            ("device", volume.name.as_str()),
        ];
        set.add(&DISK, labels_with(vm, &of_disk), claim.capacity().and_then(bytes));
    }
}

/// The labels of a VM, and more.
fn labels_with(vm: &VirtualMachine, more: &[(&'static str, &str)]) -> Labels {
    let more = more.iter().map(|&(name, value)| (name.into(), value.to_owned()));
    labels(vm).into_iter().chain(more).collect()
}

/// Resource, unit, source and value of each request.
fn requests(domain: &DomainSpec) -> Vec<(&'static str, &'static str, &'static str, Value)> {
    let mut all = Vec::new();
    let memory = domain.memory.as_ref();
    let page = memory.and_then(|memory| memory.hugepages.as_ref());
    let page = page.map(|pages| Quantity(pages.page_size.clone()));
    let requested = &domain.resources.requests;
    let sources = [
        ("domain", requested.get("memory")),
        ("guest", memory.and_then(|memory| memory.guest.as_ref())),
        ("hugepages", page.as_ref()),
    ];
    for (source, quantity) in sources {
        all.extend(quantity.and_then(bytes).map(|value| ("memory", "bytes", source, value)));
    }
    let cpu = requested.get("cpu");
    all.extend(cpu.and_then(cores).map(|value| ("cpu", "cores", "requests", value)));
    let topology = domain.cpu.as_deref();
    let source = match (topology, cpu) {
        (Some(_), _) => "domain",
        (None, None) => "default",
        (None, Some(_)) => return all,
    };
    let of = |count: Option<u32>| Value::from(u64::from(count.unwrap_or(1).max(1)));
    all.push(("cpu", "cores", source, of(topology.and_then(|cpu| cpu.cores))));
    all.push(("cpu", "threads", source, of(topology.and_then(|cpu| cpu.threads))));
    all.push(("cpu", "sockets", source, of(topology.and_then(|cpu| cpu.sockets))));
    all
}

fn bytes(quantity: &Quantity) -> Option<Value> {
    Some(Bytes::try_from(quantity).ok()?.get().into())
}

fn cores(quantity: &Quantity) -> Option<Value> {
    let milli = MilliCpus::try_from(quantity).ok()?.get();
    #[expect(clippy::cast_precision_loss, reason = "no host has as many CPUs")]
    let part = || Value::Part(milli as f64 / MILLI as f64);
    Some(if milli.is_multiple_of(MILLI) { Value::Whole(milli / MILLI) } else { part() })
}
