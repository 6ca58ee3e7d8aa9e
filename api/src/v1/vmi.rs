use std::collections::BTreeMap;

use super::shape::{ListType, shapes};
use super::{
    AccessCredential, Affinity, DomainSpec, ListMeta, Network, ObjectMeta, PodDnsConfig, PodResourceClaim,
    Probe, Toleration, TopologySpreadConstraint, UtilityVolume, VirtualMachineInstanceStatus, Volume,
};

shapes! {
    /// A virtual machine in the runtime environment: it is created, runs once and ends. "VMI" for short.
    pub struct VirtualMachineInstance {
        /// API version: `kubevirt.io/v1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachineInstance`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Specification of the VMI.
        pub spec: VirtualMachineInstanceSpec,
        /// Most recently observed status of the VMI. Read-only.
        pub status: VirtualMachineInstanceStatus,
    }

    /// A list of VirtualMachineInstances.
    pub struct VirtualMachineInstanceList {
        /// API version: `kubevirt.io/v1`.
        pub api_version: String,
        /// Kind of the object: `VirtualMachineInstanceList`.
        pub kind: String,
        /// Standard list metadata.
        pub metadata: ListMeta,
        /// The VirtualMachineInstances.
        pub items: Vec<VirtualMachineInstance> = "items",
    }

    /// Specification of a VMI.
    pub struct VirtualMachineInstanceSpec {
        /// Priority class of the launcher pod.
        pub priority_class_name: String,
        /// Virtual hardware of the VMI.
        pub domain: DomainSpec,
        /// Labels that a node must have for the VMI to be scheduled to it.
        pub node_selector: BTreeMap<String, String>,
        /// Affinity scheduling rules of the VMI.
        pub affinity: Option<Box<Affinity>>,
        /// Name of the scheduler that dispatches the VMI. Defaults to the default scheduler.
        pub scheduler_name: String,
        /// Tolerations of taints, applied to the launcher pod.
        pub tolerations: Vec<Toleration>,
        /// How VMIs are spread among topology domains, applied to the launcher pod.
        pub topology_spread_constraints: Vec<TopologySpreadConstraint>
            => ListType::Map(&["topologyKey", "whenUnsatisfiable"]),
        /// Name of the ServiceAccount of the launcher pod. Its token is not exposed to the guest.
        pub service_account_name: String,
        /// Architecture of the guest: `amd64`, `arm64` or `s390x`. Defaults to that of the cluster's configuration.
        pub architecture: String,
        /// What happens to the VMI when it is evicted, such as by a node drain: `None`, `LiveMigrate`,
        /// `LiveMigrateIfPossible` or `External`.
        pub eviction_strategy: Option<String>,
        /// Set to `Paused`, the VMI starts with paused vCPUs, until it is unpaused.
        pub start_strategy: Option<String>,
        /// Seconds that the guest has to shut down after a termination signal before it is forcefully stopped.
        pub termination_grace_period_seconds: Option<i64>,
        /// Volumes that disks and filesystems of the VMI can show.
        pub volumes: Vec<Volume>,
        /// PersistentVolumeClaims that are hotplugged into the launcher pod for operations, and are not visible to the
        /// guest.
        pub utility_volumes: Vec<UtilityVolume> => ListType::Map(&["name"]),
        /// Periodic probe of the liveness of the VMI. The VMI is stopped if the probe fails.
        pub liveness_probe: Option<Box<Probe>>,
        /// Periodic probe of the readiness of the VMI. It determines the `Ready` condition.
        pub readiness_probe: Option<Box<Probe>>,
        /// Host name of the guest. Defaults to the name of the VMI.
        pub hostname: String,
        /// Subdomain of the VMI: its fully qualified name is `<hostname>.<subdomain>.<namespace>.svc.<cluster domain>`.
        pub subdomain: String,
        /// Networks that interfaces of the VMI can be connected to.
        pub networks: Vec<Network>,
        /// DNS policy of the pod: `ClusterFirstWithHostNet`, `ClusterFirst`, `Default` or `None`. Defaults to
        /// `ClusterFirst`.
        pub dns_policy: String,
        /// DNS parameters of the pod, in addition to those generated from `dnsPolicy`.
        pub dns_config: Option<Box<PodDnsConfig>>,
        /// SSH public keys and passwords that are delivered to the guest.
        pub access_credentials: Vec<AccessCredential>,
        /// ResourceClaims that devices of the VMI can be allocated from.
        pub resource_claims: Vec<PodResourceClaim> => ListType::Map(&["name"]),
    }
}
