//! The configuration of a cluster: `spec.configuration` of its KubeVirt object, with the defaults of what it does not set.

mod components;
pub mod feature_gates;
mod live;
mod support;

use std::collections::BTreeMap;

use vireo_api::cpu;
use vireo_api::spec::{
    Cause, Field, MilliCpus, PermittedHostDevices, is_dns_subdomain, is_machine_type, is_smbios_text,
    label_selector_problems,
};
use vireo_api::v1::{
    DeveloperConfiguration, KubeVirtConfiguration, LabelSelector, NetworkConfiguration, Quantity,
    SMBiosConfiguration,
};

pub use components::{Components, MANUAL};
pub use live::LiveConfig;
pub(crate) use live::oldest;
pub use support::{ContainerResources, SUPPORTED_TYPES};

use crate::Problem;

/// The machine type of VMIs that set none.
pub const MACHINE_TYPE: &str = "q35";
/// The architecture of VMIs that set none.
pub const ARCHITECTURE: &str = "amd64";
/// KubeVirt's `cpuRequest`, which leaves the request to `cpuAllocationRatio`.
const CPU_REQUEST: u64 = 100;
/// The most that a VMI can have, whose topology may depend on its request.
const MAX_CPU_REQUEST: u64 = 254_000;
const EVICTION_STRATEGIES: [&str; 4] = ["External", "LiveMigrate", "LiveMigrateIfPossible", "None"];
/// Bindings of interfaces.
const BRIDGE: &str = "bridge";
const MASQUERADE: &str = "masquerade";
/// Those of the interface that VMIs without interfaces get.
const BINDINGS: [&str; 2] = [BRIDGE, MASQUERADE];
/// When images may be pulled.
pub(crate) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// The longest SELinux type.
const MAX_SELINUX_TYPE: usize = 255;

/// Whether a path leads to something below the directory that it is relative to.
fn is_below(path: &str) -> bool {
    !path.contains('\0') && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// What becomes of references of VMs to instance types and preferences.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReferencePolicy {
    /// They stay.
    #[default]
    Reference,
    /// While a VM has no VMI, its template gets what they add, and they are removed, as
    /// [`is_replaced`](crate::instancetype::is_replaced) decides.
    Expand,
    /// The same, also where there is a ControllerRevision.
    ExpandAll,
}

impl ReferencePolicy {
    /// The policies by KubeVirt's names.
    const ALL: [(&str, Self); 3] =
        [("reference", Self::Reference), ("expand", Self::Expand), ("expandAll", Self::ExpandAll)];
}

/// What is configured for all VMIs of a cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterConfig {
    /// The machine type of VMIs that set none.
    pub machine_type: String,
    /// Patterns of the machine types that VMIs may have.
    pub emulated_machines: Vec<String>,
    /// The CPU model of VMIs that set none.
    pub cpu_model: String,
    /// The CPU request of VMIs that set none, where it does not depend on the vCPUs.
    pub cpu_request: Option<Quantity>,
    /// The eviction strategy of VMIs that set none.
    pub eviction_strategy: String,
    /// When the image of launcher Pods is pulled.
    pub image_pull_policy: String,
    /// The RuntimeClass of launcher Pods.
    pub runtime_class: Option<String>,
    /// The SELinux type of launcher Pods. Absent for that of the container runtime.
    pub selinux_type: Option<String>,
    /// The seccomp profile of launcher Pods, by its path on nodes. Absent for that of the container runtime.
    pub seccomp_profile: Option<String>,
    /// The StorageClass of the claims with the state of VMs beside their disks. Absent for the default one.
    pub state_storage_class: Option<String>,
    /// By what the memory beside the guest is multiplied.
    pub overhead_ratio: f64,
    /// How many vCPUs share a CPU of the node.
    pub cpu_allocation_ratio: u64,
    /// Guest memory in percent of what is requested for it.
    pub memory_overcommit: u64,
    /// Labels that nodes of VMIs must have.
    pub node_selectors: BTreeMap<String, String>,
    /// The binding of the interface on the pod network that VMIs without interfaces get.
    pub default_binding: &'static str,
    /// Whether VMIs may have a bridge on the pod network.
    pub permit_bridge_on_pod_network: bool,
    /// Whether VMIs run on nodes without KVM.
    pub use_emulation: bool,
    /// Devices of nodes that VMIs may have.
    pub permitted: PermittedHostDevices,
    /// Namespaces in which launchers of VMIs get a CPU limit.
    pub auto_cpu_limit: Option<LabelSelector>,
    /// What becomes of references of VMs to instance types and preferences.
    pub reference_policy: ReferencePolicy,
    /// Feature gates that are disabled, of those that are enabled otherwise.
    pub disabled_gates: Vec<&'static str>,
    /// The verbosity of the logs of launchers.
    pub launcher_verbosity: Option<u32>,
    /// Settings of the components themselves.
    pub components: Components,
    /// Resources of the containers of images.
    pub container_disk: ContainerResources,
    /// Resources of the container with the log of the serial console.
    pub console_log: ContainerResources,
    /// Resources of attachment Pods.
    pub hotplug_disk: ContainerResources,
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self {
            machine_type: MACHINE_TYPE.to_owned(),
            emulated_machines: ["q35*", "pc-q35*"].map(str::to_owned).into(),
            cpu_model: "host-model".to_owned(),
            cpu_request: None,
            eviction_strategy: "None".to_owned(),
            image_pull_policy: "IfNotPresent".to_owned(),
            runtime_class: None,
            selinux_type: None,
            seccomp_profile: None,
            state_storage_class: None,
            overhead_ratio: 1.0,
            cpu_allocation_ratio: 10,
            memory_overcommit: 100,
            node_selectors: BTreeMap::new(),
            default_binding: MASQUERADE,
            permit_bridge_on_pod_network: true,
            use_emulation: false,
            permitted: PermittedHostDevices::default(),
            auto_cpu_limit: None,
            reference_policy: ReferencePolicy::default(),
            disabled_gates: Vec::new(),
            launcher_verbosity: None,
            components: Components::default(),
            container_disk: ContainerResources::default(),
            console_log: ContainerResources::default(),
            hotplug_disk: ContainerResources::default(),
        }
    }
}

/// What is wrong with settings.
#[derive(Debug, Default)]
struct Findings(Vec<Problem>);

impl Findings {
    fn add(&mut self, cause: Cause, field: &Field, message: String) {
        self.0.push(Problem { cause, field: field.to_string(), message });
    }

    fn invalid(&mut self, field: &Field, value: &str, why: &str) {
        self.add(Cause::Invalid, field, format!("Invalid value: {value:?}: {why}"));
    }

    fn unsupported(&mut self, field: &Field, value: &str, supported: &[&str]) {
        self.0.push(Problem::unsupported_value(field.as_str(), value, supported));
    }

    /// A selector of labels that is set, and valid.
    fn selector(&mut self, field: &Field, given: Option<&LabelSelector>) -> Option<LabelSelector> {
        let given = given?;
        let problems = label_selector_problems(given, field);
        self.0.extend(problems.iter().map(|problem| Problem::at("", problem)));
        problems.is_empty().then(|| given.clone())
    }

    /// A text that is set, and that is one of those that are supported.
    fn one_of(&mut self, field: &Field, value: &str, supported: &[&str]) -> Option<String> {
        let is_supported = value.is_empty() || supported.contains(&value);
        if !is_supported {
            self.unsupported(field, value, supported);
        }
        Some(value.to_owned()).filter(|value| is_supported && !value.is_empty())
    }
}

impl ClusterConfig {
    /// Reads the configuration of a KubeVirt object: what is not valid is as if it were not set, and named by the problems.
    pub fn read(given: &KubeVirtConfiguration) -> (Self, Vec<Problem>) {
        let (mut config, mut found) = (Self::default(), Findings::default());
        let at = Field::new("spec.configuration");
        config.read_machine(given, &at, &mut found);
        if cpu::is_model(&given.cpu_model) {
            config.cpu_model.clone_from(&given.cpu_model);
        } else if !given.cpu_model.is_empty() {
            let why = "must be host-model, host-passthrough or a CPU model of QEMU";
            found.invalid(&at.at("cpuModel"), &given.cpu_model, why);
        }
        if !given.min_cpu_model.is_empty() && !cpu::is_named_model(&given.min_cpu_model) {
            let why = "must be a CPU model of QEMU";
            found.invalid(&at.at("minCPUModel"), &given.min_cpu_model, why);
        }
        if let Some(count) = given.virtual_machine_instances_per_node.filter(|count| *count < 1) {
            let message = format!("Invalid value: {count}: must be greater than or equal to 1");
            found.add(Cause::Invalid, &at.at("virtualMachineInstancesPerNode"), message);
        }
        if let Some(smbios) = &given.smbios {
            for (name, text) in smbios_texts(smbios) {
                if !is_smbios_text(text) {
                    let why = "must be one line of at most 256 bytes";
                    found.invalid(&at.at("smbios").at(name), text, why);
                }
            }
        }
        if let Some(request) = &given.cpu_request {
            match MilliCpus::try_from(request).map(MilliCpus::get) {
                Ok(CPU_REQUEST) => {}
                Ok(1..=MAX_CPU_REQUEST) => config.cpu_request = Some(request.clone()),
                _ => found.invalid(&at.at("cpuRequest"), request.as_str(), "must be above 0 and at most 254"),
            }
        }
        // An empty strategy is none of them.
        if let Some(strategy) = &given.eviction_strategy {
            match EVICTION_STRATEGIES.contains(&strategy.as_str()) {
                true => config.eviction_strategy.clone_from(strategy),
                false => found.unsupported(&at.at("evictionStrategy"), strategy, &EVICTION_STRATEGIES),
            }
        }
        let policy = found.one_of(&at.at("imagePullPolicy"), &given.image_pull_policy, &PULL_POLICIES);
        config.image_pull_policy = policy.unwrap_or(config.image_pull_policy);
        match given.default_runtime_class.as_str() {
            "" => {}
            name if is_dns_subdomain(name) => config.runtime_class = Some(name.to_owned()),
            name => found.invalid(&at.at("defaultRuntimeClass"), name, "must be the name of a RuntimeClass"),
        }
        config.read_confinement(given, &at, &mut found);
        match given.vm_state_storage_class.as_str() {
            "" => {}
            name if is_dns_subdomain(name) => config.state_storage_class = Some(name.to_owned()),
            name => found.invalid(&at.at("vmStateStorageClass"), name, "must be the name of a StorageClass"),
        }
        if let Some(ratio) = &given.additional_guest_memory_overhead_ratio {
            match ratio.parse::<f64>().ok().filter(|ratio| ratio.is_finite() && *ratio > 0.0) {
                Some(ratio) => config.overhead_ratio = ratio,
                None => {
                    let field = at.at("additionalGuestMemoryOverheadRatio");
                    found.invalid(&field, ratio, "must be a number above 0, such as 1.5");
                }
            }
        }
        if let Some(network) = &given.network {
            config.read_network(network, &at.at("network"), &mut found);
        }
        let (permitted, problems) =
            PermittedHostDevices::read(&given.permitted_host_devices, &at.at("permittedHostDevices"));
        config.permitted = permitted;
        found.0.extend(problems.iter().map(|problem| Problem::at("", problem)));
        config.read_support(&given.support_container_resources, &at, &mut found);
        config.read_components(given, &at, &mut found);
        let selector = given.auto_cpu_limit_namespace_label_selector.as_ref();
        config.auto_cpu_limit = found.selector(&at.at("autoCPULimitNamespaceLabelSelector"), selector);
        // Node agents read it.
        let ksm = given.ksm_configuration.as_ref().and_then(|ksm| ksm.node_label_selector.as_ref());
        found.selector(&at.at("ksmConfiguration").at("nodeLabelSelector"), ksm);
        let policy = given.instancetype.as_ref().and_then(|given| given.reference_policy.as_deref());
        let field = at.at("instancetype").at("referencePolicy");
        let names = ReferencePolicy::ALL.map(|(name, _)| name);
        let policy = found.one_of(&field, policy.unwrap_or_default(), &names);
        let policy = ReferencePolicy::ALL.iter().find(|(name, _)| policy.as_deref() == Some(name));
        config.reference_policy = policy.map(|(_, policy)| *policy).unwrap_or_default();
        if let Some(developer) = &given.developer_configuration {
            config.read_developer(developer, &at.at("developerConfiguration"), &mut found);
        }
        (config, found.0)
    }

    fn read_confinement(&mut self, given: &KubeVirtConfiguration, at: &Field, found: &mut Findings) {
        let is_type = |name: &str| {
            let is_known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
            name.len() <= MAX_SELINUX_TYPE && name.bytes().all(is_known)
        };
        match given.selinux_launcher_type.as_str() {
            "" => {}
            name if is_type(name) => self.selinux_type = Some(name.to_owned()),
            name => {
                let why = "must be a type of at most 255 letters, digits, '_', '.' and '-'";
                found.invalid(&at.at("selinuxLauncherType"), name, why);
            }
        }
        let profile = given.seccomp_configuration.as_ref();
        let profile = profile.and_then(|given| given.virtual_machine_instance_profile.as_ref());
        let Some(custom) = profile.and_then(|profile| profile.custom_profile.as_ref()) else { return };
        let field = at.at("seccompConfiguration").at("virtualMachineInstanceProfile").at("customProfile");
        match (custom.localhost_profile.as_deref(), custom.runtime_default_profile) {
            (None | Some(""), _) => {}
            (Some(path), true) => {
                let why = "must not be set with runtimeDefaultProfile";
                found.invalid(&field.at("localhostProfile"), path, why);
            }
            (Some(path), false) if is_below(path) => self.seccomp_profile = Some(path.to_owned()),
            (Some(path), false) => {
                let why = "must be a relative path without '..'";
                found.invalid(&field.at("localhostProfile"), path, why);
            }
        }
    }

    fn read_machine(&mut self, given: &KubeVirtConfiguration, at: &Field, found: &mut Findings) {
        let amd64 = given.architecture_configuration.as_ref().and_then(|one| one.amd64.as_ref());
        let amd64 = amd64.cloned().unwrap_or_default();
        let at_amd64 = at.at("architectureConfiguration").at("amd64");
        let of_architecture = (at_amd64.at("machineType"), &amd64.machine_type);
        // The deprecated field takes precedence, as in KubeVirt.
        let both = [of_architecture, (at.at("machineType"), &given.machine_type)];
        for (field, kind) in both.into_iter().filter(|(_, kind)| !kind.is_empty()) {
            match is_machine_type(kind) {
                true => self.machine_type.clone_from(kind),
                false => found.unsupported(&field, kind, &["q35"]),
            }
        }
        // As in KubeVirt, the deprecated field takes precedence.
        let (field, emulated) = match given.emulated_machines.as_slice() {
            [] => (at_amd64.at("emulatedMachines"), amd64.emulated_machines),
            deprecated => (at.at("emulatedMachines"), deprecated.to_vec()),
        };
        let before = found.0.len();
        for (index, pattern) in emulated.iter().enumerate() {
            if !["q35", "pc-q35"].iter().any(|kind| pattern.starts_with(kind)) {
                found.unsupported(&field.index(index), pattern, &["q35*", "pc-q35*"]);
            }
        }
        if emulated.is_empty() || found.0.len() > before {
            return;
        }
        let patterns = std::mem::replace(&mut self.emulated_machines, emulated);
        if !self.allows_machine(&self.machine_type) {
            let why =
                format!("must match the machine type of VMIs that set none, which is {}", self.machine_type);
            found.invalid(&field, &self.emulated_machines.join(", "), &why);
            self.emulated_machines = patterns;
        }
    }

    fn read_network(&mut self, given: &NetworkConfiguration, at: &Field, found: &mut Findings) {
        self.permit_bridge_on_pod_network = given.permit_bridge_interface_on_pod_network.unwrap_or(true);
        let field = at.at("defaultNetworkInterface");
        match found.one_of(&field, &given.default_network_interface, &BINDINGS).as_deref() {
            Some(BRIDGE) if !self.permit_bridge_on_pod_network => {
                let why = "must be masquerade where permitBridgeInterfaceOnPodNetwork is false";
                found.invalid(&field, BRIDGE, why);
            }
            Some(BRIDGE) => self.default_binding = BRIDGE,
            Some(_) | None => {}
        }
    }

    fn read_developer(&mut self, given: &DeveloperConfiguration, at: &Field, found: &mut Findings) {
        let mut above_0 = |name: &str, given: Option<i64>, default: u64| match given {
            None => default,
            Some(number) => match u64::try_from(number) {
                Ok(number @ 1..) => number,
                _ => {
                    let field = at.at(name);
                    let message = format!("Invalid value: {number}: must be greater than or equal to 1");
                    found.add(Cause::Invalid, &field, message);
                    default
                }
            },
        };
        self.cpu_allocation_ratio =
            above_0("cpuAllocationRatio", given.cpu_allocation_ratio, self.cpu_allocation_ratio);
        self.memory_overcommit = above_0("memoryOvercommit", given.memory_overcommit, self.memory_overcommit);
        let selector =
            LabelSelector { match_labels: given.node_selectors.clone(), ..LabelSelector::default() };
        let field = at.at("nodeSelectors");
        match label_selector_problems(&selector, &field).as_slice() {
            [] => self.node_selectors = selector.match_labels,
            problems => {
                problems.iter().for_each(|one| found.add(one.cause(), &field, one.message().to_owned()));
            }
        }
        self.use_emulation = given.use_emulation;
        let disabled = &given.disabled_feature_gates;
        self.disabled_gates = feature_gates::ENABLED
            .into_iter()
            .filter(|gate| disabled.iter().any(|disabled| disabled == gate))
            .collect();
        // Node agents read these.
        let percent = given.pvc_tolerate_less_space_up_to_percent;
        if let Some(percent) = percent.filter(|percent| !(0..=100).contains(percent)) {
            let message = format!("Invalid value: {percent}: must be from 0 to 100");
            found.add(Cause::Invalid, &at.at("pvcTolerateLessSpaceUpToPercent"), message);
        }
        if let Some(bytes) = given.minimum_reserve_pvc_bytes.filter(|bytes| *bytes < 0) {
            let message = format!("Invalid value: {bytes}: must be greater than or equal to 0");
            found.add(Cause::Invalid, &at.at("minimumReservePVCBytes"), message);
        }
        self.read_verbosity(given, at, found);
    }

    /// Whether VMIs may have a machine type.
    pub fn allows_machine(&self, machine: &str) -> bool {
        self.emulated_machines.iter().any(|pattern| matches(pattern, machine))
    }
}

/// The texts of SMBIOS, by their fields.
fn smbios_texts(smbios: &SMBiosConfiguration) -> [(&'static str, &str); 5] {
    [
        ("manufacturer", &smbios.manufacturer),
        ("product", &smbios.product),
        ("version", &smbios.version),
        ("sku", &smbios.sku),
        ("family", &smbios.family),
    ]
}

/// Whether a text matches a pattern, in which `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests;
