//! KubeVirt's, which become part of `admin`, `edit` and `view`.

use serde_json::Value;
use vireo_api::names::NAMESPACE;
use vireo_apiserver::rbac::defaults::{
    Default, READ, TO_ADMIN, TO_EDIT, TO_VIEW, all_verbs, bind_to_known, bind_to_service_account,
    bind_to_user, role, rule,
};

/// Namespace and name of virt-api's ServiceAccount.
pub const VIRT_API: (&str, &str) = (NAMESPACE, "virt-api");
/// Namespace and name of virt-controller's ServiceAccount.
pub const VIRT_CONTROLLER: (&str, &str) = (NAMESPACE, "virt-controller");
/// Namespace and name of virt-handler's ServiceAccount.
pub const VIRT_HANDLER: (&str, &str) = (NAMESPACE, "virt-handler");
/// Namespace and name of the ServiceAccount of the provisioner of this host's storage.
pub const LOCAL_PROVISIONER: (&str, &str) = (NAMESPACE, "local-provisioner");
/// Namespace and name of the ServiceAccount that projects files of objects into volumes where there is no kubelet.
pub const LOCAL_KUBELET: (&str, &str) = (NAMESPACE, "local-kubelet");
/// The user as which instances are placed; Kubernetes'.
pub const SCHEDULER: &str = "system:kube-scheduler";
/// virt-api's ClusterRole, by KubeVirt's name.
const API_ROLE: &str = "kubevirt-apiserver";
/// virt-controller's ClusterRole, by KubeVirt's name.
const CONTROLLER_ROLE: &str = "kubevirt-controller";
/// virt-handler's ClusterRole, by KubeVirt's name.
const HANDLER_ROLE: &str = "kubevirt-handler";
const GROUP: &str = "kubevirt.io";
const SUBRESOURCES: &str = "subresources.kubevirt.io";
const INSTANCETYPES: &str = "instancetype.kubevirt.io";
const POOLS: &str = "pool.kubevirt.io";
const OURS: (&str, &str) = ("kubevirt.io", "");
const LABELS: [(&str, &str); 1] = [OURS];

const WORKLOADS: [&str; 3] =
    ["virtualmachineinstancereplicasets", "virtualmachineinstances", "virtualmachines"];
const CHOICES: [&str; 4] = [
    "virtualmachineclusterinstancetypes",
    "virtualmachineclusterpreferences",
    "virtualmachineinstancetypes",
    "virtualmachinepreferences",
];
/// What shows nothing that a guest would mind.
const READ_SUBRESOURCES: [&str; 6] = [
    "virtualmachineinstances/filesystemlist",
    "virtualmachineinstances/guestosinfo",
    "virtualmachineinstances/objectgraph",
    "virtualmachineinstances/userlist",
    "virtualmachines/expand-spec",
    "virtualmachines/objectgraph",
];
/// What is read by those who have what lets one into a guest, and is refused with a reason.
const UNSERVED_READS: [&str; 3] = [
    "virtualmachineinstances/sev/fetchcertchain",
    "virtualmachineinstances/sev/querylaunchmeasurement",
    "virtualmachineinstances/vsock",
];
/// Requests that are refused with a reason, as far as KubeVirt lets those who edit send them.
const UNSERVED_UPDATES: [&str; 5] = [
    "virtualmachineinstances/backup",
    "virtualmachineinstances/sev/injectlaunchsecret",
    "virtualmachineinstances/sev/setupsession",
    "virtualmachines/evacuate/cancel",
    "virtualmachines/migrate",
];
/// What lets one into a guest.
const CONNECT_SUBRESOURCES: [&str; 6] = [
    "virtualmachineinstances/console",
    "virtualmachineinstances/portforward",
    "virtualmachineinstances/usbredir",
    "virtualmachineinstances/vnc",
    "virtualmachineinstances/vnc/screenshot",
    "virtualmachines/portforward",
];
/// Requests that change how a VM or a VMI runs.
const UPDATE_SUBRESOURCES: [&str; 16] = [
    "virtualmachineinstances/addvolume",
    "virtualmachineinstances/freeze",
    "virtualmachineinstances/pause",
    "virtualmachineinstances/removevolume",
    "virtualmachineinstances/reset",
    "virtualmachineinstances/softreboot",
    "virtualmachineinstances/unfreeze",
    "virtualmachineinstances/unpause",
    "virtualmachines/addvolume",
    "virtualmachines/memorydump",
    "virtualmachines/removememorydump",
    "virtualmachines/removevolume",
    "virtualmachines/restart",
    "virtualmachines/start",
    "virtualmachines/stop",
    "expand-vm-spec",
];

pub(super) fn all() -> Vec<Default> {
    let all_but_collections: Vec<&str> =
        all_verbs().into_iter().filter(|verb| *verb != "deletecollection").collect();
    vec![
        role(
            "kubevirt.io:default",
            &LABELS,
            &[
                rule(&["get", "list"], GROUP, &["kubevirts"]),
                rule(&["get", "list"], SUBRESOURCES, &["guestfs", "version"]),
            ],
        ),
        bind_to_known("kubevirt.io:default", &LABELS),
        role("kubevirt.io:admin", &[OURS, (TO_ADMIN, "true")], &full(&all_verbs())),
        role("kubevirt.io:edit", &[OURS, (TO_EDIT, "true")], &full(&all_but_collections)),
        role(
            "kubevirt.io:view",
            &[OURS, (TO_VIEW, "true")],
            &[
                rule(&READ, GROUP, &WORKLOADS),
                rule(&READ, POOLS, &["virtualmachinepools"]),
                rule(&READ, INSTANCETYPES, &CHOICES),
                rule(&["get"], SUBRESOURCES, &READ_SUBRESOURCES),
                rule(&["update"], SUBRESOURCES, &["expand-vm-spec"]),
                rule(&["get"], GROUP, &["virtualmachineinstancereplicasets/scale"]),
                rule(&["get"], POOLS, &["virtualmachinepools/scale"]),
            ],
        ),
        role("instancetype.kubevirt.io:view", &LABELS, &[rule(&READ, INSTANCETYPES, &CHOICES[..2])]),
        bind_to_known("instancetype.kubevirt.io:view", &LABELS),
        role(API_ROLE, &LABELS, &api()),
        bind_to_service_account(API_ROLE, &LABELS, VIRT_API),
        role(CONTROLLER_ROLE, &LABELS, &controller()),
        bind_to_service_account(CONTROLLER_ROLE, &LABELS, VIRT_CONTROLLER),
        role(LOCAL_PROVISIONER.1, &LABELS, &provisioner()),
        bind_to_service_account(LOCAL_PROVISIONER.1, &LABELS, LOCAL_PROVISIONER),
        role(LOCAL_KUBELET.1, &LABELS, &kubelet()),
        bind_to_service_account(LOCAL_KUBELET.1, &LABELS, LOCAL_KUBELET),
        role(HANDLER_ROLE, &LABELS, &handler()),
        bind_to_service_account(HANDLER_ROLE, &LABELS, VIRT_HANDLER),
        role(SCHEDULER, &LABELS, &scheduler()),
        bind_to_user(SCHEDULER, &LABELS, SCHEDULER),
    ]
}

/// What virt-api needs.
fn api() -> Vec<Value> {
    vec![
        rule(&["get", "patch"], GROUP, &["virtualmachines", "virtualmachineinstances"]),
        rule(&["patch"], GROUP, &["virtualmachines/status", "virtualmachineinstances/status"]),
        rule(&["list", "watch"], GROUP, &["kubevirts"]),
        rule(&["get"], INSTANCETYPES, &CHOICES),
        rule(&["get"], "apps", &["controllerrevisions"]),
        rule(&["get"], "", &["persistentvolumeclaims"]),
        rule(&["list"], "", &["pods"]),
        rule(&["create", "patch"], "", &["events"]),
    ]
}

/// What the node agent needs.
fn handler() -> Vec<Value> {
    vec![
        rule(&["get", "list", "patch", "watch"], GROUP, &["virtualmachineinstances"]),
        rule(&["patch"], GROUP, &["virtualmachineinstances/status"]),
        rule(&["list", "watch"], GROUP, &["kubevirts"]),
        rule(&["create", "patch"], "", &["events"]),
        rule(&["create", "get", "list", "patch", "watch"], "", &["nodes"]),
        rule(&["patch"], "", &["nodes/status"]),
        rule(&["delete", "list", "watch"], "", &["pods"]),
        rule(&["patch"], "", &["pods/status"]),
    ]
}

/// What placement needs.
fn scheduler() -> Vec<Value> {
    vec![
        rule(&["list", "watch"], "", &["nodes", "pods"]),
        rule(&["create"], "", &["pods/binding"]),
        rule(&["patch"], "", &["pods/status"]),
        rule(&["create", "patch"], "", &["events"]),
    ]
}

/// The finalizers of what virt-controller makes objects for.
const OWNERS: [&str; 3] = [
    "virtualmachineinstancereplicasets/finalizers",
    "virtualmachineinstances/finalizers",
    "virtualmachines/finalizers",
];

/// What virt-controller needs, for the controllers that use its client.
fn controller() -> Vec<Value> {
    vec![
        rule(&["list", "watch"], GROUP, &["kubevirts"]),
        rule(&["patch"], GROUP, &["kubevirts/status"]),
        rule(&["list", "watch"], GROUP, &["virtualmachineinstancereplicasets"]),
        rule(&["patch"], GROUP, &["virtualmachineinstancereplicasets/status"]),
        rule(&["create", "delete", "list", "patch", "watch"], GROUP, &["virtualmachineinstances"]),
        rule(&["create", "delete", "list", "patch", "watch"], "", &["pods"]),
        rule(&["create"], "", &["pods/eviction"]),
        rule(&["create", "get", "list", "watch"], "", &["persistentvolumeclaims"]),
        rule(&["get"], "k8s.cni.cncf.io", &["network-attachment-definitions"]),
        rule(&["create", "list", "watch"], "cdi.kubevirt.io", &["datavolumes"]),
        // CDI asks whether the creator of a clone may have it; virt-controller asks before that for the VM.
        rule(&["create"], "cdi.kubevirt.io", &["datavolumes/source"]),
        rule(&["get"], "cdi.kubevirt.io", &["datasources"]),
        rule(&["create"], "authorization.k8s.io", &["subjectaccessreviews"]),
        rule(&["list", "patch", "watch"], "", &["nodes"]),
        // Their labels and quotas decide which limits launchers get.
        rule(&["get"], "", &["namespaces"]),
        rule(&["list"], "", &["resourcequotas"]),
        // Those of a launcher Pod that waits on its node say why.
        rule(&["create", "list", "patch"], "", &["events"]),
        rule(&["create", "delete", "list", "patch", "watch"], GROUP, &["virtualmachines"]),
        rule(&["patch"], GROUP, &["virtualmachines/status"]),
        rule(&["get"], GROUP, &["virtualmachineinstances"]),
        rule(&["patch"], GROUP, &["virtualmachineinstances/status"]),
        // Some clusters let only those who may write an object's finalizers have its deletion wait for others.
        rule(&["update"], GROUP, &OWNERS),
        rule(&["update"], POOLS, &["virtualmachinepools/finalizers"]),
        rule(&["list", "watch"], INSTANCETYPES, &CHOICES),
        rule(&["create", "delete", "list", "watch"], "apps", &["controllerrevisions"]),
        rule(&["list", "watch"], POOLS, &["virtualmachinepools"]),
        rule(&["patch"], POOLS, &["virtualmachinepools/status"]),
    ]
}

/// What the provisioner needs.
fn provisioner() -> Vec<Value> {
    vec![
        rule(&["list", "patch", "watch"], "", &["persistentvolumeclaims"]),
        rule(&["create", "delete", "list", "patch", "watch"], "", &["persistentvolumes"]),
        rule(&["patch"], "", &["persistentvolumeclaims/status", "persistentvolumes/status"]),
        rule(&["list", "watch"], GROUP, &["virtualmachineinstances"]),
        rule(&["create", "patch"], "", &["events"]),
    ]
}

/// What is needed to project files into volumes, as a kubelet does; it also waits for objects to appear.
fn kubelet() -> Vec<Value> {
    vec![
        rule(&["get", "list", "watch"], "", &["configmaps", "secrets"]),
        rule(&["get", "list", "watch"], "", &["serviceaccounts"]),
        rule(&["create"], "", &["serviceaccounts/token"]),
        rule(&["list"], "", &["pods"]),
    ]
}

/// All requests to VMs and VMIs, and these verbs for their objects.
fn full(verbs: &[&str]) -> Vec<Value> {
    let scaled = ["get", "patch", "update"];
    vec![
        rule(verbs, GROUP, &WORKLOADS),
        rule(verbs, POOLS, &["virtualmachinepools"]),
        rule(verbs, INSTANCETYPES, &CHOICES),
        rule(
            &["get"],
            SUBRESOURCES,
            &[&CONNECT_SUBRESOURCES[..], &READ_SUBRESOURCES, &UNSERVED_READS].concat(),
        ),
        rule(&["update"], SUBRESOURCES, &[&UPDATE_SUBRESOURCES[..], &UNSERVED_UPDATES].concat()),
        rule(&scaled, GROUP, &["virtualmachineinstancereplicasets/scale"]),
        rule(&scaled, POOLS, &["virtualmachinepools/scale"]),
    ]
}
