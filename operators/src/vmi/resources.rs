//! What the container `compute` requests of its node.

use std::collections::BTreeMap;

use vireo_api::spec::{Bytes, HugePage, LauncherOverhead, MilliCpus, Runner, Vm};
use vireo_api::v1::{API_VERSION, Cpu, Devices, Quantity, VMI_KIND, VirtualMachineInstance, Volume};

use super::template::Launcher;
use crate::config::ClusterConfig;

/// The name of a node's own storage among resources.
pub(super) const EPHEMERAL_STORAGE_NAME: &str = "ephemeral-storage";
/// Storage of a node that is requested for a Pod; KubeVirt's. Container disks take more as guests write to them.
const EPHEMERAL_STORAGE: u64 = 50_000_000;
/// What the logs of a Pod's containers may take beside that: kubelets keep 50 MiB of each, unless they are configured otherwise.
/// A guest that writes much to its console is not to be evicted for that.
const LOGS: u64 = 128 << 20;
/// Of a disk, the part that its image may take beside the disk's content.
const IMAGE_METADATA: u64 = 1024;
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
    /// The most memory, in bytes, with all that may be beside the guest and without huge pages; if the instance limits it.
    pub(super) memory_limit: Option<u64>,
    /// The memory that the whole guest may take, with all that may be beside it, in bytes and without huge pages.
    whole: u64,
    /// In thousandths of a CPU.
    pub(super) cpu: u64,
}

impl Requests {
    /// What an instance requests, else its limit, else the cluster's part of what its guest sees; and what is beside the
    /// guest.
    pub(super) fn of(vmi: &VirtualMachineInstance, launcher: &Launcher, config: &ClusterConfig) -> Self {
        let domain = &vmi.spec.domain;
        let resources = &domain.resources;
        let bytes = |given: Option<&Quantity>| Some(Bytes::try_from(given?).ok()?.get());
        let visible = domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
        let limit = bytes(resources.limits.get("memory"));
        let guest = bytes(resources.requests.get("memory"))
            .or(limit)
            .or_else(|| bytes(visible).map(|visible| percent(visible, config.memory_overcommit)))
            .unwrap_or_default();
        let page = domain.memory.as_ref().and_then(|memory| memory.hugepages.as_ref());
        let page = page.and_then(|pages| HugePage::of(pages.page_size.parse::<Bytes>().ok()?.get()));
        // Huge pages cannot be overcommitted: those of a guest are taken when it starts.
        let huge_pages = page.map(|page| (page, bytes(visible).unwrap_or(guest.max(page.bytes()))));
        let without_pages = |bytes: u64| bytes.saturating_sub(huge_pages.map_or(0, |(_, pages)| pages));
        let beside = overhead(vmi, launcher, config);
        let overcommits = resources.overcommit_guest_overhead == Some(true);
        let overhead = if overcommits { 0 } else { beside.requested };
        let cpu = domain.cpu.as_deref();
        let dedicated = has_dedicated_cpus(vmi);
        let isolated = dedicated && cpu.is_some_and(|cpu| cpu.isolate_emulator_thread == Some(true));
        let all = vcpus(cpu).saturating_add(u64::from(isolated)).saturating_mul(DEDICATED);
        let share = if dedicated { all } else { all.div_ceil(config.cpu_allocation_ratio.max(1)) };
        let requested = resources.requests.get("cpu").or_else(|| resources.limits.get("cpu"));
        let requested = requested.filter(|_| !dedicated).and_then(|given| MilliCpus::try_from(given).ok());
        Self {
            memory: without_pages(guest).saturating_add(overhead),
            huge_pages,
            overhead,
            memory_limit: limit.map(|limit| without_pages(limit).saturating_add(beside.most)),
            whole: without_pages(guest.max(bytes(visible).unwrap_or_default())).saturating_add(beside.most),
            cpu: requested.map_or(share, MilliCpus::get),
        }
    }

    /// The limit of memory where a namespace wants one of all its Pods: this multiple of the request, and no less than what a
    /// guest may take that does nothing wrong.
    pub(super) fn memory_limit_of(&self, ratio: f64) -> u64 {
        scaled(self.memory, ratio).max(self.whole)
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

/// Storage of its node that an instance takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EphemeralStorage {
    /// In bytes.
    pub(super) request: u64,
    /// In bytes; beyond it, the kubelet evicts the Pod. None where nothing bounds what the guest writes: to a container
    /// disk or to that of a claim which it leaves as it is; and where the instance has no limit of its own.
    pub(super) limit: Option<u64>,
}

impl EphemeralStorage {
    /// What an instance says, else that of all empty disks; and KubeVirt's request for what else there is.
    pub(super) fn of(vmi: &VirtualMachineInstance) -> Self {
        let volumes = &vmi.spec.volumes;
        let capacities = volumes.iter().filter_map(|volume| volume.empty_disk.as_ref()?.capacity.as_ref());
        let capacities = capacities.filter_map(|capacity| Some(Bytes::try_from(capacity).ok()?.get()));
        let image = |capacity: u64| capacity.saturating_add(capacity.div_ceil(IMAGE_METADATA));
        let disks = capacities.map(image).fold(0, u64::saturating_add);
        let needed = EPHEMERAL_STORAGE.saturating_add(disks);
        let resources = &vmi.spec.domain.resources;
        let given = |list: &BTreeMap<String, Quantity>| {
            let bytes = Bytes::try_from(list.get(EPHEMERAL_STORAGE_NAME)?).ok()?;
            Some(bytes.get().saturating_add(EPHEMERAL_STORAGE))
        };
        let limit = given(&resources.limits);
        // A request above its limit is refused.
        let request =
            given(&resources.requests).unwrap_or_else(|| limit.map_or(needed, |limit| needed.min(limit)));
        let is_bounded = |volume: &Volume| volume.container_disk.is_none() && volume.ephemeral.is_none();
        let of_disks =
            (disks > 0 && volumes.iter().all(is_bounded)).then(|| needed.max(request).saturating_add(LOGS));
        Self { request, limit: limit.or(of_disks) }
    }
}

/// Resources that nothing else here is about, as an instance names them.
pub(super) fn others(given: &BTreeMap<String, Quantity>) -> impl Iterator<Item = (&String, &Quantity)> {
    const CALCULATED: [&str; 3] = ["cpu", "memory", EPHEMERAL_STORAGE_NAME];
    given.iter().filter(|(name, _)| !CALCULATED.contains(&name.as_str()))
}

/// How many devices of each resource of nodes an instance requests.
pub(super) fn host_devices(devices: &Devices) -> BTreeMap<&str, u64> {
    let gpus = devices.gpus.iter().map(|gpu| &gpu.device_name);
    let all = gpus.chain(devices.host_devices.iter().map(|device| &device.device_name));
    let mut counts = BTreeMap::new();
    all.filter(|name| !name.is_empty()).for_each(|name| *counts.entry(name.as_str()).or_default() += 1);
    counts
}

/// What is beside the guest, with what the instance adds to it, by the cluster's ratio.
fn overhead(vmi: &VirtualMachineInstance, launcher: &Launcher, config: &ClusterConfig) -> LauncherOverhead {
    let has_kvm = launcher.has_kvm && !config.use_emulation;
    // Objects in lists have no kind of their own.
    let vmi_of_kind = VirtualMachineInstance {
        api_version: API_VERSION.to_owned(),
        kind: VMI_KIND.to_owned(),
        ..vmi.clone()
    };
    let LauncherOverhead { requested, most } = match Vm::try_from(&vmi_of_kind) {
        Ok(vm) => LauncherOverhead::of(&vm, Runner::of(&vm, launcher.hypervisor, has_kvm)),
        Err(_) => LauncherOverhead::UNKNOWN,
    };
    let reserved = vmi.spec.domain.memory.as_ref().and_then(|memory| memory.reserved_overhead.as_ref());
    let added = reserved.and_then(|reserved| Bytes::try_from(reserved.added_overhead.as_ref()?).ok());
    let all = |bytes: u64| scaled(bytes.saturating_add(added.map_or(0, Bytes::get)), config.overhead_ratio);
    LauncherOverhead { requested: all(requested), most: all(most) }
}

fn scaled(bytes: u64, ratio: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "some MiB times a number above 0; more than 64 bits can hold becomes the most that they can"
    )]
    let bytes = (bytes as f64 * ratio).ceil() as u64;
    bytes
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use vireo_api::spec::{HYPERVISOR_ANNOTATION, HypervisorChoice};

    use super::super::StartedBy;
    use super::*;

    const MI: u64 = 1 << 20;

    fn vmi(domain: Value) -> VirtualMachineInstance {
        let metadata = json!({"name": "x", "uid": "5d307ca9-b3ef-428c-8861-06e72d69f223"});
        let mut vmi = json!({"metadata": metadata, "spec": {"domain": {"memory": {"guest": "64Mi"},
            "devices": {"autoattachGraphicsDevice": false, "autoattachPodInterface": false}}}});
        json_patch::merge(&mut vmi, &json!({"spec": {"domain": domain}}));
        serde_json::from_value(vmi).unwrap()
    }

    fn requests(vmi: &VirtualMachineInstance, config: &ClusterConfig) -> Requests {
        Requests::of(vmi, &Launcher::new("l", StartedBy::Kubelet), config)
    }

    #[test]
    fn an_instance_takes_what_it_requests_or_what_its_guest_sees() {
        let guest = json!({"guest": "64Mi"});
        for (domain, memory, cpu) in [
            (json!({"memory": guest}), 64 * MI, 100),
            (json!({"memory": guest, "cpu": {"cores": 2, "sockets": 3, "threads": 0}}), 64 * MI, 600),
            (json!({"memory": guest, "cpu": {"cores": 2, "dedicatedCpuPlacement": true}}), 64 * MI, 2000),
            (
                json!({"memory": guest, "cpu": {"cores": 2, "dedicatedCpuPlacement": true, "isolateEmulatorThread": true},
                    "resources": {"limits": {"cpu": 2}}}),
                64 * MI,
                3000,
            ),
            (
                json!({"memory": guest, "resources": {"requests": {"memory": "32Mi", "cpu": "10m"}}}),
                32 * MI,
                10,
            ),
            (json!({"memory": null, "resources": {"limits": {"memory": "1Gi", "cpu": 2}}}), 1024 * MI, 2000),
            (json!({"memory": guest, "resources": {"overcommitGuestOverhead": true}}), 64 * MI, 100),
            (
                json!({"cpu": {"cores": u32::MAX, "sockets": u32::MAX, "threads": u32::MAX}}),
                64 * MI,
                u64::MAX.div_ceil(10),
            ),
            (json!({"memory": {"guest": "18446744073709551615"}}), u64::MAX, 100),
            (json!({"memory": {"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}}}), 0, 100),
            (
                json!({"memory": {"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}},
                    "resources": {"requests": {"memory": "80Mi"}}}),
                16 * MI,
                100,
            ),
            (json!({"memory": guest, "resources": {"limits": {"memory": "1Gi"}}}), 1024 * MI, 100),
        ] {
            let config = ClusterConfig::default();
            let Requests { memory: has, overhead, cpu: vcpus, .. } = requests(&vmi(domain.clone()), &config);
            assert_eq!((has, vcpus), (memory.saturating_add(overhead), cpu), "{domain}");
        }
    }

    #[test]
    fn the_limit_of_memory_has_all_that_may_be_beside_the_guest() {
        let guest = json!({"guest": "64Mi"});
        let limits = |memory: &str| json!({"limits": {"memory": memory}});
        let of = |domain: Value, config: &ClusterConfig| requests(&vmi(domain), config);
        let usual = ClusterConfig::default();
        // In KiB: the launcher 32 MiB, a vCPU 2 MiB, page tables 256 KiB.
        let most = (34 << 10) + 256;
        for (domain, limit) in [
            (json!({"memory": guest}), None),
            (json!({"memory": guest, "resources": limits("1Gi")}), Some(1024)),
            (
                json!({"memory": guest, "resources": {"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"},
                    "overcommitGuestOverhead": true}}),
                Some(64),
            ),
        ] {
            let requests = of(domain.clone(), &usual);
            let expected = limit.map(|mib| (mib << 10) + most);
            assert_eq!(requests.memory_limit.map(|limit| limit >> 10), expected, "{domain}");
            assert!(requests.memory_limit.is_none_or(|limit| limit >= requests.memory), "{domain}");
        }
        let config = ClusterConfig { overhead_ratio: 2.0, ..ClusterConfig::default() };
        let doubled = of(json!({"memory": guest, "resources": limits("64Mi")}), &config);
        assert_eq!(doubled.memory_limit, Some(64 * MI + 2 * most * 1024));
        let pages = json!({"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}});
        let paged = of(json!({"memory": pages, "resources": limits("80Mi")}), &usual);
        // No page tables of small pages.
        assert_eq!(paged.memory_limit, Some(16 * MI + 34 * MI));
        assert_eq!(paged.memory - paged.overhead, 16 * MI);
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
            let requests = requests(&vmi, &ClusterConfig::default());
            assert_eq!(cpu_limit(&vmi, &requests), expected, "{domain}");
        }
    }

    #[test]
    fn a_cluster_decides_what_is_shared() {
        let config =
            ClusterConfig { cpu_allocation_ratio: 3, memory_overcommit: 150, ..ClusterConfig::default() };
        let guest = json!({"guest": "96Mi"});
        for (domain, memory, cpu) in [
            (json!({"memory": guest, "cpu": {"cores": 2}}), 64 * MI, 667),
            (
                json!({"memory": guest, "resources": {"requests": {"memory": "32Mi", "cpu": "10m"}}}),
                32 * MI,
                10,
            ),
            (json!({"memory": guest, "resources": {"limits": {"memory": "1Gi"}}}), 1024 * MI, 334),
        ] {
            let Requests { memory: has, overhead, cpu: vcpus, .. } = requests(&vmi(domain.clone()), &config);
            assert_eq!((has, vcpus), (memory.saturating_add(overhead), cpu), "{domain}");
        }
    }

    #[test]
    fn what_is_beside_the_guest_is_that_of_who_runs_it() {
        let [plain, tpm] = [json!({}), json!({"devices": {"tpm": {}}})].map(vmi);
        let forced = |to: &str| {
            let mut vmi = plain.clone();
            vmi.metadata.annotations.insert(HYPERVISOR_ANNOTATION.to_owned(), to.to_owned());
            vmi
        };
        let cluster = Launcher::new("l", StartedBy::Kubelet);
        let host = Launcher { has_kvm: false, ..Launcher::new("l", StartedBy::NodeAgent) };
        let native = Launcher { hypervisor: HypervisorChoice::Native, ..host.clone() };
        let usual = ClusterConfig::default();
        let emulated = ClusterConfig { use_emulation: true, ..ClusterConfig::default() };
        // In KiB: a vCPU takes 2 MiB, page tables of 64 MiB 256 KiB.
        let [by_native, by_qemu, by_emulation] = [18, 98, 130].map(|mib| (mib << 10) + 256);
        for (vmi, launcher, config, expected, why) in [
            (&plain, &cluster, &usual, by_native, "native where it can run it"),
            (&tpm, &cluster, &usual, by_qemu + (16 << 10), "QEMU for the TPM, and the TPM's process"),
            (&forced("qemu"), &cluster, &usual, by_qemu, "as the instance says"),
            (&forced("native"), &host, &emulated, by_native, "as the instance says"),
            (&plain, &cluster, &emulated, by_emulation, "the Pod has no KVM"),
            (&plain, &host, &usual, by_emulation, "the node has no KVM"),
            (&plain, &native, &usual, by_native, "as the node says"),
        ] {
            assert_eq!(Requests::of(vmi, launcher, config).overhead >> 10, expected, "{why}");
        }
        let config = ClusterConfig { overhead_ratio: 2.5, ..ClusterConfig::default() };
        assert_eq!(requests(&plain, &config).overhead >> 10, by_native * 5 / 2);
        let unreadable = vmi(json!({"cpu": {"model": "no model"}}));
        assert_eq!(requests(&unreadable, &usual).overhead, 128 * MI, "QEMU's, for one that its node refuses");
    }

    #[test]
    fn ephemeral_storage_is_that_of_empty_disks() {
        let of = |volumes: Value| {
            let vmi = serde_json::from_value(json!({ "spec": { "volumes": volumes } })).unwrap();
            let EphemeralStorage { request, limit } = EphemeralStorage::of(&vmi);
            (request, limit)
        };
        let disk = |name: &str, capacity: &str| json!({"name": name, "emptyDisk": {"capacity": capacity}});
        let container = json!({"name": "c", "containerDisk": {"image": "i"}});
        let ephemeral = json!({"name": "e", "ephemeral": {"persistentVolumeClaim": {"claimName": "c"}}});
        let (one, both) = (50_000_000 + 1025 * 1024, 50_000_000 + 3 * 1025 * 1024);
        assert_eq!(of(json!([])), (50_000_000, None), "there is nothing to limit");
        assert_eq!(of(json!([disk("a", "1Mi")])), (one, Some(one + LOGS)));
        assert_eq!(of(json!([disk("a", "1Mi"), disk("b", "2Mi")])), (both, Some(both + LOGS)));
        assert_eq!(
            of(json!([disk("a", "1Mi"), container])),
            (one, None),
            "the guest may write to all of its image"
        );
        assert_eq!(of(json!([disk("a", "1Mi"), ephemeral])), (one, None));
    }

    #[test]
    fn ephemeral_storage_is_what_the_instance_says() {
        let of = |resources: Value, disks: bool| {
            let disk = json!({"name": "a", "emptyDisk": {"capacity": "1Gi"}});
            let volumes = if disks { json!([disk]) } else { json!([]) };
            let spec = json!({"domain": {"resources": resources}, "volumes": volumes});
            let vmi = serde_json::from_value(json!({ "spec": spec })).unwrap();
            let EphemeralStorage { request, limit } = EphemeralStorage::of(&vmi);
            (request, limit)
        };
        let given = |field: &str, quantity: &str| json!({field: {"ephemeral-storage": quantity}});
        let (base, disk) = (50_000_000, 1025 << 20);
        assert_eq!(of(given("requests", "1G"), false), (1_000_000_000 + base, None));
        assert_eq!(of(given("limits", "2G"), false), (base, Some(2_000_000_000 + base)));
        let both = json!({"requests": {"ephemeral-storage": "1G"}, "limits": {"ephemeral-storage": "3G"}});
        assert_eq!(of(both, true), (1_000_000_000 + base, Some(3_000_000_000 + base)));
        assert_eq!(of(given("limits", "1M"), true), (1_000_000 + base, Some(1_000_000 + base)));
        assert_eq!(
            of(given("requests", "1M"), true),
            (1_000_000 + base, Some(disk + base + LOGS)),
            "a guest that fills its disk is not evicted"
        );
        assert_eq!(
            of(given("requests", "4G"), true),
            (4_000_000_000 + base, Some(4_000_000_000 + base + LOGS)),
            "a request above its limit is refused"
        );
    }

    #[test]
    fn huge_pages_are_those_of_the_whole_guest() {
        let of = |memory: Value, request: Value, memory_overcommit| {
            let domain = json!({"memory": memory, "resources": {"requests": request}});
            let config = ClusterConfig { memory_overcommit, ..ClusterConfig::default() };
            let requests = requests(&vmi(domain), &config);
            (requests.huge_pages, requests.memory - requests.overhead)
        };
        let pages = json!({"pageSize": "2Mi"});
        let memory = json!({"guest": "64Mi", "hugepages": pages});
        let expected = (Some((HugePage::Mib2, 64 * MI)), 0);
        assert_eq!(of(memory.clone(), json!({}), 200), expected, "overcommitment is for other memory");
        assert_eq!(of(memory, json!({"memory": "33Mi"}), 100), expected);
        let one = (Some((HugePage::Mib2, 2 * MI)), 0);
        assert_eq!(
            of(json!({"guest": null, "hugepages": pages}), json!({}), 100),
            one,
            "a guest has one page at least"
        );
    }

    #[test]
    fn overhead_is_added_to_what_is_calculated() {
        let memory = json!({"guest": "64Mi", "reservedOverhead": {"addedOverhead": "1Gi"}});
        let mut vmi = vmi(json!({"memory": memory}));
        let of = requests;
        let plain = of(&self::vmi(json!({})), &ClusterConfig::default()).overhead;
        let requests = of(&vmi, &ClusterConfig::default());
        assert_eq!((requests.overhead, requests.memory), (plain + 1024 * MI, plain + 1088 * MI));
        let config = ClusterConfig { overhead_ratio: 2.0, ..ClusterConfig::default() };
        assert_eq!(of(&vmi, &config).overhead, 2 * (plain + 1024 * MI), "as KubeVirt has it");
        vmi.spec.domain.resources.overcommit_guest_overhead = Some(true);
        assert_eq!(of(&vmi, &config).overhead, 0);
    }

    #[test]
    fn devices_of_the_host_take_memory_and_are_counted() {
        let device = |name: &str, of: &str| json!({"name": name, "deviceName": of});
        let others = [device("one", "a.b/c"), device("two", "a.b/c")];
        let devices = json!({"gpus": [device("gpu", "a.b/gpu")], "hostDevices": others});
        let vmi = vmi(json!({"devices": devices}));
        let counts: Vec<_> = host_devices(&vmi.spec.domain.devices).into_iter().collect();
        assert_eq!(counts, [("a.b/c", 2), ("a.b/gpu", 1)]);
        let overhead = requests(&vmi, &ClusterConfig::default()).overhead;
        assert!(overhead > (96 + 1024) * MI, "QEMU's, and that of VFIO: {overhead}");
    }
}
