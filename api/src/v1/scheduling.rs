use super::LabelSelector;
use super::shape::shapes;

shapes! {
    /// A group of affinity scheduling rules: core `Affinity`.
    pub struct Affinity {
        /// Node affinity scheduling rules.
        pub node_affinity: Option<NodeAffinity>,
        /// Pod affinity scheduling rules, such as to co-locate the VMI with other pods.
        pub pod_affinity: Option<PodAffinity>,
        /// Pod anti-affinity scheduling rules, such as to keep the VMI away from other pods.
        pub pod_anti_affinity: Option<PodAntiAffinity>,
    }

    /// Node affinity scheduling rules.
    pub struct NodeAffinity {
        /// Requirements that a node must meet for the pod to be scheduled to it. Later changes of the node do not evict
        /// the pod.
        pub required_during_scheduling_ignored_during_execution: Option<NodeSelector>,
        /// Terms that the scheduler prefers: a node with the greatest sum of the weights of its matching terms is most
        /// preferred.
        pub preferred_during_scheduling_ignored_during_execution: Vec<PreferredSchedulingTerm>,
    }

    /// The union of label queries over a set of nodes: the OR of its terms.
    pub struct NodeSelector: atomic {
        /// Node selector terms, which are ORed. At least one is required.
        pub node_selector_terms: Vec<NodeSelectorTerm>,
    }

    /// Requirements on a node, which are ANDed. A null or empty term matches no objects.
    pub struct NodeSelectorTerm: atomic {
        /// Node selector requirements by labels of the node.
        pub match_expressions: Vec<NodeSelectorRequirement>,
        /// Node selector requirements by fields of the node; `metadata.name` is the only one.
        pub match_fields: Vec<NodeSelectorRequirement>,
    }

    /// A key, an operator, and the values to which the operator relates the key.
    pub struct NodeSelectorRequirement {
        /// Label key, or field, that the requirement applies to.
        pub key: String,
        /// Relation of the key to the values: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
        pub operator: String,
        /// Not empty if the operator is `In` or `NotIn`, empty if it is `Exists` or `DoesNotExist`, and a single
        /// integer if it is `Gt` or `Lt`.
        pub values: Vec<String>,
    }

    /// A node selector term with a weight.
    pub struct PreferredSchedulingTerm {
        /// Weight of the term, from 1 to 100.
        pub weight: Option<i32>,
        /// Node selector term that the weight belongs to.
        pub preference: NodeSelectorTerm,
    }

    /// Pod affinity scheduling rules.
    pub struct PodAffinity {
        /// Terms that must all be satisfied for the pod to be scheduled to a node.
        pub required_during_scheduling_ignored_during_execution: Vec<PodAffinityTerm>,
        /// Terms that the scheduler prefers to satisfy.
        pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedPodAffinityTerm>,
    }

    /// Pod anti-affinity scheduling rules.
    pub struct PodAntiAffinity {
        /// Terms that must all be satisfied for the pod to be scheduled to a node.
        pub required_during_scheduling_ignored_during_execution: Vec<PodAffinityTerm>,
        /// Terms that the scheduler prefers to satisfy.
        pub preferred_during_scheduling_ignored_during_execution: Vec<WeightedPodAffinityTerm>,
    }

    /// A set of pods that this pod is co-located with, or kept away from, in a topology domain.
    pub struct PodAffinityTerm {
        /// Label query over the pods. If it is null, it matches no pods.
        pub label_selector: Option<LabelSelector>,
        /// Namespaces that the term applies to, in addition to those that `namespaceSelector` selects. If both are
        /// null, the namespace of this pod.
        pub namespaces: Vec<String>,
        /// Label of nodes whose values are the topology domains. It must not be empty.
        pub topology_key: String,
        /// Label query over the namespaces that the term applies to. An empty selector matches all namespaces.
        pub namespace_selector: Option<LabelSelector>,
        /// Keys of labels of this pod whose values are merged into `labelSelector` as `key in (value)`.
        pub match_label_keys: Vec<String>,
        /// Keys of labels of this pod whose values are merged into `labelSelector` as `key notin (value)`.
        pub mismatch_label_keys: Vec<String>,
    }

    /// A pod affinity term with a weight.
    pub struct WeightedPodAffinityTerm {
        /// Weight of the term, from 1 to 100.
        pub weight: Option<i32>,
        /// Pod affinity term that the weight belongs to.
        pub pod_affinity_term: PodAffinityTerm,
    }

    /// A toleration of the taints that match key, value and effect by the operator: core `Toleration`.
    pub struct Toleration {
        /// Taint key that the toleration applies to. Empty, with the operator `Exists`, it matches all keys and values.
        pub key: String,
        /// Relation of the key to the value: `Exists` or `Equal`. Defaults to `Equal`.
        pub operator: String,
        /// Taint value that the toleration matches. Empty if the operator is `Exists`.
        pub value: String,
        /// Taint effect to match: `NoSchedule`, `PreferNoSchedule` or `NoExecute`. Empty matches all effects.
        pub effect: String,
        /// Seconds for which a `NoExecute` taint is tolerated. If it is not set, the taint is tolerated forever.
        pub toleration_seconds: Option<i64>,
    }

    /// How matching pods are spread among topology domains: core `TopologySpreadConstraint`.
    pub struct TopologySpreadConstraint {
        /// Maximum difference between the numbers of matching pods in two topology domains. It must be greater than
        /// zero.
        pub max_skew: Option<i32>,
        /// Label of nodes whose values are the topology domains.
        pub topology_key: String,
        /// What to do with a pod that does not satisfy the constraint: `DoNotSchedule` or `ScheduleAnyway`.
        pub when_unsatisfiable: String,
        /// Label query over the pods that are counted.
        pub label_selector: Option<LabelSelector>,
        /// Minimum number of eligible domains, with `DoNotSchedule`. It must be greater than zero.
        pub min_domains: Option<i32>,
        /// Whether the node affinity and node selector of the pod are honored in the calculation of the skew: `Honor`
        /// or `Ignore`.
        pub node_affinity_policy: Option<String>,
        /// Whether node taints are honored in the calculation of the skew: `Honor` or `Ignore`.
        pub node_taints_policy: Option<String>,
        /// Keys of labels of this pod whose values other pods must share to be counted.
        pub match_label_keys: Vec<String>,
    }
}
