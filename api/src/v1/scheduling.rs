use super::LabelSelector;
use super::shape::shapes;

shapes! {
    /// Scheduling constraints: core `Affinity`.
    pub struct Affinity {
        /// Constraints on the node.
        pub node_affinity: Option<NodeAffinity>,
        /// Pods to be placed near to.
        pub pod_affinity: Option<PodAffinity>,
        /// Pods to be placed away from.
        pub pod_anti_affinity: Option<PodAntiAffinity>,
    }

    /// Constraints on the node, by its labels and fields.
    pub struct NodeAffinity {
        /// What the node must match when the pod is scheduled. Later changes of the node do not evict the pod.
        pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
        /// What the scheduler prefers: the node with the greatest sum of the weights of its matching terms.
        pub preferred_during_scheduling_ignored_during_execution: Vec<PreferredSchedulingTerm>,
    }

    /// A union of terms: one of them must match the node.
    pub struct NodeSelector: atomic {
        /// The terms; at least one.
        pub node_selector_terms: Vec<NodeSelectorTerm>,
    }

    /// Requirements on a node, all of which must hold. A term without requirements matches no node.
    pub struct NodeSelectorTerm: atomic {
        /// Requirements on the node's labels.
        pub match_expressions: Vec<NodeSelectorRequirement>,
        /// Requirements on the node's fields; `metadata.name` is the only one.
        pub match_fields: Vec<NodeSelectorRequirement>,
    }

    /// A key, an operator and the values that it compares with.
    pub struct NodeSelectorRequirement {
        /// The label or field.
        pub key: String,
        /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
        pub operator: String,
        /// At least one for `In` and `NotIn`, none for `Exists` and `DoesNotExist`, one integer for `Gt` and `Lt`.
        pub values: Vec<String>,
    }

    /// A preferred node selector term.
    pub struct PreferredSchedulingTerm {
        /// What a matching node is worth, from 1 to 100.
        pub weight: Option<i32>,
        /// The term.
        pub preference: NodeSelectorTerm,
    }

    /// Pods to be placed near to.
    pub struct PodAffinity {
        /// Terms that must all hold when the pod is scheduled.
        pub required_during_scheduling_ignored_during_execution: Vec<PodAffinityTerm>,
        /// Terms that the scheduler prefers to hold.
        pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedPodAffinityTerm>,
    }

    /// Pods to be placed away from.
    pub struct PodAntiAffinity {
        /// Terms that must all hold when the pod is scheduled.
        pub required_during_scheduling_ignored_during_execution: Vec<PodAffinityTerm>,
        /// Terms that the scheduler prefers to hold.
        pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedPodAffinityTerm>,
    }

    /// A set of pods, and the topology domain in which the pod is placed with them or away from them.
    pub struct PodAffinityTerm {
        /// Selects the pods by their labels; none when absent.
        pub label_selector: Option<LabelSelector>,
        /// Namespaces of the pods, in addition to those of `namespaceSelector`; the pod's own when both are absent.
        pub namespaces: Vec<String>,
        /// The node label whose values are the topology domains.
        pub topology_key: String,
        /// Selects namespaces by their labels; all when empty.
        pub namespace_selector: Option<LabelSelector>,
        /// Keys of the pod's own labels whose values are merged into `labelSelector` as `key in (value)`.
        pub match_label_keys: Vec<String>,
        /// Keys of the pod's own labels whose values are merged into `labelSelector` as `key notin (value)`.
        pub mismatch_label_keys: Vec<String>,
    }

    /// A preferred pod affinity term.
    pub struct WeightedPodAffinityTerm {
        /// What a matching node is worth, from 1 to 100.
        pub weight: Option<i32>,
        /// The term.
        pub pod_affinity_term: PodAffinityTerm,
    }

    /// Taints that the pod tolerates: core `Toleration`.
    pub struct Toleration {
        /// The taint's key; empty with the operator `Exists` for every taint.
        pub key: String,
        /// `Equal`, which is the default, or `Exists`.
        pub operator: String,
        /// The taint's value; empty with the operator `Exists`.
        pub value: String,
        /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; every effect when empty.
        pub effect: String,
        /// How long a `NoExecute` taint is tolerated; for ever when absent.
        pub toleration_seconds: Option<i64>,
    }

    /// How matching pods are spread among topology domains: core `TopologySpreadConstraint`.
    pub struct TopologySpreadConstraint {
        /// How far the numbers of matching pods in two domains may differ; greater than zero.
        pub max_skew: Option<i32>,
        /// The node label whose values are the topology domains.
        pub topology_key: String,
        /// What happens when the constraint cannot be met: `DoNotSchedule` or `ScheduleAnyway`.
        pub when_unsatisfiable: String,
        /// Selects the pods that are counted.
        pub label_selector: Option<LabelSelector>,
        /// How many eligible domains there must be, with `DoNotSchedule`; greater than zero.
        pub min_domains: Option<i32>,
        /// Whether the pod's node affinity and selector are honored: `Honor` or `Ignore`.
        pub node_affinity_policy: Option<String>,
        /// Whether node taints are honored: `Honor` or `Ignore`.
        pub node_taints_policy: Option<String>,
        /// Keys of the pod's own labels that pods must share with it to be counted.
        pub match_label_keys: Vec<String>,
    }
}
