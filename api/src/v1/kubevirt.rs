use std::collections::BTreeMap;

use super::shape::{ListType, shapes};
use super::{Affinity, Condition, LabelSelector, LocalObjectReference, ObjectMeta, Quantity, Toleration};

shapes! {
    /// Installs KubeVirt's components in a cluster and configures them.
    pub struct KubeVirt {
        /// API version: `kubevirt.io/v1`.
        pub api_version: String,
        /// Kind of the object: `KubeVirt`.
        pub kind: String,
        /// Standard object metadata.
        pub metadata: ObjectMeta,
        /// Specification of the desired installation.
        pub spec: KubeVirtSpec,
        /// Most recently observed status of the installation. Read-only.
        pub status: KubeVirtStatus,
    }

    /// Specification of the desired installation. Fields that are not described here have no effect; the condition
    /// `UnsupportedConfiguration` names those that are set.
    pub struct KubeVirtSpec {
        /// Tag of the components' images. Defaults to that of virt-operator's image.
        pub image_tag: String,
        /// Registry and path of the components' images. Defaults to that of virt-operator's image.
        pub image_registry: String,
        /// Pull policy of the components' images: `Always`, `IfNotPresent` or `Never`. Defaults to virt-operator's.
        pub image_pull_policy: String,
        /// Secrets in the namespace of the components with credentials for the registry of their images.
        pub image_pull_secrets: Vec<LocalObjectReference>,
        /// Name of the ServiceAccount of Prometheus, which may read where the metrics are. Defaults to `prometheus-k8s`.
        pub monitor_account: String,
        /// Namespace of that ServiceAccount. Defaults to `openshift-monitoring` and `monitoring`.
        pub monitor_namespace: String,
        /// Whether the installation can be deleted while VirtualMachines, VirtualMachineInstances or
        /// VirtualMachineInstanceReplicaSets exist: `RemoveWorkloads` or `BlockUninstallIfWorkloadsExist`, which is
        /// the default.
        pub uninstall_strategy: String,
        /// Value of the label `app.kubernetes.io/version` of the components. Defaults to the version of virt-operator.
        pub product_version: String,
        /// Value of the label `app.kubernetes.io/part-of` of the components.
        pub product_name: String,
        /// Value of the label `app.kubernetes.io/component` of the components. Defaults to `kubevirt`.
        pub product_component: String,
        /// Configuration of the components.
        pub configuration: KubeVirtConfiguration,
        /// Placement and number of virt-api and virt-controller.
        pub infra: Option<ComponentConfig>,
        /// Placement of virt-handler, and thereby of VirtualMachineInstances.
        pub workloads: Option<ComponentConfig>,
        /// What is done with VirtualMachineInstances whose launcher is of another release than the components.
        pub workload_update_strategy: KubeVirtWorkloadUpdateStrategy,
        /// How long certificates of the components live.
        pub certificate_rotate_strategy: Option<KubeVirtCertificateRotateStrategy>,
        /// Changes of what is installed.
        pub customize_components: CustomizeComponents,
    }

    /// Configuration of the components. Settings of VirtualMachineInstances apply to those that are created afterwards.
    pub struct KubeVirtConfiguration {
        /// Deprecated: use `architectureConfiguration` instead. Machine type of VMIs that do not set one: `q35`, or a
        /// version of it, such as `pc-q35-9.0`.
        pub machine_type: String,
        /// Deprecated: use `architectureConfiguration` instead. Patterns of the machine types that VMIs may have.
        pub emulated_machines: Vec<String>,
        /// Settings of an architecture.
        pub architecture_configuration: Option<ArchConfiguration>,
        /// CPU model of VMIs that do not set one. Defaults to `host-model`.
        pub cpu_model: String,
        /// CPU models that VMIs should not have: nodes get no label for them. Those that are set to true are added to the
        /// default, and those that are set to false are removed from it.
        pub obsolete_cpu_models: BTreeMap<String, bool> = "obsoleteCPUModels",
        /// CPU model that VMIs should have at least: nodes get no labels for models of its vendor that lack features of it.
        pub min_cpu_model: String = "minCPUModel",
        /// CPU request of VMIs that set neither a request nor a limit. Without it, the request depends on the number of
        /// vCPUs and `cpuAllocationRatio`.
        pub cpu_request: Option<Quantity>,
        /// Eviction strategy of VMIs that do not set one: `None`, `LiveMigrate`, `LiveMigrateIfPossible` or `External`.
        /// Defaults to `None`.
        pub eviction_strategy: Option<String>,
        /// When the image of launcher pods is pulled: `Always`, `IfNotPresent` or `Never`. Defaults to `IfNotPresent`.
        pub image_pull_policy: String,
        /// RuntimeClass of launcher pods.
        pub default_runtime_class: String,
        /// SELinux type of launcher pods. Defaults to that of the container runtime.
        pub selinux_launcher_type: String,
        /// Seccomp profile of launcher pods.
        pub seccomp_configuration: Option<SeccompConfiguration>,
        /// StorageClass of the claims with the state of VMs beside their disks, such as persistent UEFI variables. Defaults
        /// to the default StorageClass.
        pub vm_state_storage_class: String,
        /// Factor by which the calculated memory overhead of VMIs is multiplied, such as `1.5`. Defaults to `1`.
        pub additional_guest_memory_overhead_ratio: Option<String>,
        /// Number of VMIs that a node can have at most, where they are not emulated. Defaults to 1000.
        pub virtual_machine_instances_per_node: Option<i64>,
        /// What guests read about their system by SMBIOS.
        pub smbios: Option<SMBiosConfiguration>,
        /// Network settings of VMIs.
        pub network: Option<NetworkConfiguration>,
        /// Devices and features of VMIs.
        pub virtual_machine_options: Option<VirtualMachineOptions>,
        /// Resource requirements of the containers beside the launcher.
        pub support_container_resources: Vec<SupportContainerResources> => ListType::Map(&["type"]),
        /// Devices of nodes that VMIs may have.
        pub permitted_host_devices: PermittedHostDevices,
        /// Namespaces in which launcher pods of VMIs without dedicated CPUs and without a CPU limit get one: their number of
        /// vCPUs.
        pub auto_cpu_limit_namespace_label_selector: Option<LabelSelector> = "autoCPULimitNamespaceLabelSelector",
        /// What becomes of references of VMs to instance types and preferences.
        pub instancetype: Option<InstancetypeConfiguration>,
        /// Nodes on which equal pages of guests are merged while they are short of memory.
        pub ksm_configuration: Option<KSMConfiguration>,
        /// Whether the roles `kubevirt.io:admin`, `:edit` and `:view` become part of Kubernetes' roles of the same names:
        /// `AggregateToDefault`, which is the default, or `Manual`, for which they do not.
        pub role_aggregation_strategy: String,
        /// TLS of the components' servers.
        pub tls_configuration: Option<TLSConfiguration>,
        /// virt-api.
        pub api_configuration: Option<ReloadableComponentConfiguration>,
        /// The webhooks of virt-api.
        pub webhook_configuration: Option<ReloadableComponentConfiguration>,
        /// virt-controller.
        pub controller_configuration: Option<ReloadableComponentConfiguration>,
        /// virt-handler.
        pub handler_configuration: Option<ReloadableComponentConfiguration>,
        /// Configuration for development and tests.
        pub developer_configuration: Option<DeveloperConfiguration>,
    }

    /// What becomes of references of VMs to instance types and preferences.
    pub struct InstancetypeConfiguration {
        /// `reference`, which is the default, keeps them. `expand` replaces those of VMs without a VMI by the fields that they
        /// add to the template, unless the status or a `revisionName` names a ControllerRevision of one. `expandAll` replaces
        /// those with a ControllerRevision, too.
        pub reference_policy: Option<String>,
    }

    /// Nodes on which equal pages of guests are merged.
    pub struct KSMConfiguration {
        /// Their labels. An empty selector is for all nodes.
        pub node_label_selector: Option<LabelSelector>,
    }

    /// TLS of the components' servers.
    pub struct TLSConfiguration {
        /// Lowest version of TLS that is accepted: `VersionTLS12`, which is the default, or `VersionTLS13`. `VersionTLS10`
        /// and `VersionTLS11` are as `VersionTLS12`.
        pub min_tls_version: String = "minTLSVersion",
        /// Cipher suites of TLS 1.2 that are accepted, by IANA's names; all by default. It can be set with a
        /// `minTLSVersion` of at most `VersionTLS12`.
        pub ciphers: Vec<String> => ListType::Set,
    }

    /// Configuration of a component that it reads without a restart.
    pub struct ReloadableComponentConfiguration {
        /// Its client of the API server.
        pub rest_client: Option<RESTClientConfiguration>,
    }

    /// A client of the API server.
    pub struct RESTClientConfiguration {
        /// Limit of its requests. There is none by default.
        pub rate_limiter: Option<RateLimiter>,
    }

    /// Limit of the requests of a client.
    pub struct RateLimiter {
        /// A rate with a burst.
        pub token_bucket_rate_limiter: Option<TokenBucketRateLimiter>,
    }

    /// A rate of requests with a burst.
    pub struct TokenBucketRateLimiter {
        /// Requests in a second, on average; above 0.
        pub qps: f64,
        /// Requests at once; at least 1.
        pub burst: i64,
    }

    /// Seccomp profiles of pods.
    pub struct SeccompConfiguration {
        /// That of launcher pods.
        pub virtual_machine_instance_profile: Option<VirtualMachineInstanceProfile>,
    }

    /// Seccomp profile of launcher pods.
    pub struct VirtualMachineInstanceProfile {
        /// A profile of the container runtime, or of nodes.
        pub custom_profile: Option<CustomProfile>,
    }

    /// One of its fields is set.
    pub struct CustomProfile {
        /// Path of a profile on nodes, relative to the kubelet's directory of profiles.
        pub localhost_profile: Option<String>,
        /// The container runtime's default profile. This is also the default.
        pub runtime_default_profile: bool,
    }

    /// What guests read about their system by SMBIOS.
    pub struct SMBiosConfiguration {
        /// Manufacturer of the system. Defaults to `KubeVirt`.
        pub manufacturer: String,
        /// Product name of the system. Defaults to `None`.
        pub product: String,
        /// Version of the system.
        pub version: String,
        /// SKU of the system.
        pub sku: String,
        /// Family of the system. Defaults to `KubeVirt`.
        pub family: String,
    }

    /// Devices of nodes that VMIs may have, as resources of nodes.
    pub struct PermittedHostDevices {
        /// PCI devices that are bound to `vfio-pci`.
        pub pci_host_devices: Vec<PciHostDevice>,
        /// Mediated devices.
        pub mediated_devices: Vec<MediatedHostDevice>,
        /// USB devices.
        pub usb: Vec<UsbHostDevice>,
    }

    /// PCI devices that VMIs may have.
    pub struct PciHostDevice {
        /// Vendor and device ID of the PCI devices, in hexadecimal: `10DE:1EB8`.
        pub pci_vendor_selector: String,
        /// Name of the resource, such as `nvidia.com/TU104GL_Tesla_T4`. Several selectors may have the same.
        pub resource_name: String,
        /// Whether another device plugin offers the resource. Defaults to false: the node agent offers it.
        pub external_resource_provider: bool,
    }

    /// Mediated devices that VMIs may have.
    pub struct MediatedHostDevice {
        /// Name of the type of the mediated devices, such as `GRID T4-1Q`.
        pub mdev_name_selector: String,
        /// Name of the resource, such as `nvidia.com/GRID_T4-1Q`.
        pub resource_name: String,
        /// Whether another device plugin offers the resource. Defaults to false: the node agent offers it.
        pub external_resource_provider: bool,
    }

    /// USB devices that VMIs may have.
    pub struct UsbHostDevice {
        /// Name of the resource, such as `example.com/storage`.
        pub resource_name: String,
        /// One USB device for each selector: a VMI gets all of them.
        pub selectors: Vec<UsbSelector>,
        /// Whether another device plugin offers the resource. Defaults to false: the node agent offers it.
        pub external_resource_provider: bool,
    }

    /// Selects a USB device.
    pub struct UsbSelector {
        /// Vendor ID, in hexadecimal: `46f4`.
        pub vendor: String,
        /// Product ID, in hexadecimal: `0001`.
        pub product: String,
    }

    /// Settings of architectures.
    pub struct ArchConfiguration {
        /// Settings of VMIs with the architecture `amd64`.
        pub amd64: Option<ArchSpecificConfiguration>,
    }

    /// Settings of VMIs with an architecture.
    pub struct ArchSpecificConfiguration {
        /// Machine type of VMIs that do not set one: `q35`, or a version of it, such as `pc-q35-9.0`.
        pub machine_type: String,
        /// Patterns of the machine types that VMIs may have, such as `pc-q35-9.*`. Defaults to `q35*` and `pc-q35*`.
        pub emulated_machines: Vec<String>,
    }

    /// Network settings of VMIs.
    pub struct NetworkConfiguration {
        /// Binding of the interface on the pod network that VMIs without interfaces get: `bridge` or `masquerade`, which
        /// is the default.
        pub default_network_interface: String,
        /// Permits the binding `bridge` on the pod network. Defaults to true.
        pub permit_bridge_interface_on_pod_network: Option<bool>,
    }

    /// Devices and features of VMIs.
    pub struct VirtualMachineOptions {
        /// Has memory balloons give no free pages of guests back to nodes, in VMIs that are started afterwards.
        pub disable_free_page_reporting: Option<DisableFreePageReporting>,
    }

    /// Has memory balloons give no free pages of guests back to nodes.
    pub struct DisableFreePageReporting {}

    /// Resource requirements of a type of containers beside the launcher.
    pub struct SupportContainerResources {
        /// Type of the containers: `container-disk` or `guest-console-log`.
        pub r#type: String = "type",
        /// Resource requirements of the containers. Those that are not set have their default.
        pub resources: SupportContainerRequirements,
    }

    /// Resource requirements of a container.
    pub struct SupportContainerRequirements {
        /// Minimum amount of resources required: `cpu` and `memory`.
        pub requests: BTreeMap<String, Quantity>,
        /// Maximum amount of resources allowed: `cpu` and `memory`.
        pub limits: BTreeMap<String, Quantity>,
    }

    /// Configuration for development and tests.
    pub struct DeveloperConfiguration {
        /// Feature gates to enable. Features that are not available are named by the condition
        /// `UnsupportedConfiguration`; all others are always enabled.
        pub feature_gates: Vec<String>,
        /// Feature gates to disable, also if `featureGates` has them: what they enable is refused in new VMs and VMIs.
        pub disabled_feature_gates: Vec<String>,
        /// Percent of its capacity that a disk in the file system of a PersistentVolumeClaim may lack when it is made, where
        /// the file system has less space. Defaults to 10.
        pub pvc_tolerate_less_space_up_to_percent: Option<i64> = "pvcTolerateLessSpaceUpToPercent",
        /// Bytes of the file system of a PersistentVolumeClaim that stay free when a disk is made in it. Defaults to
        /// 131072.
        pub minimum_reserve_pvc_bytes: Option<i64> = "minimumReservePVCBytes",
        /// Number of vCPUs that share a CPU of the node, unless a VMI sets its CPU request or limit. Defaults to 10.
        pub cpu_allocation_ratio: Option<i64>,
        /// Guest memory in percent of the memory that is requested for it, unless a VMI sets its memory request. Defaults
        /// to 100.
        pub memory_overcommit: Option<i64>,
        /// Labels that a node must have for VMIs to be scheduled to it. The node selector of a VMI takes precedence.
        pub node_selectors: BTreeMap<String, String>,
        /// Whether VirtualMachineInstances run on nodes without KVM, where they are emulated.
        pub use_emulation: bool,
        /// Verbosity of the components' logs.
        pub log_verbosity: Option<LogVerbosity>,
    }

    /// Verbosity of the components' logs, from 0 to 9: 4 and more log debugging messages, 6 and more traces. Defaults
    /// to 2.
    pub struct LogVerbosity {
        /// Verbosity of virt-api.
        pub virt_api: Option<u32> = "virtAPI",
        /// Verbosity of virt-controller.
        pub virt_controller: Option<u32>,
        /// Verbosity of virt-handler.
        pub virt_handler: Option<u32>,
        /// Verbosity of virt-launcher, in launcher pods that are created afterwards.
        pub virt_launcher: Option<u32>,
        /// Verbosity of virt-operator.
        pub virt_operator: Option<u32>,
        /// Verbosity of virt-handler on nodes, by their names; in place of `virtHandler`.
        pub node_verbosity: BTreeMap<String, u32>,
    }

    /// Placement and number of components.
    pub struct ComponentConfig {
        /// Nodes on which the components run.
        pub node_placement: Option<NodePlacement>,
        /// Number of replicas of each component; at least 1. Defaults to 2, and to 1 in a cluster of one node. It has
        /// no effect on virt-handler.
        pub replicas: Option<u32>,
    }

    /// Nodes on which components run.
    pub struct NodePlacement {
        /// Labels that a node must have.
        pub node_selector: BTreeMap<String, String>,
        /// Scheduling constraints.
        pub affinity: Option<Affinity>,
        /// Taints that are tolerated, beside those that components tolerate by themselves.
        pub tolerations: Vec<Toleration>,
    }

    /// What is done with VirtualMachineInstances whose launcher is of another release than the components.
    pub struct KubeVirtWorkloadUpdateStrategy {
        /// Methods of replacing their launchers. `Evict` evicts the launcher pods, which shuts the guests down;
        /// VirtualMachines that are to run are then started with the current launcher. `LiveMigrate` has no effect.
        /// Without a method, launchers stay until their guests end.
        pub workload_update_methods: Vec<String>,
        /// Number of launcher pods that are evicted at a time; at least 1. Defaults to 10.
        pub batch_eviction_size: Option<i64>,
        /// Time between the evictions of two batches, such as `1m30s`. Defaults to `1m`.
        pub batch_eviction_interval: Option<String>,
    }

    /// How long certificates of the components live.
    pub struct KubeVirtCertificateRotateStrategy {
        /// Certificates of an authority that virt-operator makes.
        pub self_signed: Option<KubeVirtSelfSignConfiguration>,
    }

    /// Certificates of an authority that virt-operator makes.
    pub struct KubeVirtSelfSignConfiguration {
        /// The authority. It lives for a year by default.
        pub ca: Option<CertConfig>,
        /// Certificates of the components. They live for 90 days by default.
        pub server: Option<CertConfig>,
    }

    /// How long certificates live.
    pub struct CertConfig {
        /// Time from the creation of a certificate until it expires, such as `720h`.
        pub duration: String,
        /// Time before its expiration at which a certificate is replaced. Defaults to a fifth of the duration.
        pub renew_before: String,
    }

    /// Changes of what is installed.
    pub struct CustomizeComponents {
        /// Patches, applied in their order.
        pub patches: Vec<CustomizeComponentsPatch>,
        /// Flags of the components' command lines.
        pub flags: Option<Flags>,
    }

    /// A patch of an installed object.
    pub struct CustomizeComponentsPatch {
        /// Kind of the object, such as `Deployment`.
        pub resource_type: String,
        /// Name of the object.
        pub resource_name: String,
        /// The patch, in JSON.
        pub patch: String,
        /// Type of the patch: `json`, `merge` or `strategic`.
        pub r#type: String = "type",
    }

    /// Flags of the components' command lines, without their dashes. A flag without a value has an empty one.
    pub struct Flags {
        /// Flags of virt-api.
        pub api: BTreeMap<String, String>,
        /// Flags of virt-controller.
        pub controller: BTreeMap<String, String>,
        /// Flags of virt-handler.
        pub handler: BTreeMap<String, String>,
    }

    /// Most recently observed status of an installation.
    pub struct KubeVirtStatus {
        /// Phase of the installation: `Deploying`, `Deployed`, `Deleting` or `Deleted`.
        pub phase: String,
        /// Current conditions of the installation: `Available`, `Progressing`, `Degraded`, `Created`, `Synchronized`
        /// and `UnsupportedConfiguration`.
        pub conditions: Vec<Condition> => ListType::Map(&["type"]),
        /// Version of virt-operator.
        pub operator_version: String,
        /// Registry of the images that are to be installed.
        pub target_kube_virt_registry: String,
        /// Version that is to be installed.
        pub target_kube_virt_version: String,
        /// Identifier of what is to be installed.
        pub target_deployment_id: String = "targetDeploymentID",
        /// Registry of the images that are installed.
        pub observed_kube_virt_registry: String,
        /// Version that is installed.
        pub observed_kube_virt_version: String,
        /// Identifier of what is installed.
        pub observed_deployment_id: String = "observedDeploymentID",
        /// Generation of the specification that is installed.
        pub observed_generation: Option<i64>,
        /// Architecture of VirtualMachineInstances that do not say.
        pub default_architecture: String,
        /// Number of running VirtualMachineInstances whose launcher is of another release than the components.
        pub outdated_virtual_machine_instance_workloads: Option<i64>,
    }
}
