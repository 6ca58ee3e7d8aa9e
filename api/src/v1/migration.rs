use std::collections::BTreeMap;

use super::shape::shapes;

shapes! {
    /// How a migration stands, as the machine tells it.
    pub struct MigrationState {
        /// RFC 3339.
        pub start_timestamp: Option<String>,
        /// RFC 3339.
        pub end_timestamp: Option<String>,
        /// RFC 3339.
        pub target_node_domain_ready_timestamp: Option<String>,
        /// The target has the machine.
        pub target_node_domain_detected: Option<bool>,
        /// Over.
        pub completed: Option<bool>,
        /// Over, without success.
        pub failed: Option<bool>,
        /// Someone wants it stopped.
        pub abort_requested: Option<bool>,
        /// `Succeeded`, `Failed` or `Aborting`.
        pub abort_status: Option<String>,
        /// Why it failed.
        pub failure_reason: String,
        /// The migration's uid.
        pub migration_uid: String,
        /// `PreCopy`, `PostCopy` or `Paused`.
        pub mode: String,
        /// `Pod` or `Migration`.
        pub migration_network_type: String,
        /// Where from.
        pub source_node: String,
        /// From which pod.
        pub source_pod: String,
        /// Where to.
        pub target_node: String,
        /// To which pod.
        pub target_pod: String,
        /// The target's attachment pod.
        pub target_attachment_pod_uid: String = "targetAttachmentPodUID",
        /// The target's address.
        pub target_node_address: String,
        /// The target's ports.
        pub target_direct_migration_node_ports: BTreeMap<String, i32>,
        /// CPUs the target pinned.
        pub target_cpu_set: Vec<i64> = "targetCPUSet",
        /// The target's topology.
        pub target_node_topology: String,
        /// The policy that applied.
        pub migration_policy_name: String,
        /// Its resolved options.
        pub migration_configuration: Option<serde_json::Value>,
        /// The source, when both sides have their own control plane.
        pub source_state: Option<serde_json::Value>,
        /// The target, when both sides have their own control plane.
        pub target_state: Option<serde_json::Value>,
    }
}
