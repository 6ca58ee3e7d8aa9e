use super::shape::shapes;

shapes! {
    /// CPU topology and features of the guest.
    pub struct Cpu {
        /// Cores in a socket of the guest's CPU topology. Defaults to 1, also if it is 0.
        pub cores: Option<u32>,
        /// Number of sockets of the guest's CPU topology. Defaults to 1, also if it is 0. Can be increased on a running
        /// VM up to `maxSockets`.
        pub sockets: Option<u32>,
        /// Maximum number of sockets to which the running VM can be hotplugged.
        pub max_sockets: Option<u32>,
        /// Number of threads in a core of the guest's CPU topology. Defaults to 1, also if it is 0.
        pub threads: Option<u32>,
        /// CPU model of the guest: a named model, `host-model` or `host-passthrough`. Defaults to `host-model`.
        pub model: String,
        /// CPU features that are enabled, required or disabled, in addition to those of the model.
        pub features: Vec<CpuFeature>,
        /// Requests that the vCPUs are pinned to physical CPUs of the node that no other workload uses.
        pub dedicated_cpu_placement: Option<bool>,
        /// Mapping of NUMA topology from the host to the guest.
        pub numa: Option<Numa>,
        /// Requests one more dedicated physical CPU, to which the emulator threads are pinned. Requires
        /// `dedicatedCpuPlacement`.
        pub isolate_emulator_thread: Option<bool>,
        /// Real-time scheduling of vCPU threads.
        pub realtime: Option<Realtime>,
    }

    /// A CPU feature of the guest.
    pub struct CpuFeature {
        /// Name of the CPU feature, as in QEMU.
        pub name: String,
        /// Policy of the CPU feature: `force`, `require`, `optional`, `disable` or `forbid`. Defaults to `require`.
        pub policy: String,
    }

    /// Mapping of NUMA topology from the host to the guest.
    pub struct Numa {
        /// Creates a guest NUMA topology that follows the NUMA cells of the host from which the pinned CPUs are taken.
        /// Requires dedicated CPUs and hugepages.
        pub guest_mapping_passthrough: Option<NumaGuestMappingPassthrough>,
    }

    /// Pass-through of the host's NUMA topology to the guest.
    pub struct NumaGuestMappingPassthrough {}

    /// Real-time scheduling of vCPU threads.
    pub struct Realtime {
        /// vCPUs that are scheduled in real time, such as `0-3,^1`. Defaults to all vCPUs.
        pub mask: String,
    }
}

impl Cpu {
    /// Whether the guest has the NUMA nodes of its CPUs.
    pub fn has_nodes_of_host(&self) -> bool {
        self.numa.as_ref().is_some_and(|numa| numa.guest_mapping_passthrough.is_some())
    }
}
