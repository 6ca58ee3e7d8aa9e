use std::collections::BTreeMap;

use super::shape::shapes;

shapes! {
    /// State of a live migration of the VMI.
    pub struct MigrationState {
        /// Time at which the migration started, in RFC 3339 form.
        pub start_timestamp: Option<String>,
        /// Time at which the migration ended, in RFC 3339 form.
        pub end_timestamp: Option<String>,
        /// Time at which the target node reported the VM active, in RFC 3339 form.
        pub target_node_domain_ready_timestamp: Option<String>,
        /// Whether the target node has seen the VM started.
        pub target_node_domain_detected: Option<bool>,
        /// Whether the migration has completed.
        pub completed: Option<bool>,
        /// Whether the migration failed.
        pub failed: Option<bool>,
        /// Whether the migration has been requested to abort.
        pub abort_requested: Option<bool>,
        /// Final status of the abort: `Succeeded`, `Failed` or `Aborting`.
        pub abort_status: Option<String>,
        /// Reason why the migration failed.
        pub failure_reason: String,
        /// UID of the VirtualMachineInstanceMigration that the state belongs to.
        pub migration_uid: String,
        /// Mode of the migration: `PreCopy`, `PostCopy` or `Paused`.
        pub mode: String,
        /// Network that the migration uses: `Pod` or `Migration`.
        pub migration_network_type: String,
        /// Node that the VMI migrates from.
        pub source_node: String,
        /// Pod that the VMI migrates from.
        pub source_pod: String,
        /// Node that the VMI migrates to.
        pub target_node: String,
        /// Pod that the VMI migrates to.
        pub target_pod: String,
        /// UID of the pod that attaches hotplugged volumes on the target node.
        pub target_attachment_pod_uid: String = "targetAttachmentPodUID",
        /// Address of the target node that the migration uses.
        pub target_node_address: String,
        /// Ports on the target node that the migration uses.
        pub target_direct_migration_node_ports: BTreeMap<String, i32>,
        /// Physical CPUs of the target node that are assigned to the VMI, if it requests dedicated CPUs.
        pub target_cpu_set: Vec<i64> = "targetCPUSet",
        /// Serialized NUMA topology of the target node, if the VMI requests dedicated CPUs.
        pub target_node_topology: String,
        /// Name of the MigrationPolicy that applies.
        pub migration_policy_name: String,
        /// Migration options that are in effect.
        pub migration_configuration: Option<serde_json::Value>,
        /// State of the source, in a decentralized migration between two clusters or namespaces.
        pub source_state: Option<serde_json::Value>,
        /// State of the target, in a decentralized migration between two clusters or namespaces.
        pub target_state: Option<serde_json::Value>,
    }
}
