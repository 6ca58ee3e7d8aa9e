//! What a launcher may take of its node, with its QEMU.

use vireo_api::spec::{HypervisorChoice, LauncherOverhead, MilliCpus, Runner, Vm};

/// What a launcher may take beside the guest's memory and its overhead where the VMI has no limit.
const UNLIMITED: u64 = 1 << 30;
/// The share of block I/O of each launcher, where a disk is short of it: the kernel's default.
const IO_WEIGHT: u32 = 100;
/// Threads and processes: QEMU has at most some hundred beside those of its vCPUs and queues.
const PIDS: u64 = 4096;

/// The limits of one launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory in bytes: beyond it, its processes are killed.
    pub memory: u64,
    /// Threads and processes.
    pub pids: u64,
    /// CPU time, in thousandths of a CPU, if it is limited.
    pub cpu: Option<u64>,
    /// Its share of the CPUs when they are short, in thousandths of a CPU.
    pub cpu_share: u64,
}

impl Limits {
    /// Those of a VM: what `resources.limits` allows the guest, and the most that its launcher takes beside that. Without a
    /// limit of memory, it is the guest's and 1 GiB, so that no guest makes a launcher take the node's.
    pub fn of(vm: &Vm, default: HypervisorChoice, has_kvm: bool) -> Self {
        let (guest, resources) = (vm.memory().guest().get(), vm.resources());
        let vcpus = u64::from(vm.cpu().count());
        let overhead = LauncherOverhead::of(vm, Runner::of(vm, default, has_kvm)).most;
        let allowed = resources.memory_limit().map_or(guest.saturating_add(UNLIMITED), |limit| limit.get());
        Self {
            memory: allowed.saturating_add(overhead).saturating_add(vm.memory().added_overhead().get()),
            pids: PIDS,
            cpu: resources.cpu_limit().map(MilliCpus::get),
            cpu_share: resources.cpu_request().map_or(vcpus.saturating_mul(100), MilliCpus::get),
        }
    }

    /// The files of the memory controller, in the version of its hierarchy.
    pub(super) fn memory_files(&self, is_v2: bool) -> Vec<(&'static str, String)> {
        match is_v2 {
            // The whole VM ends, not one process of it.
            true => vec![("memory.max", self.memory.to_string()), ("memory.oom.group", "1".to_owned())],
            false => vec![("memory.limit_in_bytes", self.memory.to_string())],
        }
    }

    /// The files of the controller of block I/O: each launcher has the same share, as the API has no requests or limits of it.
    /// Those exist whose scheduler or cost model the kernel has.
    pub(super) fn io_files(is_v2: bool) -> Vec<(&'static str, String)> {
        let weight = IO_WEIGHT.to_string();
        match is_v2 {
            true => vec![("io.weight", weight.clone()), ("io.bfq.weight", weight)],
            false => vec![("blkio.bfq.weight", weight)],
        }
    }

    pub(super) fn pids_files(&self) -> Vec<(&'static str, String)> {
        vec![("pids.max", self.pids.to_string())]
    }

    /// As the kubelet converts requests and limits.
    pub(super) fn cpu_files(&self, is_v2: bool) -> Vec<(&'static str, String)> {
        const PERIOD: u64 = 100_000;
        let quota = self.cpu.map(|cpu| (cpu.saturating_mul(PERIOD) / 1000).max(1000));
        let shares = (self.cpu_share.saturating_mul(1024) / 1000).clamp(2, 262_144);
        let weight = 1 + (shares - 2) * 9999 / 262_142;
        match is_v2 {
            true => {
                let quota = quota.map_or_else(|| "max".to_owned(), |quota| quota.to_string());
                vec![("cpu.weight", weight.to_string()), ("cpu.max", format!("{quota} {PERIOD}"))]
            }
            false => {
                let quota = quota.map_or_else(|| "-1".to_owned(), |quota| quota.to_string());
                vec![
                    ("cpu.shares", shares.to_string()),
                    ("cpu.cfs_period_us", PERIOD.to_string()),
                    ("cpu.cfs_quota_us", quota),
                ]
            }
        }
    }
}

/// How likely the kernel ends a launcher when the node has no memory left: as in Kubernetes, a VM that takes much of it
/// rather stays, and all go before the node agent.
pub fn oom_score_adj(vm: &Vm, node_memory: u64) -> i32 {
    let requested = vm.resources().memory_request().map_or(vm.memory().guest().get(), |bytes| bytes.get());
    let share = u128::from(requested) * 1000 / u128::from(node_memory.max(1));
    i32::try_from(1000_u128.saturating_sub(share)).unwrap_or(1000).clamp(3, 999)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: u64 = 1 << 20;

    fn vm(domain: &Value) -> Vm {
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "one", "namespace": "default", "uid": "8c3d1e55-0000-4000-8000-000000000001"},
            "spec": {"domain": domain},
        });
        Vm::try_from(&serde_json::from_value::<vireo_api::v1::VirtualMachineInstance>(vmi).unwrap()).unwrap()
    }

    fn limits(domain: &Value, default: HypervisorChoice) -> Limits {
        Limits::of(&vm(domain), default, true)
    }

    #[test]
    fn a_launcher_has_the_limit_of_its_guest_and_what_its_hypervisor_takes() {
        let domain = |display: bool, resources: Value| json!({"memory": {"guest": "256Mi"}, "resources": resources, "devices": {"autoattachGraphicsDevice": display}});
        let limited = json!({"limits": {"memory": "512Mi", "cpu": "1500m"}});
        let native = limits(&domain(false, limited.clone()), HypervisorChoice::Native);
        assert_eq!(native.memory, (512 + 32 + 1 + 4 + 1) * MIB, "with its page tables, vCPUs and NIC");
        assert_eq!((native.pids, native.cpu, native.cpu_share), (4096, Some(1500), 1500));
        let auto = limits(&domain(false, limited.clone()), HypervisorChoice::Auto);
        assert_eq!(auto.memory, native.memory, "native can run it");
        let qemu = limits(&domain(false, limited.clone()), HypervisorChoice::Qemu);
        assert_eq!(qemu.memory, native.memory + (160 - 32) * MIB);
        let emulated = Limits::of(&vm(&domain(false, limited.clone())), HypervisorChoice::Qemu, false);
        assert_eq!(emulated.memory, qemu.memory + 1024 * MIB);
        let display = limits(&domain(true, limited), HypervisorChoice::Native);
        assert_eq!(display.memory, native.memory + 128 * MIB);
        let free = limits(&domain(true, json!({})), HypervisorChoice::Qemu);
        let beside = 160 + 128 + 2 + 1 + 1;
        assert_eq!((free.memory, free.cpu, free.cpu_share), ((256 + 1024 + beside) * MIB, None, 100));
    }

    #[test]
    fn limits_are_those_of_the_hierarchy() {
        let limits = Limits { memory: 1 << 30, pids: 9, cpu: Some(1500), cpu_share: 1000 };
        let files = |files: Vec<(&str, String)>| {
            files.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
        };
        assert_eq!(files(limits.memory_files(true)), ["memory.max=1073741824", "memory.oom.group=1"]);
        assert_eq!(files(limits.memory_files(false)), ["memory.limit_in_bytes=1073741824"]);
        assert_eq!(files(limits.cpu_files(true)), ["cpu.weight=39", "cpu.max=150000 100000"]);
        assert_eq!(
            files(limits.cpu_files(false)),
            ["cpu.shares=1024", "cpu.cfs_period_us=100000", "cpu.cfs_quota_us=150000"]
        );
        assert_eq!(files(Limits::io_files(true)), ["io.weight=100", "io.bfq.weight=100"]);
        assert_eq!(files(Limits::io_files(false)), ["blkio.bfq.weight=100"]);
        let free = Limits { cpu: None, cpu_share: 0, ..limits };
        assert_eq!(files(free.cpu_files(true)), ["cpu.weight=1", "cpu.max=max 100000"]);
        assert!(files(free.cpu_files(false)).contains(&"cpu.cfs_quota_us=-1".to_owned()));
    }

    #[test]
    fn launchers_go_before_the_node_agent() {
        let score =
            |guest: &str| oom_score_adj(&vm(&json!({"memory": {"guest": guest}, "devices": {}})), 16 << 30);
        assert_eq!((score("64Mi"), score("8Gi"), score("64Gi")), (997, 500, 3));
    }
}
