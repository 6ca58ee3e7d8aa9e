//! Labels, annotations, finalizers and container names by which KubeVirt's components and their users find objects.

use sha2::{Digest as _, Sha256};

/// The namespace of the components and of the KubeVirt object; KubeVirt's.
pub const NAMESPACE: &str = "kubevirt";
/// The label of a VMI that names the node to which it is handed over.
pub const NODE_LABEL: &str = "kubevirt.io/nodeName";
/// The label of objects that virt-operator manages; Kubernetes'.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "virt-operator");
/// Label of nodes that says whether instances are scheduled to them; KubeVirt's.
pub const SCHEDULABLE_LABEL: &str = "kubevirt.io/schedulable";
/// How labels of nodes begin that name a CPU model which guests can have; KubeVirt's.
pub const CPU_MODEL_LABELS: &str = "cpu-model.node.kubevirt.io/";
/// How labels of nodes begin that name a CPU feature which guests can have; KubeVirt's.
pub const CPU_FEATURE_LABELS: &str = "cpu-feature.node.kubevirt.io/";
/// How labels of nodes begin that name a CPU model which guests can be migrated with; KubeVirt's.
pub const CPU_MODEL_MIGRATION_LABELS: &str = "cpu-model-migration.node.kubevirt.io/";
/// How labels of nodes begin that tell of the time stamp counter; KubeVirt's.
pub const CPU_TIMER_LABELS: &str = "cpu-timer.node.kubevirt.io/";
/// How labels of nodes begin that name the vendor of the CPUs; KubeVirt's.
pub const CPU_VENDOR_LABELS: &str = "cpu-vendor.node.kubevirt.io/";
/// How the label of nodes begins that names the CPU model nearest to theirs; KubeVirt's.
pub const HOST_MODEL_LABELS: &str = "host-model-cpu.node.kubevirt.io/";
/// How labels of nodes begin that name what their CPUs have beyond that model; KubeVirt's.
pub const HOST_MODEL_FEATURE_LABELS: &str = "host-model-required-features.node.kubevirt.io/";
/// How labels of nodes begin that name an enlightenment; KubeVirt's.
pub const HYPERV_LABELS: &str = "hyperv.node.kubevirt.io/";
/// How labels of nodes begin that name a machine type; KubeVirt's.
pub const MACHINE_TYPE_LABELS: &str = "machine-type.node.kubevirt.io/";
/// How the label of nodes begins that names the frequency of the time stamp counter; KubeVirt's.
pub const TSC_FREQUENCY_LABELS: &str = "scheduling.node.kubevirt.io/tsc-frequency-";
/// The label of nodes whose nearest CPU model is obsolete; KubeVirt's.
pub const OBSOLETE_HOST_MODEL_LABEL: &str = "node-labeller.kubevirt.io/obsolete-host-model";
/// The label of nodes with real-time tasks; KubeVirt's.
pub const REALTIME_LABEL: &str = "kubevirt.io/realtime";
/// A Node with this annotation keeps the labels of the labeller that it has; KubeVirt's.
pub const SKIP_LABELLER_ANNOTATION: &str = "node-labeller.kubevirt.io/skip-node";
/// The label of nodes whose kernel merges equal pages; KubeVirt's.
pub const KSM_ENABLED_LABEL: &str = "kubevirt.io/ksm-enabled";
/// The annotation of nodes on which the node agent has the kernel merge equal pages; KubeVirt's.
pub const KSM_MANAGED_ANNOTATION: &str = "kubevirt.io/ksm-handler-managed";
/// The node agent's labels of what a node's kubelet gives containers, and of whether instances are scheduled to it.
pub const NODE_AGENT_LABELS: [&str; 4] =
    [SCHEDULABLE_LABEL, CPU_MANAGER_LABEL, "kubevirt.io/cpumanager", KSM_ENABLED_LABEL];
/// The node agent's annotations of nodes.
pub const NODE_AGENT_ANNOTATIONS: [&str; 2] = [HEARTBEAT_ANNOTATION, KSM_MANAGED_ANNOTATION];
/// The node labeller's: labels of these names, and those that begin so up to a `/` or `-`.
const LABELLER: [&str; 12] = [
    CPU_FEATURE_LABELS,
    CPU_MODEL_LABELS,
    CPU_MODEL_MIGRATION_LABELS,
    CPU_TIMER_LABELS,
    CPU_VENDOR_LABELS,
    HOST_MODEL_LABELS,
    HOST_MODEL_FEATURE_LABELS,
    HYPERV_LABELS,
    MACHINE_TYPE_LABELS,
    OBSOLETE_HOST_MODEL_LABEL,
    REALTIME_LABEL,
    TSC_FREQUENCY_LABELS,
];

/// Whether a label of a node is the node labeller's.
pub fn is_node_labellers(label: &str) -> bool {
    LABELLER.iter().any(|labellers| match labellers.ends_with(['/', '-']) {
        true => label.starts_with(labellers),
        false => label == *labellers,
    })
}

/// Annotation of nodes with the time when the node agent was last heard of, as JSON; KubeVirt's.
pub const HEARTBEAT_ANNOTATION: &str = "kubevirt.io/heartbeat";
/// The finalizer that is held until nothing is left of a VMI.
pub const VMI_FINALIZER: &str = "kubevirt.io/foregroundDeleteVirtualMachine";
/// The label of Pods with the component of KubeVirt that they belong to.
pub const COMPONENT_LABEL: &str = "kubevirt.io";
/// The component of launcher Pods.
pub const LAUNCHER: &str = "virt-launcher";
/// The label of a launcher Pod with the UID of its VMI.
pub const CREATED_BY_LABEL: &str = "kubevirt.io/created-by";
/// The label of a launcher Pod by which Services select it: [`vmi_id`]; KubeVirt's.
pub const VMI_ID_LABEL: &str = "vmi.kubevirt.io/id";
/// The label of a VMI whose launcher runs another image than this release's; KubeVirt's.
pub const OUTDATED_LABEL: &str = "kubevirt.io/outdatedLauncherImage";
/// The annotation of a launcher Pod with the image that virt-controller gave it, which other admission may replace.
pub const LAUNCHER_IMAGE_ANNOTATION: &str = "vireo.io/launcher-image";
/// The annotation of a VMI with the generation of the VM that it is made from; KubeVirt's.
pub const GENERATION_ANNOTATION: &str = "kubevirt.io/vm-generation";
/// The annotation of a VMI with the names of the volumes that were plugged into it alone, separated by commas; KubeVirt's.
pub const EPHEMERAL_ANNOTATION: &str = "kubevirt.io/ephemeral-hotplug-volumes";
/// The annotation of a VMI with the file of the node agent's directory that it comes from, which is known after a restart even when
/// the file cannot be read.
pub const MANIFEST_ANNOTATION: &str = "vireo.io/manifest";
/// Annotations of launcher Pods and attachment Pods by which node agents find the VMI, its disks and its claims.
pub const TRUSTED_POD_ANNOTATIONS: [&str; 4] = [
    CLAIM_DISKS_ANNOTATION,
    ATTACHMENT_CLAIM_ANNOTATION,
    ATTACHMENT_VMI_ANNOTATIONS.0,
    ATTACHMENT_VMI_ANNOTATIONS.1,
];
/// Annotations of a VMI that components write, and no users: they are trusted, and a launcher Pod has most of its VMI's.
pub const RESERVED_VMI_ANNOTATIONS: [&str; 8] = [
    GENERATION_ANNOTATION,
    EPHEMERAL_ANNOTATION,
    MANIFEST_ANNOTATION,
    LAUNCHER_IMAGE_ANNOTATION,
    CLAIM_DISKS_ANNOTATION,
    ATTACHMENT_CLAIM_ANNOTATION,
    ATTACHMENT_VMI_ANNOTATIONS.0,
    ATTACHMENT_VMI_ANNOTATIONS.1,
];
/// The annotation of a launcher Pod with the name of its VMI.
pub const DOMAIN_ANNOTATION: &str = "kubevirt.io/domain";
/// The container of a launcher Pod in which the launcher runs.
pub const COMPUTE: &str = "compute";
/// The resource of nodes with KVM; KubeVirt's name.
pub const KVM_RESOURCE: &str = "devices.kubevirt.io/kvm";
/// The label of nodes that give containers CPUs for themselves; KubeVirt's.
pub const CPU_MANAGER_LABEL: &str = "cpumanager";
/// The resource of nodes with vhost-vsock; KubeVirt's name.
pub const VHOST_VSOCK_RESOURCE: &str = "devices.kubevirt.io/vhost-vsock";
/// The volume of a launcher Pod with the sockets by which the node agent reaches the launcher.
pub const SOCKETS_VOLUME: &str = "sockets";
/// Where a launcher in a Pod has that volume.
pub const SOCKETS_DIRECTORY: &str = "/var/run/vireo";
/// The volume of a launcher Pod with the disks of its VMI that end with it; KubeVirt's name. The kubelet counts what is in it
/// as ephemeral storage of the Pod.
pub const DISKS_VOLUME: &str = "ephemeral-disks";
/// Where a launcher in a Pod has that volume, in which it can write nothing; KubeVirt's directory.
pub const DISKS_DIRECTORY: &str = "/var/run/kubevirt-ephemeral-disks";
/// The volume of a launcher Pod with the sockets by which the node agent gets the files of images.
pub const IMAGES_VOLUME: &str = "images";
/// Where the containers of images have that volume.
pub const IMAGES_DIRECTORY: &str = "/var/run/vireo-images";
/// Where a launcher in a Pod has the images of disks and kernels that the kubelet mounts.
const IMAGE_MOUNTS: &str = "/var/run/kubevirt-private/images";
/// Where a launcher in a Pod has the file systems of claims; KubeVirt's directory.
pub const CLAIMS_DIRECTORY: &str = "/var/run/kubevirt-private/vmi-disks";
/// Where it has the block devices of claims.
const CLAIM_DEVICES: &str = "/dev/vmi-disks";
/// Where a launcher in a Pod has the files that Kubernetes projects from its objects.
const PROJECTED_DIRECTORY: &str = "/var/run/kubevirt-private/projected";
/// Where a launcher in a Pod has the file system with the VM's state beside its disks.
pub const STATE_DIRECTORY: &str = "/var/run/kubevirt-private/vm-state";
/// The persistent variables of EFI in it.
pub const EFI_VARIABLES: &str = "/var/run/kubevirt-private/vm-state/efi-variables.fd";
/// The persistent state of the TPM in it.
pub const TPM_STATE: &str = "/var/run/kubevirt-private/vm-state/tpm-state";
/// The annotation of a launcher Pod with the paths in it of the disks of claims. Each has the size in bytes of a disk that
/// has to be made, or null. [`EFI_VARIABLES`] and [`TPM_STATE`] are among them where the VM has state
/// that is kept.
pub const CLAIM_DISKS_ANNOTATION: &str = "vireo.io/claim-disks";
/// The value of [`COMPONENT_LABEL`] of Pods that are the first consumers of claims.
pub const CONSUMER: &str = "virt-consumer";
/// The component of attachment Pods, each of which holds a hotplugged claim on the node of its launcher Pod.
pub const ATTACHMENT: &str = "hotplug-disk";
/// The annotations of an attachment Pod with the name and the UID of its VMI.
pub const ATTACHMENT_VMI_ANNOTATIONS: (&str, &str) =
    ("kubevirt.io/owner-vmi-name", "kubevirt.io/owner-vmi-uid");
/// The annotation of an attachment Pod with the name of its claim.
pub const ATTACHMENT_CLAIM_ANNOTATION: &str = "vireo.io/claim";
/// The socket of the process in an attachment Pod, in the same volume as a launcher's.
pub const ATTACHMENT_SOCKET: &str = "attachment.sock";
/// Where an attachment Pod has the file system of its claim; KubeVirt's directory of hotplugged disks.
pub const HOTPLUG_DIRECTORY: &str = "/var/run/kubevirt/hotplug-disks";
/// Where it has the block device of its claim.
const HOTPLUG_DEVICES: &str = "/dev/hotplug-disks";
/// The container of a launcher Pod with the image of a kernel.
pub const KERNEL_BOOT_CONTAINER: &str = "kernel-boot-volume";

/// The longest value of a label.
const LONGEST_LABEL: usize = 63;
const DISK_CONTAINER_PREFIX: &str = "volume";

/// The interface of a Pod on the pod network.
pub const PRIMARY_POD_INTERFACE: &str = "eth0";
/// How many hexadecimal digits of a hash are in the name of an interface; KubeVirt's.
const INTERFACE_DIGITS: usize = 11;

/// The interface of a launcher Pod on a secondary network; KubeVirt's.
pub fn pod_interface(network: &str) -> String {
    let digest = Sha256::digest(network.as_bytes());
    let digits = digest.iter().flat_map(|byte| [byte >> 4, byte & 0xf]).take(INTERFACE_DIGITS);
    let digits = digits.filter_map(|digit| char::from_digit(digit.into(), 16));
    ["pod".to_owned(), digits.collect()].concat()
}

/// The value of [`VMI_ID_LABEL`]: the name of the VMI, else its beginning and a hash of it, as values of labels are short.
pub fn vmi_id(name: &str) -> String {
    if name.len() <= LONGEST_LABEL {
        return name.to_owned();
    }
    let digest = Sha256::digest(name.as_bytes());
    let hash: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let beginning: String = name.chars().take(LONGEST_LABEL - hash.len() - 1).collect();
    format!("{beginning}-{hash}")
}

/// The container of a launcher Pod with the image of a container disk.
pub fn disk_container(volume: &str) -> String {
    format!("{DISK_CONTAINER_PREFIX}{volume}")
}

/// The directory of an image that is a volume of the launcher's Pod. Its volume has the name of the container that another
/// Pod has for the image.
pub fn image_mount(container: &str) -> String {
    format!("{IMAGE_MOUNTS}/{container}")
}

/// The disk in the file system of a claim, in the launcher's Pod.
pub fn claim_disk(volume: &str) -> String {
    format!("{}/disk.img", claim_directory(volume))
}

/// Where the file system in a claim is, in the launcher's Pod.
pub fn claim_directory(volume: &str) -> String {
    format!("{CLAIMS_DIRECTORY}/{volume}")
}

/// The block device of a claim, in the launcher's Pod.
pub fn claim_device(volume: &str) -> String {
    format!("{CLAIM_DEVICES}/{volume}")
}

/// The directory of a volume's projected files, in the launcher's Pod.
pub fn projected_files(volume: &str) -> String {
    format!("{PROJECTED_DIRECTORY}/files/{volume}")
}

/// The directory of the Secret with the user data of a cloud-init volume, in the launcher's Pod.
pub fn user_data_secret(volume: &str) -> String {
    format!("{PROJECTED_DIRECTORY}/user-data/{volume}")
}

/// The directory of the Secret with the network data of a cloud-init volume, in the launcher's Pod.
pub fn network_data_secret(volume: &str) -> String {
    format!("{PROJECTED_DIRECTORY}/network-data/{volume}")
}

/// The directory of the Secret of an access credential by its position in the manifest, in the launcher's Pod.
pub fn access_credential(index: usize) -> String {
    format!("{PROJECTED_DIRECTORY}/access-credentials/{index}")
}

/// The disk in the file system of a hotplugged claim, in its attachment Pod.
pub fn hotplug_disk(claim: &str) -> String {
    format!("{HOTPLUG_DIRECTORY}/{claim}/disk.img")
}

/// The block device of a hotplugged claim, in its attachment Pod.
pub fn hotplug_device(claim: &str) -> String {
    format!("{HOTPLUG_DEVICES}/{claim}")
}

/// Whether a container of a launcher Pod has the image of a disk or of a kernel.
pub fn is_image_container(name: &str) -> bool {
    name.starts_with(DISK_CONTAINER_PREFIX) || name == KERNEL_BOOT_CONTAINER
}

/// The path of what a liveness probe asks a component.
pub const HEALTHZ: &str = "/healthz";
/// The path of what a readiness probe asks the node agent.
pub const READYZ: &str = "/readyz";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_vmis_are_values_of_labels() {
        assert_eq!(vmi_id("web"), "web");
        let (one, other) = ("a".repeat(200), format!("{}b", "a".repeat(199)));
        assert_eq!((vmi_id(&one).len(), vmi_id(&other).len()), (63, 63));
        assert_ne!(vmi_id(&one), vmi_id(&other));
    }
}
