use std::collections::BTreeMap;

use super::shape::shapes;
use super::{Condition, MachineType, MigrationState, Quantity};

shapes! {
    /// Most recently observed status of a VMI.
    pub struct VirtualMachineInstanceStatus {
        /// Name of the node where the VMI runs.
        pub node_name: String,
        /// Brief CamelCase reason why the VMI is in this state, such as `NodeUnresponsive`.
        pub reason: String,
        /// Conditions of the VMI, such as `Ready`, `Paused` and `LiveMigratable`.
        pub conditions: Vec<Condition>,
        /// Current phase of the VMI: `Pending`, `Scheduling`, `Scheduled`, `Running`, `Succeeded`, `Failed` or
        /// `Unknown`.
        pub phase: String,
        /// Times at which the VMI reached its phases.
        pub phase_transition_timestamps: Vec<PhaseTransitionTimestamp>,
        /// Network interfaces of the running VMI, with their addresses.
        pub interfaces: Vec<InterfaceStatus>,
        /// Information on the guest's operating system, reported by the guest agent.
        pub guest_os_info: GuestOsInfo = "guestOSInfo",
        /// State of the current or the last live migration.
        pub migration_state: Option<Box<MigrationState>>,
        /// How the VMI can be migrated: `LiveMigration` or `BlockMigration`.
        pub migration_method: String,
        /// Transport that migrations use: `Unix` for Unix sockets.
        pub migration_transport: String,
        /// Quality of service class of the VMI: `Guaranteed`, `Burstable` or `BestEffort`.
        pub qos_class: Option<String>,
        /// Image of the launcher that runs the VMI.
        pub launcher_container_image_version: String,
        /// Name of the node that the VMI is requested to leave by a migration.
        pub evacuation_node_name: String,
        /// UIDs of the pods that currently run the VMI, with the names of their nodes.
        pub active_pods: BTreeMap<String, String>,
        /// Statuses of the volumes of the VMI.
        pub volume_status: Vec<VolumeStatus>,
        /// Whether the filesystems of the guest are frozen: `frozen`, or empty.
        pub fs_freeze_status: String,
        /// Properties of the node on which the VMI depends.
        pub topology_hints: Option<TopologyHints>,
        /// Name of the ControllerRevision of the VirtualMachine from which the VMI was created.
        pub virtual_machine_revision_name: String,
        /// UID of the user as which the VMI runs: 107, or 0 for root.
        pub runtime_user: u64,
        /// VSOCK context ID (CID) of the VMI.
        pub vsock_cid: Option<u32> = "VSOCKCID",
        /// SELinux context of the launcher.
        pub selinux_context: String,
        /// Machine type of the running VMI, with aliases resolved.
        pub machine: Option<MachineType>,
        /// Current CPU topology of the running VMI. It differs from the spec while a hotplug is in progress.
        pub current_cpu_topology: Option<CpuTopology> = "currentCPUTopology",
        /// Current memory of the running VMI. It differs from the spec while a hotplug is in progress.
        pub memory: Option<MemoryStatus>,
        /// Volumes that are migrated, with their sources and destinations.
        pub migrated_volumes: Vec<serde_json::Value>,
        /// Checksums of the kernel and the initrd of `kernelBoot`.
        pub kernel_boot_status: Option<serde_json::Value>,
        /// State of the tracking of changed blocks.
        pub changed_block_tracking: Option<serde_json::Value>,
    }

    /// Time at which a VMI reached a phase.
    pub struct PhaseTransitionTimestamp {
        /// Phase that the VMI reached.
        pub phase: String,
        /// Time of the transition, in RFC 3339 form.
        pub phase_transition_timestamp: Option<String>,
    }

    /// A network interface of a running VMI.
    pub struct InterfaceStatus {
        /// IP address of the interface: the first of `ipAddresses`.
        pub ip_address: String,
        /// MAC address of the interface.
        pub mac: String,
        /// Name of the interface in the spec; empty if only the guest knows the interface.
        pub name: String,
        /// All IP addresses of the interface.
        pub ip_addresses: Vec<String>,
        /// Name of the interface in the pod.
        pub pod_interface_name: String,
        /// Name of the interface in the guest.
        pub interface_name: String,
        /// Sources of the information, joined by commas: `domain`, `guest-agent` and `multus-status`.
        pub info_source: String,
        /// Number of queues of the interface.
        pub queue_count: Option<i32>,
        /// State of the link: `up` or `down`.
        pub link_state: String,
    }

    /// Information on the guest's operating system, reported by the guest agent.
    pub struct GuestOsInfo {
        /// Name of the operating system.
        pub name: String,
        /// Release of the kernel.
        pub kernel_release: String,
        /// Version of the operating system.
        pub version: String,
        /// Name of the operating system with its version.
        pub pretty_name: String,
        /// ID of the version of the operating system.
        pub version_id: String,
        /// Version of the kernel.
        pub kernel_version: String,
        /// Machine type of the operating system, such as `x86_64`.
        pub machine: String,
        /// ID of the operating system, such as `debian`.
        pub id: String,
    }

    /// Properties of the node on which a VMI depends.
    pub struct TopologyHints {
        /// Frequency of the TSC, in Hz.
        pub tsc_frequency: Option<i64>,
    }

    /// CPU topology of a running VMI.
    pub struct CpuTopology {
        /// Number of cores in a socket.
        pub cores: Option<u32>,
        /// Number of sockets.
        pub sockets: Option<u32>,
        /// Number of threads in a core.
        pub threads: Option<u32>,
    }

    /// Memory of a running VMI.
    pub struct MemoryStatus {
        /// Memory with which the VMI booted.
        pub guest_at_boot: Option<Quantity>,
        /// Memory that the guest has now.
        pub guest_current: Option<Quantity>,
        /// Memory that the spec requests for the guest.
        pub guest_requested: Option<Quantity>,
        /// Memory overhead of the VMI beyond the memory of the guest.
        pub memory_overhead: Option<Quantity>,
    }

    /// Status of a volume of a VMI.
    pub struct VolumeStatus {
        /// Name of the volume.
        pub name: String,
        /// Name of the device in the guest, such as `vda`.
        pub target: String,
        /// Phase of the volume, such as `Pending`, `Bound` or `Ready`.
        pub phase: String,
        /// Brief CamelCase reason for the current phase.
        pub reason: String,
        /// Detailed message about the current phase.
        pub message: String,
        /// Information on the PersistentVolumeClaim of the volume.
        pub persistent_volume_claim_info: Option<serde_json::Value>,
        /// Status of a hotplugged volume.
        pub hotplug_volume: Option<HotplugVolumeStatus>,
        /// Size of the volume in bytes, if it is generated when the VMI starts.
        pub size: Option<i64>,
        /// Status of a memory dump in the volume.
        pub memory_dump_volume: Option<serde_json::Value>,
        /// Checksum of a container disk. No longer reported.
        pub container_disk_volume: Option<serde_json::Value>,
    }

    /// Status of a hotplugged volume.
    pub struct HotplugVolumeStatus {
        /// Name of the pod that attaches the volume to the node.
        pub attach_pod_name: String,
        /// UID of the pod that attaches the volume to the node.
        pub attach_pod_uid: String = "attachPodUID",
    }
}
