use crate::HostNode;

/// CPUs of the host that a VM has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuPlacement {
    /// Which; empty for those that its process may use.
    pub cpus: Vec<u32>,
    /// One more than vCPUs is for the hypervisor's other threads.
    pub isolate_emulator_thread: bool,
    /// The guest has the NUMA nodes of these CPUs, of all that the host has. None: one node.
    pub numa: Option<Vec<HostNode>>,
    /// The vCPUs that are scheduled in real time, where memory is locked as well.
    pub realtime: Option<Vec<u32>>,
}
