use std::collections::BTreeMap;

use super::shape::{ListType, shapes};
use super::{
    AccessCredential, Affinity, DomainSpec, ListMeta, Network, ObjectMeta, PodDnsConfig, PodResourceClaim,
    Probe, Toleration, TopologySpreadConstraint, UtilityVolume, VirtualMachineInstanceStatus, Volume,
};

shapes! {
    /// One virtual machine that runs, or is to run, or has run.
    pub struct VirtualMachineInstance {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineInstance`.
        pub kind: String,
        /// Name, labels and so on.
        pub metadata: ObjectMeta,
        /// What is wanted.
        pub spec: VirtualMachineInstanceSpec,
        /// What was observed.
        pub status: VirtualMachineInstanceStatus,
    }

    /// Several of them, as a list request answers.
    pub struct VirtualMachineInstanceList {
        /// `kubevirt.io/v1`.
        pub api_version: String,
        /// `VirtualMachineInstanceList`.
        pub kind: String,
        /// About the list itself.
        pub metadata: ListMeta,
        /// The machines.
        pub items: Vec<VirtualMachineInstance> = "items",
    }

    /// What is wanted of a virtual machine.
    pub struct VirtualMachineInstanceSpec {
        /// Given to the launcher's pod.
        pub priority_class_name: String,
        /// The guest's hardware.
        pub domain: DomainSpec,
        /// Labels a node must have.
        pub node_selector: BTreeMap<String, String>,
        /// Scheduling constraints, given to the pod.
        pub affinity: Option<Affinity>,
        /// Name of the scheduler.
        pub scheduler_name: String,
        /// Taints that are tolerated, given to the pod.
        pub tolerations: Vec<Toleration>,
        /// How VMIs are spread among topology domains, given to the pod.
        pub topology_spread_constraints: Vec<TopologySpreadConstraint>
            => ListType::Map(&["topologyKey", "whenUnsatisfiable"]),
        /// Account of the pod; the guest never gets its token.
        pub service_account_name: String,
        /// `amd64`, `arm64` or `s390x`.
        pub architecture: String,
        /// `None`, `LiveMigrate`, `LiveMigrateIfPossible` or `External`.
        pub eviction_strategy: Option<String>,
        /// `Paused`: the CPUs wait for an unpause.
        pub start_strategy: Option<String>,
        /// How long the guest may take to shut down.
        pub termination_grace_period_seconds: Option<i64>,
        /// What the disks are filled from.
        pub volumes: Vec<Volume>,
        /// Claims plugged into the pod for operations.
        pub utility_volumes: Vec<UtilityVolume> => ListType::Map(&["name"]),
        /// Asked all the time; a failure ends the machine.
        pub liveness_probe: Option<Probe>,
        /// Asked all the time; decides the Ready condition.
        pub readiness_probe: Option<Probe>,
        /// The guest's host name; the sanitised name of the machine when empty.
        pub hostname: String,
        /// The pod's subdomain, searched by the guest's resolver.
        pub subdomain: String,
        /// What the interfaces are attached to.
        pub networks: Vec<Network>,
        /// Core `DNSPolicy`.
        pub dns_policy: String,
        /// The resolver's settings.
        pub dns_config: Option<PodDnsConfig>,
        /// Keys and passwords put into the guest.
        pub access_credentials: Vec<AccessCredential>,
        /// Claims of dynamically allocated devices.
        pub resource_claims: Vec<PodResourceClaim> => ListType::Map(&["name"]),
    }
}
