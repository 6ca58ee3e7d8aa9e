//! What the container `compute` requests of its node.

use std::collections::BTreeMap;

use vireo_api::spec::{Bytes, HYPERVISOR_ANNOTATION, HugePage, MilliCpus, NATIVE, VFIO_OVERHEAD};
use vireo_api::v1::{Cpu, Devices, Quantity, VirtualMachineInstance};

use crate::config::ClusterConfig;

/// What QEMU and its launcher take beside the guest's memory: some 80 MiB and 6 MiB are measured, without a display.
const QEMU: u64 = 120 << 20;
/// What a launcher with our own monitor takes: some 6 MiB are measured.
const MONITOR: u64 = 12 << 20;
/// Thousandths of a CPU for a vCPU with a CPU of its own.
const DEDICATED: u64 = 1000;

/// Memory and CPU that an instance takes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Requests {
    /// In bytes, the overhead included, without huge pages.
    pub(super) memory: u64,
    /// Huge pages that back the guest's memory, with their bytes in all.
    pub(super) huge_pages: Option<(HugePage, u64)>,
    /// Of the memory, what is beside the guest, in bytes.
    pub(super) overhead: u64,
    /// In thousandths of a CPU.
    pub(super) cpu: u64,
}

impl Requests {
    /// What an instance requests, else the cluster's part of what its guest sees; and what is beside the guest. `native` is
    /// whether our own monitor runs instances that do not say who is to run them.
    pub(super) fn of(vmi: &VirtualMachineInstance, native: bool, config: &ClusterConfig) -> Self {
        let domain = &vmi.spec.domain;
        let resources = &domain.resources;
        let bytes = |given: Option<&Quantity>| Some(Bytes::try_from(given?).ok()?.get());
        let visible = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
        let guest = bytes(resources.requests.get("memory"))
            .or_else(|| bytes(visible).map(|visible| percent(visible, config.memory_overcommit)))
            .or_else(|| bytes(resources.limits.get("memory")))
            .unwrap_or_default();
        let page = domain.memory.as_ref().and_then(|memory| memory.hugepages.as_ref());
        let page = page.and_then(|pages| HugePage::of(pages.page_size.parse::<Bytes>().ok()?.get()));
        // Huge pages cannot be overcommitted: those of a guest are taken when it starts.
        let huge_pages = page.map(|page| (page, bytes(visible).unwrap_or(guest.max(page.bytes()))));
        let guest = guest.saturating_sub(huge_pages.map_or(0, |(_, bytes)| bytes));
        let overcommits = resources.overcommit_guest_overhead == Some(true);
        let overhead = if overcommits { 0 } else { overhead(vmi, native, config) };
        let cpu = domain.cpu.as_deref();
        let dedicated = has_dedicated_cpus(vmi);
        let isolated = dedicated && cpu.is_some_and(|cpu| cpu.isolate_emulator_thread == Some(true));
        let all = vcpus(cpu).saturating_add(u64::from(isolated)).saturating_mul(DEDICATED);
        let share = if dedicated { all } else { all.div_ceil(config.cpu_allocation_ratio.max(1)) };
        let requested = resources.requests.get("cpu").or_else(|| resources.limits.get("cpu"));
        let requested = requested.filter(|_| !dedicated).and_then(|given| MilliCpus::try_from(given).ok());
        Self {
            memory: guest.saturating_add(overhead),
            huge_pages,
            overhead,
            cpu: requested.map_or(share, MilliCpus::get),
        }
    }
}

/// Whether an instance has CPUs of its node for itself.
pub(super) fn has_dedicated_cpus(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.dedicated_cpu_placement == Some(true))
}

fn vcpus(cpu: Option<&Cpu>) -> u64 {
    let Some(cpu) = cpu else { return 1 };
    let counts = [cpu.sockets, cpu.cores, cpu.threads];
    counts.into_iter().map(|count| u64::from(count.unwrap_or(1).max(1))).fold(1, u64::saturating_mul)
}

/// What is requested for memory of which this is `percent` percent.
fn percent(memory: u64, percent: u64) -> u64 {
    let requested = u128::from(memory) * 100 / u128::from(percent.max(1));
    u64::try_from(requested).unwrap_or(u64::MAX)
}

/// The limit of the launcher's CPU, in thousandths, where a namespace has limits: the vCPUs. There is none for an instance that
/// has CPUs for itself, or limits them by itself.
pub(super) fn cpu_limit(vmi: &VirtualMachineInstance, requests: &Requests) -> Option<u64> {
    let domain = &vmi.spec.domain;
    let is_limited = domain.resources.limits.contains_key("cpu");
    let vcpus = || vcpus(domain.cpu.as_deref()).saturating_mul(DEDICATED);
    // A request above its limit is refused.
    (!has_dedicated_cpus(vmi) && !is_limited).then(|| vcpus().max(requests.cpu))
}

/// How many devices of each resource of nodes an instance requests.
pub(super) fn host_devices(devices: &Devices) -> BTreeMap<&str, u64> {
    let gpus = devices.gpus.iter().map(|gpu| &gpu.device_name);
    let all = gpus.chain(devices.host_devices.iter().map(|device| &device.device_name));
    let mut counts = BTreeMap::new();
    all.filter(|name| !name.is_empty()).for_each(|name| *counts.entry(name.as_str()).or_default() += 1);
    counts
}

/// Where it is not known who runs the guest, it may be QEMU.
fn overhead(vmi: &VirtualMachineInstance, native: bool, config: &ClusterConfig) -> u64 {
    let wanted = vmi.metadata.annotations.get(HYPERVISOR_ANNOTATION);
    let is_native = wanted.map_or(native, |wanted| wanted.eq_ignore_ascii_case(NATIVE));
    let bytes = match (host_devices(&vmi.spec.domain.devices).is_empty(), is_native) {
        (false, _) => QEMU + VFIO_OVERHEAD,
        (true, true) => MONITOR,
        (true, false) => QEMU,
    };
    let reserved = vmi.spec.domain.memory.as_ref().and_then(|memory| memory.reserved_overhead.as_ref());
    let added = reserved.and_then(|reserved| Bytes::try_from(reserved.added_overhead.as_ref()?).ok());
    let bytes = added.map_or(bytes, |added| bytes.saturating_add(added.get()));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "some MiB times a number above 0; more than 64 bits can hold becomes the most that they can"
    )]
    let bytes = (bytes as f64 * config.overhead_ratio).ceil() as u64;
    bytes
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MI: u64 = 1 << 20;

    fn vmi(domain: Value) -> VirtualMachineInstance {
        serde_json::from_value(json!({"spec": {"domain": domain}})).unwrap()
    }

    #[test]
    fn an_instance_takes_what_it_requests_or_what_its_guest_sees() {
        let guest = json!({"guest": "64Mi"});
        for (domain, memory, cpu) in [
            (json!({"memory": guest}), 64 * MI + QEMU, 100),
            (json!({"memory": guest, "cpu": {"cores": 2, "sockets": 3, "threads": 0}}), 64 * MI + QEMU, 600),
            (
                json!({"memory": guest, "cpu": {"cores": 2, "dedicatedCpuPlacement": true}}),
                64 * MI + QEMU,
                2000,
            ),
            (
                json!({"memory": guest, "cpu": {"cores": 2, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true},
                    "resources": {"limits": {"cpu": 2}}}),
                64 * MI + QEMU,
                3000,
            ),
            (
                json!({"memory": guest, "resources": {"requests": {"memory": "32Mi", "cpu": "10m"}}}),
                32 * MI + QEMU,
                10,
            ),
            (json!({"resources": {"limits": {"memory": "1Gi", "cpu": 2}}}), 1024 * MI + QEMU, 2000),
            (json!({"memory": guest, "resources": {"overcommitGuestOverhead": true}}), 64 * MI, 100),
            (
                json!({"cpu": {"cores": u32::MAX, "sockets": u32::MAX, "threads": u32::MAX}}),
                QEMU,
                u64::MAX.div_ceil(10),
            ),
            (json!({"memory": {"guest": "18446744073709551615"}}), u64::MAX, 100),
            (json!({"memory": {"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}}}), QEMU, 100),
            (
                json!({"memory": {"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}},
                    "resources": {"requests": {"memory": "80Mi"}}}),
                16 * MI + QEMU,
                100,
            ),
            (json!({"memory": guest, "resources": {"limits": {"memory": "1Gi"}}}), 64 * MI + QEMU, 100),
        ] {
            let config = ClusterConfig::default();
            let Requests { memory: has, cpu: vcpus, .. } = Requests::of(&vmi(domain.clone()), false, &config);
            assert_eq!((has, vcpus), (memory, cpu), "{domain}");
        }
    }

    #[test]
    fn launchers_are_limited_to_their_vcpus() {
        for (domain, expected) in [
            (json!({"cpu": {"cores": 2, "sockets": 2}}), Some(4000)),
            (json!({}), Some(1000)),
            (json!({"resources": {"requests": {"cpu": "1500m"}}}), Some(1500)),
            (json!({"resources": {"limits": {"cpu": 2}}}), None),
            (json!({"cpu": {"dedicatedCpuPlacement": true}}), None),
        ] {
            let vmi = vmi(domain.clone());
            let requests = Requests::of(&vmi, false, &ClusterConfig::default());
            assert_eq!(cpu_limit(&vmi, &requests), expected, "{domain}");
        }
    }

    #[test]
    fn a_cluster_decides_what_is_shared() {
        let config =
            ClusterConfig { cpu_allocation_ratio: 3, memory_overcommit: 150, ..ClusterConfig::default() };
        let guest = json!({"guest": "96Mi"});
        for (domain, memory, cpu) in [
            (json!({"memory": guest, "cpu": {"cores": 2}}), 64 * MI + QEMU, 667),
            (
                json!({"memory": guest, "resources": {"requests": {"memory": "32Mi", "cpu": "10m"}}}),
                32 * MI + QEMU,
                10,
            ),
            (json!({"memory": guest, "resources": {"limits": {"memory": "1Gi"}}}), 64 * MI + QEMU, 334),
        ] {
            let Requests { memory: has, cpu: vcpus, .. } = Requests::of(&vmi(domain.clone()), false, &config);
            assert_eq!((has, vcpus), (memory, cpu), "{domain}");
        }
    }

    #[test]
    fn our_own_monitor_takes_less() {
        let mut vmi = vmi(json!({}));
        let overhead = |vmi: &_, native| Requests::of(vmi, native, &ClusterConfig::default()).overhead;
        assert_eq!(overhead(&vmi, true), MONITOR);
        vmi.metadata.annotations.insert(HYPERVISOR_ANNOTATION.to_owned(), "native".to_owned());
        assert_eq!(overhead(&vmi, false), MONITOR);
        let config = ClusterConfig { overhead_ratio: 2.5, ..ClusterConfig::default() };
        assert_eq!(Requests::of(&vmi, false, &config).overhead, MONITOR * 5 / 2);
        vmi.metadata.annotations.insert(HYPERVISOR_ANNOTATION.to_owned(), "qemu".to_owned());
        assert_eq!(overhead(&vmi, true), QEMU, "what is asked for counts");
    }

    #[test]
    fn huge_pages_are_those_of_the_whole_guest() {
        let of = |memory: Value, request: Value, memory_overcommit| {
            let domain = json!({"memory": memory, "resources": {"requests": request}});
            let config = ClusterConfig { memory_overcommit, ..ClusterConfig::default() };
            let requests = Requests::of(&vmi(domain), false, &config);
            (requests.huge_pages, requests.memory)
        };
        let pages = json!({"pageSize": "2Mi"});
        let memory = json!({"guest": "64Mi", "hugepages": pages});
        let expected = (Some((HugePage::Mib2, 64 * MI)), QEMU);
        assert_eq!(of(memory.clone(), json!({}), 200), expected, "overcommitment is for other memory");
        assert_eq!(of(memory, json!({"memory": "33Mi"}), 100), expected);
        let one = (Some((HugePage::Mib2, 2 * MI)), QEMU);
        assert_eq!(of(json!({"hugepages": pages}), json!({}), 100), one, "a guest has one page at least");
    }

    #[test]
    fn overhead_is_added_to_what_is_calculated() {
        let memory = json!({"guest": "64Mi", "reservedOverhead": {"addedOverhead": "1Gi"}});
        let mut vmi = vmi(json!({"memory": memory}));
        let of = |vmi: &_, config: &ClusterConfig| Requests::of(vmi, false, config);
        let requests = of(&vmi, &ClusterConfig::default());
        assert_eq!((requests.overhead, requests.memory), (QEMU + 1024 * MI, QEMU + 1088 * MI));
        let config = ClusterConfig { overhead_ratio: 2.0, ..ClusterConfig::default() };
        assert_eq!(of(&vmi, &config).overhead, 2 * (QEMU + 1024 * MI), "as KubeVirt has it");
        vmi.spec.domain.resources.overcommit_guest_overhead = Some(true);
        assert_eq!(of(&vmi, &config).overhead, 0);
    }

    #[test]
    fn devices_of_the_host_take_memory_and_are_counted() {
        let device = |name: &str| json!({"name": "x", "deviceName": name});
        let devices = json!({"gpus": [device("a.b/gpu")], "hostDevices": [device("a.b/c"), device("a.b/c")]});
        let vmi = vmi(json!({"devices": devices}));
        let counts: Vec<_> = host_devices(&vmi.spec.domain.devices).into_iter().collect();
        assert_eq!(counts, [("a.b/c", 2), ("a.b/gpu", 1)]);
        assert_eq!(Requests::of(&vmi, true, &ClusterConfig::default()).overhead, QEMU + 1024 * MI);
    }
}
