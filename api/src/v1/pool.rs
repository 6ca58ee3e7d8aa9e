use super::shape::shapes;
use super::{Condition, IntOrString, LabelSelector, ObjectMeta, VirtualMachineSpec};

shapes! {
    /// A number of machines that are alike but keep their names and what is theirs: `<pool>-0`, `<pool>-1` and so on.
    pub struct VirtualMachinePool {
        /// `pool.kubevirt.io/v1beta1`.
        pub api_version: String,
        /// `VirtualMachinePool`.
        pub kind: String,
        /// Name, labels and so on.
        pub metadata: ObjectMeta,
        /// What is wanted.
        pub spec: VirtualMachinePoolSpec,
        /// What was observed.
        pub status: VirtualMachinePoolStatus,
    }

    /// What is wanted of a pool.
    pub struct VirtualMachinePoolSpec {
        /// How many; 1 unless said.
        pub replicas: Option<i64>,
        /// Which of its machines are counted: one that no longer matches is let go. The template's labels must match.
        pub selector: Option<LabelSelector>,
        /// What the machines are made from.
        pub virtual_machine_template: Option<VirtualMachineTemplateSpec>,
        /// Creates, changes and deletes nothing while this is true.
        pub paused: bool,
        /// What else gets the number of its machine.
        pub name_generation: Option<VirtualMachinePoolNameGeneration>,
        /// How many machines may be out of service for an update, as a number or a percentage; `100%` unless said.
        pub max_unavailable: Option<IntOrString>,
        /// How machines that are too many go; proactively unless said.
        pub scale_in_strategy: Option<VirtualMachinePoolScaleInStrategy>,
        /// How a new template gets to the machines; proactively unless said.
        pub update_strategy: Option<VirtualMachinePoolUpdateStrategy>,
        /// When a machine that does not start is replaced; never unless said.
        pub autohealing: Option<VirtualMachinePoolAutohealingStrategy>,
    }

    /// What machines of a pool are made from.
    pub struct VirtualMachineTemplateSpec {
        /// Labels and annotations of the machine.
        pub metadata: ObjectMeta,
        /// Its spec.
        pub spec: VirtualMachineSpec,
    }

    /// What else gets the number of its machine.
    pub struct VirtualMachinePoolNameGeneration {
        /// The names of ConfigMaps in volumes.
        pub append_index_to_config_map_refs: Option<bool>,
        /// The names of Secrets in volumes.
        pub append_index_to_secret_refs: Option<bool>,
    }

    /// How machines that are too many go. One of these.
    pub struct VirtualMachinePoolScaleInStrategy {
        /// The pool deletes none.
        pub unmanaged: Option<serde_json::Value>,
        /// The pool deletes none, and replaces none of those that others delete.
        pub opportunistic: Option<VirtualMachinePoolOpportunisticScaleInStrategy>,
        /// The pool deletes them.
        pub proactive: Option<VirtualMachinePoolProactiveScaleInStrategy>,
    }

    /// Waits until others delete machines.
    pub struct VirtualMachinePoolOpportunisticScaleInStrategy {
        /// `Disabled` or `Offline`.
        pub state_preservation: Option<String>,
    }

    /// Deletes machines.
    pub struct VirtualMachinePoolProactiveScaleInStrategy {
        /// Which first.
        pub selection_policy: Option<VirtualMachinePoolSelectionPolicy>,
        /// `Disabled` or `Offline`.
        pub state_preservation: Option<String>,
    }

    /// How a new template gets to the machines. One of these.
    pub struct VirtualMachinePoolUpdateStrategy {
        /// Not at all.
        pub unmanaged: Option<serde_json::Value>,
        /// The machines get it at once, their instances with the next start.
        pub opportunistic: Option<serde_json::Value>,
        /// The machines get it at once and are started anew.
        pub proactive: Option<VirtualMachinePoolProactiveUpdateStrategy>,
    }

    /// Starts machines anew.
    pub struct VirtualMachinePoolProactiveUpdateStrategy {
        /// Which first.
        pub selection_policy: Option<VirtualMachinePoolSelectionPolicy>,
    }

    /// Which machines come first.
    pub struct VirtualMachinePoolSelectionPolicy {
        /// `AscendingOrder` or `DescendingOrder` of their numbers, `Newest`, `Oldest`, or `Random`.
        pub sort_policy: Option<String>,
        /// Which machines come at all.
        pub selectors: Option<VirtualMachinePoolSelectors>,
    }

    /// Which machines come at all.
    pub struct VirtualMachinePoolSelectors {
        /// By the machines' labels.
        pub label_selector: Option<LabelSelector>,
        /// By the labels of the nodes that they run on.
        pub node_selector_requirement_matcher: Vec<serde_json::Value>,
    }

    /// When a machine that does not start is replaced.
    pub struct VirtualMachinePoolAutohealingStrategy {
        /// After so many starts that failed one after the other; 3 unless said.
        pub start_up_failure_threshold: Option<i64>,
        /// Or after it could not run for so long; `5m` unless said.
        pub min_failing_to_start_duration: Option<String>,
    }

    /// What was observed of a pool.
    pub struct VirtualMachinePoolStatus {
        /// How many machines there are.
        pub replicas: Option<i64>,
        /// How many of these are ready.
        pub ready_replicas: Option<i64>,
        /// `ReplicaFailure`, `ReplicaPaused`.
        pub conditions: Vec<Condition>,
        /// The selector as a text, for `kubectl scale` and autoscalers.
        pub label_selector: String,
    }
}
