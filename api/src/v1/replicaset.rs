use super::shape::shapes;
use super::{Condition, LabelSelector, ObjectMeta, VirtualMachineInstanceTemplateSpec};

shapes! {
    /// Ensures that a specified number of VMI replicas run at any given time.
    pub struct VirtualMachineInstanceReplicaSet {
        /// API version: `kubevirt.io/v1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachineInstanceReplicaSet`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Specification of the desired replica set.
        pub spec: VirtualMachineInstanceReplicaSetSpec,
        /// Most recently observed status of the replica set. Read-only.
        pub status: VirtualMachineInstanceReplicaSetStatus,
    }

    /// Specification of a VirtualMachineInstanceReplicaSet.
    pub struct VirtualMachineInstanceReplicaSetSpec {
        /// Number of desired VMIs. Defaults to 1.
        pub replicas: Option<i64>,
        /// Label selector of the VMIs; it must match the labels of the template. Matching VMIs without a controller are
        /// adopted.
        pub selector: Option<LabelSelector>,
        /// Template of the VMIs that are created.
        pub template: Option<VirtualMachineInstanceTemplateSpec>,
        /// Whether the replica set is paused: it then creates and deletes nothing.
        pub paused: bool,
    }

    /// Most recently observed status of a VirtualMachineInstanceReplicaSet.
    pub struct VirtualMachineInstanceReplicaSetStatus {
        /// Number of VMIs of the replica set that are not in a final phase.
        pub replicas: Option<i64>,
        /// Number of VMIs of the replica set that are ready.
        pub ready_replicas: Option<i64>,
        /// Current conditions of the replica set: `ReplicaFailure` and `ReplicaPaused`.
        pub conditions: Vec<Condition>,
        /// Canonical form of the label selector, for the scale subresource and autoscalers.
        pub label_selector: String,
    }
}
