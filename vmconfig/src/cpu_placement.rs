/// CPUs of the host that a VM has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuPlacement {
    /// Which; empty for those that its process may use.
    pub cpus: Vec<u32>,
    /// One more than vCPUs is for the hypervisor's other threads.
    pub isolate_emulator_thread: bool,
}
