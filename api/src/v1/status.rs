use std::collections::BTreeMap;

use super::shape::shapes;
use super::{Condition, MachineType, MigrationState, Quantity};

shapes! {
    /// What was observed of a machine.
    pub struct VirtualMachineInstanceStatus {
        /// Where it runs.
        pub node_name: String,
        /// A short cause of its phase.
        pub reason: String,
        /// Its conditions.
        pub conditions: Vec<Condition>,
        /// `Pending`, `Scheduling`, `Scheduled`, `Running`, `Succeeded`, `Failed`, ...
        pub phase: String,
        /// When it reached each phase.
        pub phase_transition_timestamps: Vec<PhaseTransitionTimestamp>,
        /// Its cards.
        pub interfaces: Vec<InterfaceStatus>,
        /// What the guest's agent says about its system.
        pub guest_os_info: GuestOsInfo = "guestOSInfo",
        /// A migration under way or the last one.
        pub migration_state: Option<MigrationState>,
        /// `LiveMigration` or `BlockMigration`.
        pub migration_method: String,
        /// `Unix`.
        pub migration_transport: String,
        /// `Guaranteed`, `Burstable` or `BestEffort`.
        pub qos_class: Option<String>,
        /// Label kept by an outdated launcher.
        pub launcher_container_image_version: String,
        /// The node to leave.
        pub evacuation_node_name: String,
        /// Pods by uid, with their nodes.
        pub active_pods: BTreeMap<String, String>,
        /// Its volumes.
        pub volume_status: Vec<VolumeStatus>,
        /// `frozen` or absent.
        pub fs_freeze_status: String,
        /// Facts that bind it to nodes.
        pub topology_hints: Option<TopologyHints>,
        /// The revision of its virtual machine.
        pub virtual_machine_revision_name: String,
        /// Who the launcher runs as; 107 unless it is root.
        pub runtime_user: u64,
        /// Its socket address.
        pub vsock_cid: Option<u32> = "VSOCKCID",
        /// The launcher's context.
        pub selinux_context: String,
        /// The board, its alias resolved.
        pub machine: Option<MachineType>,
        /// What the guest has now.
        pub current_cpu_topology: Option<CpuTopology> = "currentCPUTopology",
        /// What the guest has now.
        pub memory: Option<MemoryStatus>,
        /// Volumes being moved.
        pub migrated_volumes: Vec<serde_json::Value>,
        /// Checksums of the kernel and its ramdisk.
        pub kernel_boot_status: Option<serde_json::Value>,
        /// Incremental backup.
        pub changed_block_tracking: Option<serde_json::Value>,
    }

    /// When a phase was reached.
    pub struct PhaseTransitionTimestamp {
        /// The phase.
        pub phase: String,
        /// RFC 3339, in seconds.
        pub phase_transition_timestamp: Option<String>,
    }

    /// A card as it is.
    pub struct InterfaceStatus {
        /// The first of the addresses.
        pub ip_address: String,
        /// Its Ethernet address.
        pub mac: String,
        /// The network; empty for cards only the guest knows.
        pub name: String,
        /// Every address.
        pub ip_addresses: Vec<String>,
        /// Its name in the pod.
        pub pod_interface_name: String,
        /// Its name in the guest.
        pub interface_name: String,
        /// `domain`, `guest-agent`, `multus-status`, joined by commas.
        pub info_source: String,
        /// How many queues.
        pub queue_count: Option<i32>,
        /// `up` or `down`.
        pub link_state: String,
    }

    /// What the guest's agent says about its system.
    pub struct GuestOsInfo {
        /// Its name.
        pub name: String,
        /// Its kernel.
        pub kernel_release: String,
        /// Its version.
        pub version: String,
        /// Its name for people.
        pub pretty_name: String,
        /// Its version for programs.
        pub version_id: String,
        /// The kernel's version.
        pub kernel_version: String,
        /// The processor's kind.
        pub machine: String,
        /// Its name for programs.
        pub id: String,
    }

    /// Facts that bind a machine to nodes.
    pub struct TopologyHints {
        /// In Hz.
        pub tsc_frequency: Option<i64>,
    }

    /// Processors.
    pub struct CpuTopology {
        /// Cores in a socket.
        pub cores: Option<u32>,
        /// Sockets.
        pub sockets: Option<u32>,
        /// Threads in a core.
        pub threads: Option<u32>,
    }

    /// Memory.
    pub struct MemoryStatus {
        /// When it started.
        pub guest_at_boot: Option<Quantity>,
        /// Now.
        pub guest_current: Option<Quantity>,
        /// As asked for.
        pub guest_requested: Option<Quantity>,
        /// What the launcher needs beside it.
        pub memory_overhead: Option<Quantity>,
    }

    /// A volume as it is.
    pub struct VolumeStatus {
        /// Which one.
        pub name: String,
        /// What the guest calls it.
        pub target: String,
        /// `Pending`, `Bound`, `Ready`, ...
        pub phase: String,
        /// One word, for programs.
        pub reason: String,
        /// For people.
        pub message: String,
        /// The claim behind it.
        pub persistent_volume_claim_info: Option<serde_json::Value>,
        /// The pod that holds it.
        pub hotplug_volume: Option<HotplugVolumeStatus>,
        /// Bytes, of disks made at start.
        pub size: Option<i64>,
        /// A memory dump.
        pub memory_dump_volume: Option<serde_json::Value>,
        /// No longer filled.
        pub container_disk_volume: Option<serde_json::Value>,
    }

    /// The pod that holds a plugged-in volume.
    pub struct HotplugVolumeStatus {
        /// Its name.
        pub attach_pod_name: String,
        /// Its uid.
        pub attach_pod_uid: String = "attachPodUID",
    }
}
