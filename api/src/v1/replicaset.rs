use super::shape::shapes;
use super::{Condition, LabelSelector, ObjectMeta, VirtualMachineInstanceTemplateSpec};

shapes! {
    /// A number of instances that are alike, none of which anybody misses: one that ends is replaced.
    pub struct VirtualMachineInstanceReplicaSet {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineInstanceReplicaSet`.
        pub kind: String,
        /// Name, labels and so on.
        pub metadata: ObjectMeta,
        /// What is wanted.
        pub spec: VirtualMachineInstanceReplicaSetSpec,
        /// What was observed.
        pub status: VirtualMachineInstanceReplicaSetStatus,
    }

    /// What is wanted of a set of instances.
    pub struct VirtualMachineInstanceReplicaSetSpec {
        /// How many; 1 unless said.
        pub replicas: Option<i64>,
        /// Which instances are counted, and adopted if they have no owner. The template's labels must match.
        pub selector: Option<LabelSelector>,
        /// What they are made from.
        pub template: Option<VirtualMachineInstanceTemplateSpec>,
        /// Creates and deletes nothing while this is true.
        pub paused: bool,
    }

    /// What was observed of a set of instances.
    pub struct VirtualMachineInstanceReplicaSetStatus {
        /// How many there are that have not ended.
        pub replicas: Option<i64>,
        /// How many of these are ready.
        pub ready_replicas: Option<i64>,
        /// `ReplicaFailure`, `ReplicaPaused`.
        pub conditions: Vec<Condition>,
        /// The selector as a text, for `kubectl scale` and autoscalers.
        pub label_selector: String,
    }
}
