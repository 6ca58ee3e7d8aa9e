//! The rows.

use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use super::admit;
use super::claim;
use super::definition;
use super::instancetype;
use super::machine;
use super::path;
use super::pool;
use super::replicaset;
use super::role;
use super::secret;
use super::volume;
use super::workload;
use super::{Column, Resource, Scale, Source, Text};
use crate::meta::{is_dns_label, is_dns_name};

/// Lists of every object that a strategic merge patch merges.
const OF_METADATA: [(&str, &str); 2] = [("metadata.finalizers", ""), ("metadata.ownerReferences", "uid")];
const PLAIN: Option<&[(&str, &str)]> = Some(&OF_METADATA);
const READY: &str = ".status.conditions[?(@.type=='Ready')].status";

/// A column that shows what is at a path.
pub(super) fn shown(name: &'static str, path: &'static str) -> Column {
    column(name, "string", Source::Path(path.into()))
}

/// The same for numbers.
fn number(name: &'static str, path: &'static str) -> Column {
    column(name, "integer", Source::Path(path.into()))
}

/// The same for times: how long ago.
fn since(name: &'static str, path: &'static str) -> Column {
    column(name, "date", Source::Since(path.into()))
}

/// A column that shows something else.
pub(super) fn made(name: &'static str, make: fn(&Value) -> Value) -> Column {
    column(name, "string", Source::Made(make))
}

pub(super) fn column(name: &'static str, kind: &'static str, source: Source) -> Column {
    Column { name: name.into(), kind: kind.into(), priority: 0, description: "".into(), source }
}

/// A column that is only shown when wide.
pub(super) fn wide(column: Column) -> Column {
    Column { priority: 1, ..column }
}

fn described(column: Column, description: &'static str) -> Column {
    Column { description: description.into(), ..column }
}

/// When an object was made.
pub(super) fn age() -> Column {
    since("Age", ".metadata.creationTimestamp")
}

pub(super) fn texts(words: &[&'static str]) -> Vec<Text> {
    words.iter().map(|word| Text::from(*word)).collect()
}

/// A row of `apiVersion` and `kind`, in namespaces; its other names follow from that.
fn row(group: &'static str, version: &'static str, kind: &'static str) -> Resource {
    let singular = kind.to_lowercase();
    Resource {
        group: group.into(),
        version: version.into(),
        plural: format!("{singular}s").into(),
        singular: singular.into(),
        kind: kind.into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        status: false,
        columns: vec![age()],
        fields: Vec::new(),
        merge: None,
        admit: admit::nothing,
        name_fits: is_dns_name,
        scale: None,
        custom: None,
    }
}

/// One of Kubernetes' own kinds.
pub(super) fn own(group: &'static str, kind: &'static str) -> Resource {
    Resource { merge: PLAIN, ..row(group, "v1", kind) }
}

/// A kind that `kubectl get all` shows.
fn among_all(row: Resource) -> Resource {
    Resource { categories: texts(&["all"]), ..row }
}

fn kubevirt(kind: &'static str) -> Resource {
    among_all(row("kubevirt.io", "v1", kind))
}

/// An instance type or a preference.
fn chosen(kind: &'static str) -> Resource {
    row("instancetype.kubevirt.io", "v1beta1", kind)
}

/// A set of `what`, which can be scaled.
fn set(of: Resource, what: &str) -> Resource {
    let said = |text: &str| Text::from(text.replace("{}", what));
    let described = |column, text| Column { description: said(text), ..column };
    Resource {
        status: true,
        columns: vec![
            described(number("Desired", ".spec.replicas"), "Number of desired {}"),
            described(number("Current", ".status.replicas"), "Number of managed and not final or deleted {}"),
            described(
                number("Ready", ".status.readyReplicas"),
                "Number of managed {} which are ready to receive traffic",
            ),
            age(),
        ],
        scale: Some(Scale {
            wanted: "/spec/replicas".into(),
            there: "/status/replicas".into(),
            selector: Some("/status/labelSelector".into()),
        }),
        ..of
    }
}

/// Everything that is always served.
pub static ALL: LazyLock<Vec<Arc<Resource>>> =
    LazyLock::new(|| rows().into_iter().chain(role::rows()).chain(workload::rows()).map(Arc::new).collect());

fn rows() -> Vec<Resource> {
    vec![
        Resource {
            short_names: texts(&["ns"]),
            namespaced: false,
            status: true,
            columns: vec![shown("Status", ".status.phase"), age()],
            fields: texts(&["status.phase"]),
            admit: admit::namespace,
            name_fits: is_dns_label,
            ..own("", "Namespace")
        },
        Resource {
            short_names: texts(&["cm"]),
            columns: vec![column("Data", "integer", Source::Made(data)), age()],
            admit: admit::config_map,
            ..own("", "ConfigMap")
        },
        Resource {
            columns: vec![shown("Type", ".type"), column("Data", "integer", Source::Made(data)), age()],
            fields: texts(&["type"]),
            admit: secret::secret,
            ..own("", "Secret")
        },
        Resource {
            short_names: texts(&["sa"]),
            columns: vec![column("Secrets", "integer", Source::Made(secrets)), age()],
            merge: Some(&[OF_METADATA[0], OF_METADATA[1], ("secrets", "name"), ("imagePullSecrets", "name")]),
            ..own("", "ServiceAccount")
        },
        Resource {
            columns: vec![shown("Holder", ".spec.holderIdentity"), age()],
            admit: admit::lease,
            ..own("coordination.k8s.io", "Lease")
        },
        Resource {
            short_names: texts(&["ev"]),
            columns: vec![
                column("Last Seen", "string", Source::Since(".lastTimestamp".into())),
                shown("Type", ".type"),
                shown("Reason", ".reason"),
                made("Object", involved),
                shown("Message", ".message"),
                wide(number("Count", ".count")),
                wide(shown("Name", ".metadata.name")),
            ],
            fields: texts(&[
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
            ]),
            admit: admit::event,
            ..own("", "Event")
        },
        Resource {
            short_names: texts(&["pvc"]),
            status: true,
            columns: vec![
                made("Status", claim::phase),
                shown("Volume", ".spec.volumeName"),
                shown("Capacity", ".status.capacity.storage"),
                made("Access Modes", claim::modes),
                shown("StorageClass", ".spec.storageClassName"),
                made("VolumeAttributesClass", |_| json!("<unset>")),
                age(),
                wide(shown("VolumeMode", ".spec.volumeMode")),
            ],
            merge: Some(&[OF_METADATA[0], OF_METADATA[1], ("status.conditions", "type")]),
            admit: claim::admit,
            ..own("", "PersistentVolumeClaim")
        },
        Resource {
            short_names: texts(&["pv"]),
            namespaced: false,
            status: true,
            columns: vec![
                shown("Capacity", ".spec.capacity.storage"),
                made("Access Modes", |volume| claim::short_modes(volume.pointer("/spec/accessModes"))),
                shown("Reclaim Policy", ".spec.persistentVolumeReclaimPolicy"),
                made("Status", claim::phase),
                made("Claim", volume::claimed),
                shown("StorageClass", ".spec.storageClassName"),
                made("VolumeAttributesClass", |_| json!("<unset>")),
                shown("Reason", ".status.reason"),
                age(),
                wide(shown("VolumeMode", ".spec.volumeMode")),
            ],
            admit: volume::volume,
            ..own("", "PersistentVolume")
        },
        Resource {
            plural: "storageclasses".into(),
            short_names: texts(&["sc"]),
            namespaced: false,
            columns: vec![
                made("Name", volume::class_name),
                shown("Provisioner", ".provisioner"),
                shown("ReclaimPolicy", ".reclaimPolicy"),
                shown("VolumeBindingMode", ".volumeBindingMode"),
                shown("AllowVolumeExpansion", ".allowVolumeExpansion"),
                age(),
            ],
            admit: volume::class,
            ..own("storage.k8s.io", "StorageClass")
        },
        Resource {
            short_names: texts(&["no"]),
            namespaced: false,
            status: true,
            columns: vec![
                made("Status", readiness),
                made("Roles", |_| json!("<none>")),
                age(),
                shown("Version", ".status.nodeInfo.kubeletVersion"),
                wide(shown("OS-Image", ".status.nodeInfo.osImage")),
                wide(shown("Kernel-Version", ".status.nodeInfo.kernelVersion")),
            ],
            fields: texts(&["spec.unschedulable"]),
            merge: Some(&[
                OF_METADATA[0],
                OF_METADATA[1],
                ("spec.taints", "key"),
                ("status.addresses", "type"),
                ("status.conditions", "type"),
            ]),
            ..own("", "Node")
        },
        // As KubeVirt's: what users write to its status is put back.
        Resource {
            short_names: texts(&["vmi", "vmis"]),
            columns: vec![
                age(),
                shown("Phase", ".status.phase"),
                shown("IP", ".status.interfaces[0].ipAddress"),
                shown("NodeName", ".status.nodeName"),
                shown("Ready", READY),
                wide(shown("Live-Migratable", ".status.conditions[?(@.type=='LiveMigratable')].status")),
                wide(shown("Paused", ".status.conditions[?(@.type=='Paused')].status")),
            ],
            admit: admit::vmi,
            ..kubevirt("VirtualMachineInstance")
        },
        Resource {
            short_names: texts(&["vm", "vms"]),
            status: true,
            columns: vec![
                age(),
                described(shown("Status", ".status.printableStatus"), "Human Readable Status"),
                shown("Ready", READY),
            ],
            admit: machine::admit,
            ..kubevirt("VirtualMachine")
        },
        Resource {
            short_names: texts(&["vmirs", "vmirss"]),
            admit: replicaset::admit,
            ..set(kubevirt("VirtualMachineInstanceReplicaSet"), "VirtualMachineInstances")
        },
        Resource {
            short_names: texts(&["vmpool", "vmpools"]),
            admit: pool::admit,
            ..set(among_all(row("pool.kubevirt.io", "v1beta1", "VirtualMachinePool")), "VirtualMachines")
        },
        Resource {
            short_names: texts(&["crd", "crds"]),
            categories: texts(&["api-extensions"]),
            namespaced: false,
            status: true,
            columns: vec![column("Created At", "date", Source::Path(".metadata.creationTimestamp".into()))],
            admit: definition::admit,
            ..own("apiextensions.k8s.io", "CustomResourceDefinition")
        },
        Resource {
            short_names: texts(&["vminstancetype", "vminstancetypes", "vmf", "vmfs"]),
            admit: instancetype::instancetype,
            ..among_all(chosen("VirtualMachineInstancetype"))
        },
        Resource {
            short_names: texts(&["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"]),
            namespaced: false,
            admit: instancetype::cluster_instancetype,
            ..chosen("VirtualMachineClusterInstancetype")
        },
        Resource {
            short_names: texts(&["vmpref", "vmprefs", "vmp", "vmps"]),
            admit: instancetype::preference,
            ..among_all(chosen("VirtualMachinePreference"))
        },
        Resource {
            short_names: texts(&["vmcp", "vmcps"]),
            namespaced: false,
            admit: instancetype::cluster_preference,
            ..chosen("VirtualMachineClusterPreference")
        },
        Resource {
            columns: vec![
                shown("Controller", ".metadata.ownerReferences[0].name"),
                number("Revision", ".revision"),
                age(),
            ],
            ..own("apps", "ControllerRevision")
        },
    ]
}

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
