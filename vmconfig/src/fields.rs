/// The fields of the manifest that set the parts of a VM, for error messages. A disk, a NIC and an extra device have
/// theirs with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldPaths {
    /// The size of guest memory.
    pub memory: String,
    /// The pages that back it.
    pub huge_pages: String,
    /// The CPU model.
    pub cpu_model: String,
    /// CPUs of the VM's own.
    pub dedicated_cpus: String,
    /// NUMA nodes as the host's.
    pub numa: String,
    /// Scheduling in real time.
    pub realtime: String,
    /// The CPU features.
    pub cpu_features: String,
    /// What the VM starts from, whichever it is.
    pub firmware: String,
    /// Its firmware, BIOS or EFI.
    pub bootloader: String,
    /// BIOS.
    pub bios: String,
    /// EFI.
    pub efi: String,
    /// Secure boot.
    pub secure_boot: String,
    /// A kernel without firmware.
    pub kernel_boot: String,
    /// All devices.
    pub devices: String,
    /// All disks.
    pub disks: String,
    /// The display adapter.
    pub video: String,
    /// The threads of disks.
    pub io_threads: String,
}
