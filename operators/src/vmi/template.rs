//! The launcher Pod of an instance: a pure function of the instance.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, Pod, PodDNSConfig, PodSpec, ResourceRequirements, SELinuxOptions,
    SeccompProfile, SecurityContext, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde::Serialize;
use serde::de::DeserializeOwned;
use vireo_api::names::{
    COMPONENT_LABEL, COMPUTE, CREATED_BY_LABEL, DISKS_DIRECTORY, DISKS_VOLUME, DOMAIN_ANNOTATION,
    KVM_RESOURCE, LAUNCHER, LAUNCHER_IMAGE_ANNOTATION, NODE_LABEL, OUTDATED_LABEL, SOCKETS_DIRECTORY,
    SOCKETS_VOLUME, TRUSTED_POD_ANNOTATIONS, VHOST_VSOCK_RESOURCE, VMI_ID_LABEL, vmi_id,
};
use vireo_api::spec::HypervisorChoice;
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::Kind;
use vireo_client::program::log_level;

use super::claims::Claims;
use super::images::ImageDelivery;
use super::nodes;
use super::pod::OVERHEAD_ANNOTATION;
use super::quotas::NamespaceLimits;
use super::resources::{
    EPHEMERAL_STORAGE_NAME, EphemeralStorage, Requests, has_dedicated_cpus, host_devices, others,
};
use super::volumes::{empty_dir, mount};
use crate::config::ClusterConfig;

/// Seconds that a launcher gets to end beyond the grace period of its guest, as KubeVirt gives it.
const END_MARGIN: i64 = 30;
/// The grace period of guests that do not say, in seconds.
const DEFAULT_GRACE: i64 = 30;
/// The longest beginning of a Pod's name that is the name of its instance.
const LONGEST_NAME: usize = 200;
/// The longest value of a label.
const LONGEST_LABEL: usize = 63;
/// The user of launchers in Pods; KubeVirt's.
pub(super) const USER: i64 = 107;
/// The socket of a launcher in a Pod.
const SOCKET: &str = "/var/run/vireo/launcher.sock";
/// Annotations of an instance that are about the instance alone begin so.
const OWN_ANNOTATIONS: [&str; 3] = [
    "kubectl.kubernetes.io/",
    "kubevirt.io/storage-observed-api-version",
    "kubevirt.io/latest-observed-api-version",
];

/// Who starts the launcher of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartedBy {
    /// The node agent, once the instance is handed over to it: the instance is handed over as soon as the Pod is bound.
    NodeAgent,
    /// The kubelet: the instance is handed over when the launcher runs.
    Kubelet,
}

/// What launcher Pods have in common.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// The image of the container `compute`.
    pub image: String,
    /// Who starts it.
    pub started_by: StartedBy,
    /// Who runs instances that do not say who is to run them.
    pub hypervisor: HypervisorChoice,
    /// Whether nodes run guests in hardware, unless the cluster has them emulated.
    pub has_kvm: bool,
}

impl Launcher {
    /// That of nodes with KVM, which choose who runs an instance.
    pub fn new(image: &str, started_by: StartedBy) -> Self {
        Self { image: image.to_owned(), started_by, hypervisor: HypervisorChoice::Auto, has_kvm: true }
    }
}

/// What a launcher Pod has beside what its instance says.
#[derive(Debug, Clone, Copy)]
pub struct PodInputs<'a> {
    /// The node that it is bound to from the start.
    pub node: Option<&'a str>,
    /// The claims that the instance starts with, where the kubelet starts launchers.
    pub claims: &'a Claims,
    /// How the kubelet delivers the files of images.
    pub images: ImageDelivery,
    /// What follows from the instance's namespace.
    pub limits: NamespaceLimits,
}

/// The launcher Pod of an instance.
///
/// # Errors
/// When a field of the instance is none of a Pod.
pub fn launcher_pod(
    vmi: &VirtualMachineInstance,
    launcher: &Launcher,
    config: &ClusterConfig,
    inputs: PodInputs<'_>,
) -> Result<Pod, serde_json::Error> {
    let PodInputs { node, claims, images, limits } = inputs;
    let spec = &vmi.spec;
    let requests = Requests::of(vmi, launcher, config);
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE).max(0);
    let by_kubelet = launcher.started_by == StartedBy::Kubelet;
    let mut command = ["/usr/bin/virt-launcher", "--socket", SOCKET].map(str::to_owned).to_vec();
    if by_kubelet {
        command.push("--landlock".to_owned());
        let writable = super::claims::writable_filesystems(vmi);
        command.extend(writable.flat_map(|directory| ["--writable".to_owned(), directory]));
        let level = config.launcher_verbosity.and_then(log_level);
        command.extend(level.into_iter().flat_map(|level| ["--log-level", level].map(str::to_owned)));
    }
    let mounts = || {
        let sockets = mount(SOCKETS_VOLUME, SOCKETS_DIRECTORY, false);
        // The kubelet makes only volumes that a container has.
        vec![sockets, mount(DISKS_VOLUME, DISKS_DIRECTORY, true)]
    };
    let volumes = || [SOCKETS_VOLUME, DISKS_VOLUME].map(empty_dir).into();
    let container = Container {
        name: COMPUTE.to_owned(),
        image: Some(launcher.image.clone()),
        image_pull_policy: by_kubelet.then(|| config.image_pull_policy.clone()),
        command: Some(command),
        volume_mounts: by_kubelet.then(mounts),
        security_context: by_kubelet.then(unprivileged),
        resources: Some(resources(vmi, &requests, limits, by_kubelet, config)),
        ..Container::default()
    };
    let mut pod = Pod {
        metadata: metadata(vmi, &requests),
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: by_kubelet.then(volumes),
            restart_policy: Some("Never".to_owned()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            hostname: text(&spec.hostname),
            subdomain: text(&spec.subdomain),
            dns_policy: text(&spec.dns_policy),
            dns_config: converted::<_, PodDNSConfig>(spec.dns_config.as_ref())?,
            scheduler_name: text(&spec.scheduler_name),
            priority_class_name: text(&spec.priority_class_name),
            service_account_name: text(super::projected::service_account(vmi)),
            termination_grace_period_seconds: Some(grace.saturating_add(END_MARGIN)),
            node_name: node.map(str::to_owned),
            node_selector: Some(nodes::node_selector(vmi, config)),
            runtime_class_name: config.runtime_class.clone(),
            affinity: nodes::affinity(vmi, converted::<_, Affinity>(spec.affinity.as_ref())?),
            tolerations: converted::<_, Vec<Toleration>>(Some(&spec.tolerations))?,
            topology_spread_constraints: converted::<_, Vec<TopologySpreadConstraint>>(Some(
                &spec.topology_spread_constraints,
            ))?,
            ..PodSpec::default()
        }),
        status: None,
    };
    if let Some(spec) = pod.spec.as_mut().filter(|_| by_kubelet) {
        let image = (LAUNCHER_IMAGE_ANNOTATION.to_owned(), launcher.image.clone());
        pod.metadata.annotations.get_or_insert_default().extend([image]);
        spec.containers.extend(super::console_log::container(vmi, (&launcher.image, SOCKET), config));
        super::images::add(spec, vmi, &launcher.image, config, images);
        super::projected::add(spec, vmi);
        confine(spec, config);
        super::claims::add(&mut pod, vmi, claims);
        if has_dedicated_cpus(vmi) {
            guarantee(&mut pod);
        }
        if vmi.spec.domain.cpu.as_ref().is_some_and(|cpu| cpu.has_nodes_of_host()) {
            let_bind_memory(&mut pod);
        }
    }
    Ok(pod)
}

/// Sets the SELinux type and the seccomp profile that are configured, in place of the container runtime's.
fn confine(spec: &mut PodSpec, config: &ClusterConfig) {
    if let Some(name) = &config.selinux_type {
        let options = SELinuxOptions { type_: Some(name.clone()), ..SELinuxOptions::default() };
        spec.security_context.get_or_insert_default().se_linux_options = Some(options);
    }
    let Some(path) = &config.seccomp_profile else { return };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container.security_context.get_or_insert_default().seccomp_profile =
            Some(SeccompProfile { type_: "Localhost".to_owned(), localhost_profile: Some(path.clone()) });
    }
}

/// Has a Pod be of the QoS class Guaranteed, whose containers get CPUs for themselves: each requests what it is limited to.
/// That of the launcher is limited to what it requests.
fn guarantee(pod: &mut Pod) {
    const RESOURCES: [&str; 2] = ["cpu", "memory"];
    let Some(spec) = pod.spec.as_mut() else { return };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let resources = container.resources.get_or_insert_default();
        let (requests, limits) =
            (resources.requests.get_or_insert_default(), resources.limits.get_or_insert_default());
        for name in RESOURCES {
            if container.name == COMPUTE
                && let Some(request) = requests.get(name)
            {
                limits.insert(name.to_owned(), request.clone());
            } else if let Some(limit) = limits.get(name) {
                requests.insert(name.to_owned(), limit.clone());
            }
        }
    }
}

/// Has the container runtime's seccomp profile allow mbind(2), which it allows to containers with a capability. The launcher,
/// which is not root, does not have it: it is in its bounding set alone.
fn let_bind_memory(pod: &mut Pod) {
    let containers = pod.spec.as_mut().map(|spec| &mut spec.containers);
    for container in containers.into_iter().flatten().filter(|container| container.name == COMPUTE) {
        let context = container.security_context.get_or_insert_default();
        context.capabilities.get_or_insert_default().add = Some(vec!["SYS_NICE".to_owned()]);
    }
}

/// What the launcher requests of its node, and is limited to.
fn resources(
    vmi: &VirtualMachineInstance,
    requests: &Requests,
    of_namespace: NamespaceLimits,
    by_kubelet: bool,
    config: &ClusterConfig,
) -> ResourceRequirements {
    let pages = requests.huge_pages;
    let wanted = of_namespace.memory.map(|ratio| requests.memory_limit_of(ratio));
    let memory_limit = requests.memory_limit.or(wanted);
    let cpu_limit = of_namespace.cpu.then(|| super::resources::cpu_limit(vmi, requests)).flatten();
    let mut requests = BTreeMap::from([
        ("cpu".to_owned(), Quantity(format!("{}m", requests.cpu))),
        ("memory".to_owned(), Quantity(requests.memory.to_string())),
    ]);
    let mut limits = BTreeMap::new();
    if by_kubelet {
        let devices = host_devices(&vmi.spec.domain.devices).into_iter();
        limits.extend(devices.map(|(name, count)| (name.to_owned(), Quantity(count.to_string()))));
        let huge_pages =
            pages.map(|(page, bytes)| (format!("hugepages-{page}"), Quantity(bytes.to_string())));
        limits.extend(huge_pages);
        requests.extend(limits.clone());
        let storage = EphemeralStorage::of(vmi);
        requests.insert(EPHEMERAL_STORAGE_NAME.to_owned(), Quantity(storage.request.to_string()));
        let storage = storage.limit.map(|limit| (EPHEMERAL_STORAGE_NAME.to_owned(), limit));
        let of_nodes = storage.into_iter().chain(memory_limit.map(|limit| ("memory".to_owned(), limit)));
        limits.extend(of_nodes.map(|(name, limit)| (name, Quantity(limit.to_string()))));
        if vmi.spec.domain.devices.autoattach_vsock == Some(true) {
            limits.insert(VHOST_VSOCK_RESOURCE.to_owned(), Quantity("1".to_owned()));
        }
        // The request of a device is its limit. Without KVM, instances are emulated.
        if !config.use_emulation {
            limits.insert(KVM_RESOURCE.to_owned(), Quantity("1".to_owned()));
        }
        // What follows from the rest of the instance takes precedence, such as one KVM.
        let given = &vmi.spec.domain.resources;
        for (all, given) in [(&mut requests, &given.requests), (&mut limits, &given.limits)] {
            for (name, quantity) in others(given) {
                all.entry(name.clone()).or_insert_with(|| Quantity(quantity.0.clone()));
            }
        }
        limits.extend(given.limits.get("cpu").map(|limit| ("cpu".to_owned(), Quantity(limit.0.clone()))));
    }
    limits.extend(cpu_limit.map(|limit| ("cpu".to_owned(), Quantity(format!("{limit}m")))));
    ResourceRequirements {
        requests: Some(requests),
        limits: Some(limits).filter(|limits| !limits.is_empty()),
        ..ResourceRequirements::default()
    }
}

fn metadata(vmi: &VirtualMachineInstance, requests: &Requests) -> ObjectMeta {
    let vireo_api::v1::ObjectMeta { name, namespace, uid, labels, annotations, .. } = &vmi.metadata;
    let mut labels = labels.clone();
    labels.remove(NODE_LABEL);
    labels.remove(OUTDATED_LABEL);
    labels.extend([
        (COMPONENT_LABEL.to_owned(), LAUNCHER.to_owned()),
        (CREATED_BY_LABEL.to_owned(), uid.clone()),
        ("vm.kubevirt.io/name".to_owned(), label_value(name)),
        (VMI_ID_LABEL.to_owned(), vmi_id(name)),
    ]);
    // The node agent would take for virt-controller's what an instance that an earlier release accepted has of these.
    let is_own = |annotation: &str| {
        TRUSTED_POD_ANNOTATIONS.contains(&annotation)
            || OWN_ANNOTATIONS.iter().any(|own| annotation.starts_with(own))
    };
    let mut annotations: BTreeMap<String, String> = annotations
        .iter()
        .filter(|(name, _)| !is_own(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    annotations.extend([
        (DOMAIN_ANNOTATION.to_owned(), name.clone()),
        ("kubectl.kubernetes.io/default-container".to_owned(), COMPUTE.to_owned()),
        (OVERHEAD_ANNOTATION.to_owned(), requests.overhead.to_string()),
    ]);
    ObjectMeta {
        generate_name: Some(format!("{LAUNCHER}-{}-", shortened(name))),
        namespace: Some(namespace.clone()),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![OwnerReference {
            api_version: Kind::VMI.api_version(),
            kind: Kind::VMI.kind.to_owned(),
            name: name.clone(),
            uid: uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}

/// The name of an instance as a part of that of a Pod, which may be shorter and ends with a letter or a digit.
pub(super) fn shortened(name: &str) -> String {
    shortened_to(LONGEST_NAME, name)
}

fn shortened_to(longest: usize, name: &str) -> String {
    let short: String = name.chars().take(longest).collect();
    short.trim_end_matches(['-', '.']).to_owned()
}

/// A name as the value of a label, which may be shorter.
pub(super) fn label_value(name: &str) -> String {
    shortened_to(LONGEST_LABEL, name)
}

/// A user without any privilege: the node agent opens what the launcher needs.
pub(super) fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        read_only_root_filesystem: Some(true),
        run_as_group: Some(USER),
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..SecurityContext::default()
    }
}

/// What KubeVirt's API has in the same shape as Kubernetes'; nothing of what is empty.
fn converted<T: Serialize, U: DeserializeOwned>(value: Option<&T>) -> Result<Option<U>, serde_json::Error> {
    let Some(value) = value else { return Ok(None) };
    let value = serde_json::to_value(value)?;
    let is_empty = value.as_array().is_some_and(Vec::is_empty);
    if is_empty { Ok(None) } else { serde_json::from_value(value).map(Some) }
}

#[cfg(test)]
mod tests;
