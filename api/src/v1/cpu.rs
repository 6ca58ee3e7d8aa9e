use super::shape::shapes;

shapes! {
    /// The guest's processors.
    pub struct Cpu {
        /// Cores in a socket; 0 counts as 1.
        pub cores: Option<u32>,
        /// Sockets; 0 counts as 1.
        pub sockets: Option<u32>,
        /// The most sockets that can be plugged in.
        pub max_sockets: Option<u32>,
        /// Threads in a core; 0 counts as 1.
        pub threads: Option<u32>,
        /// `host-model`, `host-passthrough` or a named model.
        pub model: String,
        /// CPU flags.
        pub features: Vec<CpuFeature>,
        /// Pinned, exclusive CPUs.
        pub dedicated_cpu_placement: Option<bool>,
        /// NUMA cells of the guest.
        pub numa: Option<Numa>,
        /// One more pinned CPU for the hypervisor's own threads.
        pub isolate_emulator_thread: Option<bool>,
        /// Real-time scheduling of vCPUs.
        pub realtime: Option<Realtime>,
    }

    /// A CPU flag.
    pub struct CpuFeature {
        /// The flag, as QEMU calls it.
        pub name: String,
        /// `force`, `require`, `optional`, `disable` or `forbid`.
        pub policy: String,
    }

    /// NUMA cells of the guest.
    pub struct Numa {
        /// The guest's cells follow the host's.
        pub guest_mapping_passthrough: Option<NumaGuestMappingPassthrough>,
    }

    /// The guest's cells follow the host's.
    pub struct NumaGuestMappingPassthrough {}

    /// Real-time scheduling of vCPUs.
    pub struct Realtime {
        /// Which vCPUs, `0-3,^1`; all when empty.
        pub mask: String,
    }
}
