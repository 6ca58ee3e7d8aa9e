//! The rows.

use serde_json::{Value, json};

use super::admit;
use super::claim;
use super::instancetype;
use super::machine;
use super::path;
use super::pool;
use super::replicaset;
use super::{Column, Resource, Source};
use crate::meta::{is_dns_label, is_dns_name};

const AGE: Column = column("Age", "date", 0, Source::Since(".metadata.creationTimestamp"));
/// Lists of every object that a strategic merge patch merges.
const OF_METADATA: [(&str, &str); 2] = [("metadata.finalizers", ""), ("metadata.ownerReferences", "uid")];
const PLAIN: Option<&[(&str, &str)]> = Some(&OF_METADATA);

const fn column(name: &'static str, kind: &'static str, priority: u8, source: Source) -> Column {
    Column { name, kind, priority, description: "", source }
}

/// What instance types and preferences have in common.
const CHOSEN: Resource = Resource {
    group: "instancetype.kubevirt.io",
    version: "v1beta1",
    plural: "",
    singular: "",
    kind: "",
    short_names: &[],
    categories: &[],
    namespaced: false,
    status: false,
    columns: &[AGE],
    fields: &[],
    merge: None,
    admit: admit::nothing,
    name_fits: is_dns_name,
};

/// Everything that is served.
pub static ALL: &[Resource] = &[
    Resource {
        group: "",
        version: "v1",
        plural: "namespaces",
        singular: "namespace",
        kind: "Namespace",
        short_names: &["ns"],
        categories: &[],
        namespaced: false,
        status: true,
        columns: &[column("Status", "string", 0, Source::Path(".status.phase")), AGE],
        fields: &["status.phase"],
        merge: PLAIN,
        admit: admit::namespace,
        name_fits: is_dns_label,
    },
    Resource {
        group: "",
        version: "v1",
        plural: "configmaps",
        singular: "configmap",
        kind: "ConfigMap",
        short_names: &["cm"],
        categories: &[],
        namespaced: true,
        status: false,
        columns: &[column("Data", "integer", 0, Source::Made(data)), AGE],
        fields: &[],
        merge: PLAIN,
        admit: admit::config_map,
        name_fits: is_dns_name,
    },
    Resource {
        group: "",
        version: "v1",
        plural: "secrets",
        singular: "secret",
        kind: "Secret",
        short_names: &[],
        categories: &[],
        namespaced: true,
        status: false,
        columns: &[
            column("Type", "string", 0, Source::Path(".type")),
            column("Data", "integer", 0, Source::Made(data)),
            AGE,
        ],
        fields: &["type"],
        merge: PLAIN,
        admit: admit::secret,
        name_fits: is_dns_name,
    },
    Resource {
        group: "",
        version: "v1",
        plural: "serviceaccounts",
        singular: "serviceaccount",
        kind: "ServiceAccount",
        short_names: &["sa"],
        categories: &[],
        namespaced: true,
        status: false,
        columns: &[column("Secrets", "integer", 0, Source::Made(secrets)), AGE],
        fields: &[],
        merge: Some(&[OF_METADATA[0], OF_METADATA[1], ("secrets", "name"), ("imagePullSecrets", "name")]),
        admit: admit::nothing,
        name_fits: is_dns_name,
    },
    Resource {
        group: "coordination.k8s.io",
        version: "v1",
        plural: "leases",
        singular: "lease",
        kind: "Lease",
        short_names: &[],
        categories: &[],
        namespaced: true,
        status: false,
        columns: &[column("Holder", "string", 0, Source::Path(".spec.holderIdentity")), AGE],
        fields: &[],
        merge: PLAIN,
        admit: admit::lease,
        name_fits: is_dns_name,
    },
    Resource {
        group: "",
        version: "v1",
        plural: "events",
        singular: "event",
        kind: "Event",
        short_names: &["ev"],
        categories: &[],
        namespaced: true,
        status: false,
        columns: &[
            column("Last Seen", "string", 0, Source::Since(".lastTimestamp")),
            column("Type", "string", 0, Source::Path(".type")),
            column("Reason", "string", 0, Source::Path(".reason")),
            column("Object", "string", 0, Source::Made(involved)),
            column("Message", "string", 0, Source::Path(".message")),
            column("Count", "integer", 1, Source::Path(".count")),
            column("Name", "string", 1, Source::Path(".metadata.name")),
        ],
        fields: &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        merge: PLAIN,
        admit: admit::event,
        name_fits: is_dns_name,
    },
    Resource {
        group: "",
        version: "v1",
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        kind: "PersistentVolumeClaim",
        short_names: &["pvc"],
        categories: &[],
        namespaced: true,
        status: true,
        columns: &[
            column("Status", "string", 0, Source::Made(claim::phase)),
            column("Volume", "string", 0, Source::Path(".spec.volumeName")),
            column("Capacity", "string", 0, Source::Path(".status.capacity.storage")),
            column("Access Modes", "string", 0, Source::Made(claim::modes)),
            column("StorageClass", "string", 0, Source::Path(".spec.storageClassName")),
            column("VolumeAttributesClass", "string", 0, Source::Made(|_| json!("<unset>"))),
            AGE,
            column("VolumeMode", "string", 1, Source::Path(".spec.volumeMode")),
        ],
        fields: &[],
        merge: Some(&[OF_METADATA[0], OF_METADATA[1], ("status.conditions", "type")]),
        admit: claim::admit,
        name_fits: is_dns_name,
    },
    Resource {
        group: "",
        version: "v1",
        plural: "nodes",
        singular: "node",
        kind: "Node",
        short_names: &["no"],
        categories: &[],
        namespaced: false,
        status: true,
        columns: &[
            column("Status", "string", 0, Source::Made(readiness)),
            column("Roles", "string", 0, Source::Made(|_| json!("<none>"))),
            AGE,
            column("Version", "string", 0, Source::Path(".status.nodeInfo.kubeletVersion")),
            column("OS-Image", "string", 1, Source::Path(".status.nodeInfo.osImage")),
            column("Kernel-Version", "string", 1, Source::Path(".status.nodeInfo.kernelVersion")),
        ],
        fields: &["spec.unschedulable"],
        merge: Some(&[
            OF_METADATA[0],
            OF_METADATA[1],
            ("spec.taints", "key"),
            ("status.addresses", "type"),
            ("status.conditions", "type"),
        ]),
        admit: admit::nothing,
        name_fits: is_dns_name,
    },
    Resource {
        group: "kubevirt.io",
        version: "v1",
        plural: "virtualmachineinstances",
        singular: "virtualmachineinstance",
        kind: "VirtualMachineInstance",
        short_names: &["vmi", "vmis"],
        categories: &["all"],
        namespaced: true,
        // As KubeVirt's: what users write there is put back.
        status: false,
        columns: &[
            AGE,
            column("Phase", "string", 0, Source::Path(".status.phase")),
            column("IP", "string", 0, Source::Path(".status.interfaces[0].ipAddress")),
            column("NodeName", "string", 0, Source::Path(".status.nodeName")),
            column("Ready", "string", 0, Source::Path(".status.conditions[?(@.type=='Ready')].status")),
            column(
                "Live-Migratable",
                "string",
                1,
                Source::Path(".status.conditions[?(@.type=='LiveMigratable')].status"),
            ),
            column("Paused", "string", 1, Source::Path(".status.conditions[?(@.type=='Paused')].status")),
        ],
        fields: &[],
        merge: None,
        admit: admit::vmi,
        name_fits: is_dns_name,
    },
    Resource {
        group: "kubevirt.io",
        version: "v1",
        plural: "virtualmachines",
        singular: "virtualmachine",
        kind: "VirtualMachine",
        short_names: &["vm", "vms"],
        categories: &["all"],
        namespaced: true,
        status: true,
        columns: &[
            AGE,
            Column {
                description: "Human Readable Status",
                ..column("Status", "string", 0, Source::Path(".status.printableStatus"))
            },
            column("Ready", "string", 0, Source::Path(".status.conditions[?(@.type=='Ready')].status")),
        ],
        fields: &[],
        merge: None,
        admit: machine::admit,
        name_fits: is_dns_name,
    },
    Resource {
        group: "kubevirt.io",
        version: "v1",
        plural: "virtualmachineinstancereplicasets",
        singular: "virtualmachineinstancereplicaset",
        kind: "VirtualMachineInstanceReplicaSet",
        short_names: &["vmirs", "vmirss"],
        categories: &["all"],
        namespaced: true,
        status: true,
        columns: &[
            Column {
                description: "Number of desired VirtualMachineInstances",
                ..column("Desired", "integer", 0, Source::Path(".spec.replicas"))
            },
            Column {
                description: "Number of managed and not final or deleted VirtualMachineInstances",
                ..column("Current", "integer", 0, Source::Path(".status.replicas"))
            },
            Column {
                description: "Number of managed VirtualMachineInstances which are ready to receive traffic",
                ..column("Ready", "integer", 0, Source::Path(".status.readyReplicas"))
            },
            AGE,
        ],
        fields: &[],
        merge: None,
        admit: replicaset::admit,
        name_fits: is_dns_name,
    },
    Resource {
        group: "pool.kubevirt.io",
        version: "v1beta1",
        plural: "virtualmachinepools",
        singular: "virtualmachinepool",
        kind: "VirtualMachinePool",
        short_names: &["vmpool", "vmpools"],
        categories: &["all"],
        namespaced: true,
        status: true,
        columns: &[
            Column {
                description: "Number of desired VirtualMachines",
                ..column("Desired", "integer", 0, Source::Path(".spec.replicas"))
            },
            Column {
                description: "Number of managed and not final or deleted VirtualMachines",
                ..column("Current", "integer", 0, Source::Path(".status.replicas"))
            },
            Column {
                description: "Number of managed VirtualMachines which are ready to receive traffic",
                ..column("Ready", "integer", 0, Source::Path(".status.readyReplicas"))
            },
            AGE,
        ],
        fields: &[],
        merge: None,
        admit: pool::admit,
        name_fits: is_dns_name,
    },
    Resource {
        plural: "virtualmachineinstancetypes",
        singular: "virtualmachineinstancetype",
        kind: "VirtualMachineInstancetype",
        short_names: &["vminstancetype", "vminstancetypes", "vmf", "vmfs"],
        categories: &["all"],
        namespaced: true,
        admit: instancetype::instancetype,
        ..CHOSEN
    },
    Resource {
        plural: "virtualmachineclusterinstancetypes",
        singular: "virtualmachineclusterinstancetype",
        kind: "VirtualMachineClusterInstancetype",
        short_names: &["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"],
        categories: &[],
        namespaced: false,
        admit: instancetype::cluster_instancetype,
        ..CHOSEN
    },
    Resource {
        plural: "virtualmachinepreferences",
        singular: "virtualmachinepreference",
        kind: "VirtualMachinePreference",
        short_names: &["vmpref", "vmprefs", "vmp", "vmps"],
        categories: &["all"],
        namespaced: true,
        admit: instancetype::preference,
        ..CHOSEN
    },
    Resource {
        plural: "virtualmachineclusterpreferences",
        singular: "virtualmachineclusterpreference",
        kind: "VirtualMachineClusterPreference",
        short_names: &["vmcp", "vmcps"],
        categories: &[],
        namespaced: false,
        admit: instancetype::cluster_preference,
        ..CHOSEN
    },
    Resource {
        group: "apps",
        version: "v1",
        plural: "controllerrevisions",
        singular: "controllerrevision",
        kind: "ControllerRevision",
        short_names: &[],
        categories: &[],
        namespaced: true,
        status: false,
        columns: &[
            column("Controller", "string", 0, Source::Path(".metadata.ownerReferences[0].name")),
            column("Revision", "integer", 0, Source::Path(".revision")),
            AGE,
        ],
        fields: &[],
        merge: PLAIN,
        admit: admit::nothing,
        name_fits: is_dns_name,
    },
];

fn data(object: &Value) -> Value {
    let count = |field| object.get(field).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    json!(count("data") + count("binaryData"))
}

fn secrets(object: &Value) -> Value {
    json!(object.get("secrets").and_then(Value::as_array).map_or(0, Vec::len))
}

fn involved(object: &Value) -> Value {
    let kind = path::text(object, ".involvedObject.kind").to_lowercase();
    json!(format!("{kind}/{}", path::text(object, ".involvedObject.name")))
}

fn readiness(object: &Value) -> Value {
    let ready = path::text(object, ".status.conditions[?(@.type=='Ready')].status") == "True";
    let word = if ready { "Ready" } else { "NotReady" };
    json!(match path::text(object, ".spec.unschedulable").as_str() {
        "true" => format!("{word},SchedulingDisabled"),
        _ => word.to_owned(),
    })
}
