//! Defaults that admission writes into new objects, as KubeVirt's mutating webhooks do. All of them are as if they were not
//! set: a guest does not change by them. They are written into objects that are valid, and leave others alone as far as they
//! cannot be read.

mod devices;
mod fields;
mod vm;

use serde_json::{Value, json};
use uuid::Uuid;
use vireo_api::spec::{MilliCpus, PullPolicy};
use vireo_api::v1::Quantity;

use self::fields::{Fields, existing, fill, get, items, object};
use crate::config::{ARCHITECTURE, ClusterConfig};

pub(crate) use self::vm::{Identity, fill_template};

/// The fields of a probe that count, with their defaults.
const PROBE: [(&str, i64); 4] =
    [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)];
/// The timers of a clock.
const TIMERS: [&str; 4] = ["hpet", "kvm", "pit", "rtc"];

/// Completes the spec of a VMI. `uuid` is that of its firmware, if it names none. To do it again changes nothing.
pub(crate) fn set_defaults(spec: &mut Fields, config: &ClusterConfig, uuid: Uuid) {
    fill(spec, "architecture", ARCHITECTURE);
    fill(spec, "evictionStrategy", config.eviction_strategy.as_str());
    for volume in items(spec, "volumes") {
        if let Some(disk) = existing(volume, "containerDisk") {
            let image = get(disk, "image").and_then(Value::as_str).unwrap_or_default();
            let policy = PullPolicy::default_of(image).as_str();
            fill(disk, "imagePullPolicy", policy);
        }
    }
    devices::set_defaults(spec, config.default_binding);
    for probe in ["livenessProbe", "readinessProbe"] {
        let Some(probe) = existing(spec, probe) else { continue };
        for (field, default) in PROBE {
            if is_zero(get(probe, field)) {
                probe.insert(field.to_owned(), json!(default));
            }
        }
    }
    let Some(domain) = object(spec, "domain") else { return };
    if let Some(machine) = object(domain, "machine") {
        fill(machine, "type", config.machine_type.as_str());
    }
    cpu_request(domain, config);
    memory(domain);
    cpu(domain, config);
    if let Some(firmware) = object(domain, "firmware") {
        fill(firmware, "uuid", uuid.to_string());
    }
    features(domain);
    if let Some(timer) = existing(domain, "clock").and_then(|clock| existing(clock, "timer")) {
        for name in TIMERS {
            if let Some(timer) = existing(timer, name) {
                fill(timer, "present", true);
            }
        }
    }
}

/// Leaves the spec of a VMI as it is stored where an update differs by defaults alone: `kubectl apply` replaces lists by those
/// of the manifest, and the spec cannot change otherwise.
pub(crate) fn keep_stored(new: &mut Value, old: &Value, config: &ClusterConfig) {
    let (Some(given), Some(stored)) = (new["spec"].as_object(), old["spec"].as_object()) else { return };
    if given == stored {
        return;
    }
    let text =
        |path: &str, default: &str| get(stored, path).and_then(Value::as_str).unwrap_or(default).to_owned();
    // The configuration may have changed since.
    let config = ClusterConfig {
        machine_type: text("domain.machine.type", &config.machine_type),
        cpu_model: text("domain.cpu.model", &config.cpu_model),
        eviction_strategy: text("evictionStrategy", &config.eviction_strategy),
        cpu_request: get(stored, "domain.resources.requests.cpu").and_then(quantity),
        ..config.clone()
    };
    let uuid = text("domain.firmware.uuid", "").parse().unwrap_or_default();
    let completed = |spec: &Fields| {
        let mut spec = spec.clone();
        set_defaults(&mut spec, &config, uuid);
        spec
    };
    if completed(given) == completed(stored) {
        new["spec"] = old["spec"].clone();
    }
}

/// Whether a number is not set, for which there is also a 0.
fn is_zero(number: Option<&Value>) -> bool {
    number.is_none_or(|number| number.as_i64() == Some(0))
}

fn quantity(value: &Value) -> Option<Quantity> {
    serde_json::from_value(value.clone()).ok()
}

/// The request is the limit where there is only that.
fn cpu_request(domain: &mut Fields, config: &ClusterConfig) {
    if get(domain, "resources.requests.cpu").is_some() {
        return;
    }
    let is_dedicated = get(domain, "cpu.dedicatedCpuPlacement") == Some(&Value::Bool(true));
    let of_cluster = config.cpu_request.as_ref().filter(|_| !is_dedicated).map(|request| json!(request));
    let Some(request) = get(domain, "resources.limits.cpu").cloned().or(of_cluster) else { return };
    if let Some(requests) = object(domain, "resources").and_then(|resources| object(resources, "requests")) {
        fill(requests, "cpu", request);
    }
}

fn memory(domain: &mut Fields) {
    const SOURCES: [&str; 3] =
        ["resources.requests.memory", "resources.limits.memory", "memory.hugepages.pageSize"];
    let guest = SOURCES.iter().find_map(|source| get(domain, source).cloned());
    if let (Some(guest), Some(memory)) = (guest, object(domain, "memory")) {
        fill(memory, "guest", guest);
    }
}

/// A VMI whose topology is not set has a socket for each CPU of its resources.
fn cpu(domain: &mut Fields, config: &ClusterConfig) {
    const RESOURCES: [&str; 2] = ["resources.limits.cpu", "resources.requests.cpu"];
    let cpus = |name: &&str| MilliCpus::try_from(&get(domain, name).and_then(quantity)?).ok();
    let sockets = RESOURCES.iter().find_map(cpus).map_or(1, |cpus| cpus.whole().max(1));
    let Some(cpu) = object(domain, "cpu") else { return };
    let topology = [("cores", 1), ("sockets", sockets), ("threads", 1)];
    if topology.iter().all(|(name, _)| is_zero(get(cpu, name))) {
        cpu.extend(topology.map(|(name, count)| (name.to_owned(), json!(count))));
    }
    fill(cpu, "model", config.cpu_model.as_str());
}

fn features(domain: &mut Fields) {
    let Some(features) = object(domain, "features") else { return };
    if let Some(acpi) = object(features, "acpi") {
        fill(acpi, "enabled", true);
    }
    for name in ["apic", "smm"] {
        if let Some(feature) = existing(features, name) {
            fill(feature, "enabled", true);
        }
    }
}

#[cfg(test)]
mod tests;
