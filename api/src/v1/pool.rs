use super::shape::shapes;
use super::{Condition, IntOrString, LabelSelector, ObjectMeta, VirtualMachineSpec};

shapes! {
    /// Manages a number of similar VirtualMachines with stable names and state: `<pool>-0`, `<pool>-1` and so on.
    pub struct VirtualMachinePool {
        /// API version: `pool.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachinePool`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Specification of the desired pool.
        pub spec: VirtualMachinePoolSpec,
        /// Most recently observed status of the pool. Read-only.
        pub status: VirtualMachinePoolStatus,
    }

    /// Specification of a VirtualMachinePool.
    pub struct VirtualMachinePoolSpec {
        /// Number of desired VirtualMachines. Defaults to 1.
        pub replicas: Option<i64>,
        /// Label selector of the VirtualMachines of the pool; it must match the labels of the template. A
        /// VirtualMachine that no longer matches is released.
        pub selector: Option<LabelSelector>,
        /// Template of the VirtualMachines that are created.
        pub virtual_machine_template: Option<VirtualMachineTemplateSpec>,
        /// Whether the pool is paused: it then creates, updates and deletes nothing.
        pub paused: bool,
        /// How the names of ConfigMaps and Secrets are generated for each VirtualMachine.
        pub name_generation: Option<VirtualMachinePoolNameGeneration>,
        /// Maximum number of VirtualMachines that can be unavailable during an update, as an absolute number or a
        /// percentage. Defaults to `100%`.
        pub max_unavailable: Option<IntOrString>,
        /// How the pool scales in. Defaults to `proactive`.
        pub scale_in_strategy: Option<VirtualMachinePoolScaleInStrategy>,
        /// How the pool updates its VirtualMachines. Defaults to `proactive`.
        pub update_strategy: Option<VirtualMachinePoolUpdateStrategy>,
        /// When the pool replaces VirtualMachines that fail to start. Without it, it does not.
        pub autohealing: Option<VirtualMachinePoolAutohealingStrategy>,
    }

    /// Template of the VirtualMachines of a pool.
    pub struct VirtualMachineTemplateSpec {
        /// Labels and annotations of the VirtualMachines.
        pub metadata: ObjectMeta,
        /// Specification of the VirtualMachines.
        pub spec: VirtualMachineSpec,
    }

    /// How the names of ConfigMaps and Secrets are generated for each VirtualMachine.
    pub struct VirtualMachinePoolNameGeneration {
        /// Appends the index of the VirtualMachine to the names of ConfigMaps in volumes.
        pub append_index_to_config_map_refs: Option<bool>,
        /// Appends the index of the VirtualMachine to the names of Secrets in volumes.
        pub append_index_to_secret_refs: Option<bool>,
    }

    /// How a pool scales in: at most one of its members is set.
    pub struct VirtualMachinePoolScaleInStrategy {
        /// Deletes no VirtualMachines on scale-in.
        pub unmanaged: Option<serde_json::Value>,
        /// Deletes no VirtualMachines; those that users delete are not replaced until the number of replicas is
        /// reached.
        pub opportunistic: Option<VirtualMachinePoolOpportunisticScaleInStrategy>,
        /// Deletes VirtualMachines immediately.
        pub proactive: Option<VirtualMachinePoolProactiveScaleInStrategy>,
    }

    /// Scale-in that waits until users delete VirtualMachines.
    pub struct VirtualMachinePoolOpportunisticScaleInStrategy {
        /// Whether the state of deleted VirtualMachines is preserved: `Disabled` or `Offline`.
        pub state_preservation: Option<String>,
    }

    /// Scale-in that deletes VirtualMachines immediately.
    pub struct VirtualMachinePoolProactiveScaleInStrategy {
        /// Which VirtualMachines are deleted first.
        pub selection_policy: Option<VirtualMachinePoolSelectionPolicy>,
        /// Whether the state of deleted VirtualMachines is preserved: `Disabled` or `Offline`.
        pub state_preservation: Option<String>,
    }

    /// How a pool updates its VirtualMachines: at most one of its members is set.
    pub struct VirtualMachinePoolUpdateStrategy {
        /// Updates only VirtualMachines that are created after the template changed.
        pub unmanaged: Option<serde_json::Value>,
        /// Updates the VirtualMachines; their VMIs follow when they are next started.
        pub opportunistic: Option<serde_json::Value>,
        /// Updates the VirtualMachines and restarts their VMIs.
        pub proactive: Option<VirtualMachinePoolProactiveUpdateStrategy>,
    }

    /// Update that restarts VMIs.
    pub struct VirtualMachinePoolProactiveUpdateStrategy {
        /// Which VirtualMachines are updated first.
        pub selection_policy: Option<VirtualMachinePoolSelectionPolicy>,
    }

    /// Which VirtualMachines are selected, and in which order.
    pub struct VirtualMachinePoolSelectionPolicy {
        /// Order of the VirtualMachines: `AscendingOrder` or `DescendingOrder` of their indexes, `Newest`, `Oldest` or
        /// `Random`.
        pub sort_policy: Option<String>,
        /// Which VirtualMachines are selected.
        pub selectors: Option<VirtualMachinePoolSelectors>,
    }

    /// Which VirtualMachines are selected.
    pub struct VirtualMachinePoolSelectors {
        /// Label selector of VirtualMachines.
        pub label_selector: Option<LabelSelector>,
        /// Requirements on the labels of the nodes on which the VirtualMachines run.
        pub node_selector_requirement_matcher: Vec<serde_json::Value>,
    }

    /// When a pool replaces VirtualMachines that fail to start.
    pub struct VirtualMachinePoolAutohealingStrategy {
        /// Number of consecutive start failures after which a VirtualMachine is replaced. Defaults to 3.
        pub start_up_failure_threshold: Option<i64>,
        /// Minimum time for which a VirtualMachine fails to start before it is replaced. Defaults to `5m`.
        pub min_failing_to_start_duration: Option<String>,
    }

    /// Most recently observed status of a VirtualMachinePool.
    pub struct VirtualMachinePoolStatus {
        /// Number of VirtualMachines of the pool.
        pub replicas: Option<i64>,
        /// Number of VirtualMachines of the pool that are ready.
        pub ready_replicas: Option<i64>,
        /// Current conditions of the pool: `ReplicaFailure` and `ReplicaPaused`.
        pub conditions: Vec<Condition>,
        /// Canonical form of the label selector, for the scale subresource and autoscalers.
        pub label_selector: String,
    }
}
