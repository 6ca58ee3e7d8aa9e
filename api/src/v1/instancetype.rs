use std::collections::BTreeMap;

use super::shape::shapes;
use super::{Gpu, HostDevice, Hugepages, IoThreads, LaunchSecurity, Numa, ObjectMeta, Quantity, Realtime};

shapes! {
    /// The resources of machines that choose it by name, in its namespace.
    pub struct VirtualMachineInstancetype {
        /// `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachineInstancetype`.
        pub kind: String,
        /// Name, labels and so on.
        pub metadata: ObjectMeta,
        /// What machines get.
        pub spec: VirtualMachineInstancetypeSpec,
    }

    /// The resources of machines that choose it by name, in every namespace.
    pub struct VirtualMachineClusterInstancetype {
        /// `instancetype.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachineClusterInstancetype`.
        pub kind: String,
        /// Name, labels and so on.
        pub metadata: ObjectMeta,
        /// What machines get.
        pub spec: VirtualMachineInstancetypeSpec,
    }

    /// What machines get. None of it may be in their templates too.
    pub struct VirtualMachineInstancetypeSpec {
        /// Processors.
        pub cpu: Option<CpuInstancetype>,
        /// Memory.
        pub memory: Option<MemoryInstancetype>,
        /// Graphics processors of the host.
        pub gpus: Vec<Gpu>,
        /// Other devices of the host.
        pub host_devices: Vec<HostDevice>,
        /// How threads for disks are shared.
        pub io_threads_policy: Option<String>,
        /// How many there are.
        pub io_threads: Option<IoThreads>,
        /// Memory encryption.
        pub launch_security: Option<LaunchSecurity>,
        /// Annotations of every instance.
        pub annotations: BTreeMap<String, String>,
        /// Labels of the nodes that may run it.
        pub node_selector: BTreeMap<String, String>,
        /// Who chooses the node.
        pub scheduler_name: String,
    }

    /// Processors of an instance type.
    pub struct CpuInstancetype {
        /// How many the guest sees; needed.
        pub guest: Option<i64>,
        /// Which model.
        pub model: Option<String>,
        /// Whether each has a processor of the host to itself.
        pub dedicated_cpu_placement: Option<bool> = "dedicatedCPUPlacement",
        /// The host's memory topology for the guest.
        pub numa: Option<Numa>,
        /// A processor of the host for the emulator.
        pub isolate_emulator_thread: Option<bool>,
        /// Scheduling without delays.
        pub realtime: Option<Realtime>,
        /// Most sockets that can be plugged.
        pub max_sockets: Option<u32>,
    }

    /// Memory of an instance type.
    pub struct MemoryInstancetype {
        /// How much the guest sees; needed.
        pub guest: Option<Quantity>,
        /// From large pages.
        pub hugepages: Option<Hugepages>,
        /// How much less than the guest's is asked of the node, in percent.
        pub overcommit_percent: Option<i64>,
        /// How much can be plugged.
        pub max_guest: Option<Quantity>,
    }
}
