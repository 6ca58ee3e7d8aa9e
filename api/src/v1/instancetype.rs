use std::collections::BTreeMap;

use super::shape::shapes;
use super::{Gpu, HostDevice, Hugepages, IoThreads, LaunchSecurity, Numa, ObjectMeta, Quantity, Realtime};

shapes! {
    /// A namespaced set of resources, such as CPUs and memory, that VirtualMachines refer to by name.
    pub struct VirtualMachineInstancetype {
        /// API version: `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachineInstancetype`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Required spec of the instance type.
        pub spec: VirtualMachineInstancetypeSpec,
    }

    /// A cluster-scoped set of resources, such as CPUs and memory, that VirtualMachines refer to by name.
    pub struct VirtualMachineClusterInstancetype {
        /// API version: `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachineClusterInstancetype`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Required spec of the instance type.
        pub spec: VirtualMachineInstancetypeSpec,
    }

    /// Resources of an instance type. A VirtualMachine that refers to it cannot set the same fields in its template:
    /// that is a conflict.
    pub struct VirtualMachineInstancetypeSpec {
        /// Required CPU attributes of the instance type.
        pub cpu: Option<CpuInstancetype>,
        /// Required memory attributes of the instance type.
        pub memory: Option<MemoryInstancetype>,
        /// GPUs of the host that are passed through.
        pub gpus: Vec<Gpu>,
        /// Devices of the host that are passed through.
        pub host_devices: Vec<HostDevice>,
        /// How IOThreads are assigned to disks: `shared`, `auto` or `supplementalPool`.
        pub io_threads_policy: Option<String>,
        /// Options of the IOThreads.
        pub io_threads: Option<IoThreads>,
        /// Launch security (confidential computing) of the VMI.
        pub launch_security: Option<LaunchSecurity>,
        /// Annotations that are applied to the VMI.
        pub annotations: BTreeMap<String, String>,
        /// Labels that a node must have for the VMI to be scheduled to it.
        pub node_selector: BTreeMap<String, String>,
        /// Name of the scheduler that dispatches the VMI. Defaults to the default scheduler.
        pub scheduler_name: String,
    }

    /// CPU attributes of an instance type.
    pub struct CpuInstancetype {
        /// Required number of vCPUs that the guest sees. The resulting CPU topology depends on `preferredCPUTopology`
        /// of a preference, and has sockets by default.
        pub guest: Option<i64>,
        /// CPU model of the guest: a named model, `host-model` or `host-passthrough`.
        pub model: Option<String>,
        /// Requests that the vCPUs are pinned to physical CPUs of the node that no other workload uses.
        pub dedicated_cpu_placement: Option<bool> = "dedicatedCPUPlacement",
        /// Mapping of NUMA topology from the host to the guest.
        pub numa: Option<Numa>,
        /// Requests one more dedicated physical CPU, to which the emulator threads are pinned.
        pub isolate_emulator_thread: Option<bool>,
        /// Real-time scheduling of vCPU threads.
        pub realtime: Option<Realtime>,
        /// Maximum number of sockets to which the running VM can be hotplugged.
        pub max_sockets: Option<u32>,
    }

    /// Memory attributes of an instance type.
    pub struct MemoryInstancetype {
        /// Required amount of memory that the guest sees.
        pub guest: Option<Quantity>,
        /// Hugepages that back the memory of the guest.
        pub hugepages: Option<Hugepages>,
        /// Percentage of the guest's memory that is not requested from the node, from 0 to 100. Mutually exclusive with
        /// `hugepages`.
        pub overcommit_percent: Option<i64>,
        /// Maximum amount of memory to which the running VM can be hotplugged.
        pub max_guest: Option<Quantity>,
    }
}
