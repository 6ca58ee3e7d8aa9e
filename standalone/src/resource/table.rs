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
use super::{Column, Resource, Scale, Source, Text};
use crate::meta::{is_dns_label, is_dns_name};

/// Lists of every object that a strategic merge patch merges.
const OF_METADATA: [(&str, &str); 2] = [("metadata.finalizers", ""), ("metadata.ownerReferences", "uid")];
const PLAIN: Option<&[(&str, &str)]> = Some(&OF_METADATA);

fn column(name: &'static str, kind: &'static str, priority: u8, source: Source) -> Column {
    Column { name: name.into(), kind: kind.into(), priority, description: "".into(), source }
}

/// When an object was made.
pub(super) fn age() -> Column {
    column("Age", "date", 0, Source::Since(".metadata.creationTimestamp".into()))
}

fn texts(words: &[&'static str]) -> Vec<Text> {
    words.iter().map(|word| Text::from(*word)).collect()
}

/// What sets and pools have.
fn replicas() -> Scale {
    Scale {
        wanted: "/spec/replicas".into(),
        there: "/status/replicas".into(),
        selector: Some("/status/labelSelector".into()),
    }
}

/// What instance types and preferences have in common.
fn chosen() -> Resource {
    Resource {
        group: "instancetype.kubevirt.io".into(),
        version: "v1beta1".into(),
        plural: "".into(),
        singular: "".into(),
        kind: "".into(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: false,
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

/// Everything that is always served.
pub static ALL: LazyLock<Vec<Arc<Resource>>> = LazyLock::new(|| rows().into_iter().map(Arc::new).collect());

fn rows() -> Vec<Resource> {
    vec![
        Resource {
            group: "".into(),
            version: "v1".into(),
            plural: "namespaces".into(),
            singular: "namespace".into(),
            kind: "Namespace".into(),
            short_names: texts(&["ns"]),
            categories: Vec::new(),
            namespaced: false,
            status: true,
            columns: vec![column("Status", "string", 0, Source::Path(".status.phase".into())), age()],
            fields: texts(&["status.phase"]),
            merge: PLAIN,
            admit: admit::namespace,
            name_fits: is_dns_label,
            scale: None,
            custom: None,
        },
        Resource {
            group: "".into(),
            version: "v1".into(),
            plural: "configmaps".into(),
            singular: "configmap".into(),
            kind: "ConfigMap".into(),
            short_names: texts(&["cm"]),
            categories: Vec::new(),
            namespaced: true,
            status: false,
            columns: vec![column("Data", "integer", 0, Source::Made(data)), age()],
            fields: Vec::new(),
            merge: PLAIN,
            admit: admit::config_map,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "".into(),
            version: "v1".into(),
            plural: "secrets".into(),
            singular: "secret".into(),
            kind: "Secret".into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            status: false,
            columns: vec![
                column("Type", "string", 0, Source::Path(".type".into())),
                column("Data", "integer", 0, Source::Made(data)),
                age(),
            ],
            fields: texts(&["type"]),
            merge: PLAIN,
            admit: admit::secret,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "".into(),
            version: "v1".into(),
            plural: "serviceaccounts".into(),
            singular: "serviceaccount".into(),
            kind: "ServiceAccount".into(),
            short_names: texts(&["sa"]),
            categories: Vec::new(),
            namespaced: true,
            status: false,
            columns: vec![column("Secrets", "integer", 0, Source::Made(secrets)), age()],
            fields: Vec::new(),
            merge: Some(&[OF_METADATA[0], OF_METADATA[1], ("secrets", "name"), ("imagePullSecrets", "name")]),
            admit: admit::nothing,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "coordination.k8s.io".into(),
            version: "v1".into(),
            plural: "leases".into(),
            singular: "lease".into(),
            kind: "Lease".into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            status: false,
            columns: vec![column("Holder", "string", 0, Source::Path(".spec.holderIdentity".into())), age()],
            fields: Vec::new(),
            merge: PLAIN,
            admit: admit::lease,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "".into(),
            version: "v1".into(),
            plural: "events".into(),
            singular: "event".into(),
            kind: "Event".into(),
            short_names: texts(&["ev"]),
            categories: Vec::new(),
            namespaced: true,
            status: false,
            columns: vec![
                column("Last Seen", "string", 0, Source::Since(".lastTimestamp".into())),
                column("Type", "string", 0, Source::Path(".type".into())),
                column("Reason", "string", 0, Source::Path(".reason".into())),
                column("Object", "string", 0, Source::Made(involved)),
                column("Message", "string", 0, Source::Path(".message".into())),
                column("Count", "integer", 1, Source::Path(".count".into())),
                column("Name", "string", 1, Source::Path(".metadata.name".into())),
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
            merge: PLAIN,
            admit: admit::event,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "".into(),
            version: "v1".into(),
            plural: "persistentvolumeclaims".into(),
            singular: "persistentvolumeclaim".into(),
            kind: "PersistentVolumeClaim".into(),
            short_names: texts(&["pvc"]),
            categories: Vec::new(),
            namespaced: true,
            status: true,
            columns: vec![
                column("Status", "string", 0, Source::Made(claim::phase)),
                column("Volume", "string", 0, Source::Path(".spec.volumeName".into())),
                column("Capacity", "string", 0, Source::Path(".status.capacity.storage".into())),
                column("Access Modes", "string", 0, Source::Made(claim::modes)),
                column("StorageClass", "string", 0, Source::Path(".spec.storageClassName".into())),
                column("VolumeAttributesClass", "string", 0, Source::Made(|_| json!("<unset>"))),
                age(),
                column("VolumeMode", "string", 1, Source::Path(".spec.volumeMode".into())),
            ],
            fields: Vec::new(),
            merge: Some(&[OF_METADATA[0], OF_METADATA[1], ("status.conditions", "type")]),
            admit: claim::admit,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "".into(),
            version: "v1".into(),
            plural: "nodes".into(),
            singular: "node".into(),
            kind: "Node".into(),
            short_names: texts(&["no"]),
            categories: Vec::new(),
            namespaced: false,
            status: true,
            columns: vec![
                column("Status", "string", 0, Source::Made(readiness)),
                column("Roles", "string", 0, Source::Made(|_| json!("<none>"))),
                age(),
                column("Version", "string", 0, Source::Path(".status.nodeInfo.kubeletVersion".into())),
                column("OS-Image", "string", 1, Source::Path(".status.nodeInfo.osImage".into())),
                column("Kernel-Version", "string", 1, Source::Path(".status.nodeInfo.kernelVersion".into())),
            ],
            fields: texts(&["spec.unschedulable"]),
            merge: Some(&[
                OF_METADATA[0],
                OF_METADATA[1],
                ("spec.taints", "key"),
                ("status.addresses", "type"),
                ("status.conditions", "type"),
            ]),
            admit: admit::nothing,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "kubevirt.io".into(),
            version: "v1".into(),
            plural: "virtualmachineinstances".into(),
            singular: "virtualmachineinstance".into(),
            kind: "VirtualMachineInstance".into(),
            short_names: texts(&["vmi", "vmis"]),
            categories: texts(&["all"]),
            namespaced: true,
            // As KubeVirt's: what users write there is put back.
            status: false,
            columns: vec![
                age(),
                column("Phase", "string", 0, Source::Path(".status.phase".into())),
                column("IP", "string", 0, Source::Path(".status.interfaces[0].ipAddress".into())),
                column("NodeName", "string", 0, Source::Path(".status.nodeName".into())),
                column(
                    "Ready",
                    "string",
                    0,
                    Source::Path(".status.conditions[?(@.type=='Ready')].status".into()),
                ),
                column(
                    "Live-Migratable",
                    "string",
                    1,
                    Source::Path(".status.conditions[?(@.type=='LiveMigratable')].status".into()),
                ),
                column(
                    "Paused",
                    "string",
                    1,
                    Source::Path(".status.conditions[?(@.type=='Paused')].status".into()),
                ),
            ],
            fields: Vec::new(),
            merge: None,
            admit: admit::vmi,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "kubevirt.io".into(),
            version: "v1".into(),
            plural: "virtualmachines".into(),
            singular: "virtualmachine".into(),
            kind: "VirtualMachine".into(),
            short_names: texts(&["vm", "vms"]),
            categories: texts(&["all"]),
            namespaced: true,
            status: true,
            columns: vec![
                age(),
                Column {
                    description: "Human Readable Status".into(),
                    ..column("Status", "string", 0, Source::Path(".status.printableStatus".into()))
                },
                column(
                    "Ready",
                    "string",
                    0,
                    Source::Path(".status.conditions[?(@.type=='Ready')].status".into()),
                ),
            ],
            fields: Vec::new(),
            merge: None,
            admit: machine::admit,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            group: "kubevirt.io".into(),
            version: "v1".into(),
            plural: "virtualmachineinstancereplicasets".into(),
            singular: "virtualmachineinstancereplicaset".into(),
            kind: "VirtualMachineInstanceReplicaSet".into(),
            short_names: texts(&["vmirs", "vmirss"]),
            categories: texts(&["all"]),
            namespaced: true,
            status: true,
            columns: vec![
                Column {
                    description: "Number of desired VirtualMachineInstances".into(),
                    ..column("Desired", "integer", 0, Source::Path(".spec.replicas".into()))
                },
                Column {
                    description: "Number of managed and not final or deleted VirtualMachineInstances".into(),
                    ..column("Current", "integer", 0, Source::Path(".status.replicas".into()))
                },
                Column {
                    description:
                        "Number of managed VirtualMachineInstances which are ready to receive traffic".into(),
                    ..column("Ready", "integer", 0, Source::Path(".status.readyReplicas".into()))
                },
                age(),
            ],
            fields: Vec::new(),
            merge: None,
            admit: replicaset::admit,
            name_fits: is_dns_name,
            scale: Some(replicas()),
            custom: None,
        },
        Resource {
            group: "pool.kubevirt.io".into(),
            version: "v1beta1".into(),
            plural: "virtualmachinepools".into(),
            singular: "virtualmachinepool".into(),
            kind: "VirtualMachinePool".into(),
            short_names: texts(&["vmpool", "vmpools"]),
            categories: texts(&["all"]),
            namespaced: true,
            status: true,
            columns: vec![
                Column {
                    description: "Number of desired VirtualMachines".into(),
                    ..column("Desired", "integer", 0, Source::Path(".spec.replicas".into()))
                },
                Column {
                    description: "Number of managed and not final or deleted VirtualMachines".into(),
                    ..column("Current", "integer", 0, Source::Path(".status.replicas".into()))
                },
                Column {
                    description: "Number of managed VirtualMachines which are ready to receive traffic"
                        .into(),
                    ..column("Ready", "integer", 0, Source::Path(".status.readyReplicas".into()))
                },
                age(),
            ],
            fields: Vec::new(),
            merge: None,
            admit: pool::admit,
            name_fits: is_dns_name,
            scale: Some(replicas()),
            custom: None,
        },
        Resource {
            group: "apiextensions.k8s.io".into(),
            version: "v1".into(),
            plural: "customresourcedefinitions".into(),
            singular: "customresourcedefinition".into(),
            kind: "CustomResourceDefinition".into(),
            short_names: texts(&["crd", "crds"]),
            categories: texts(&["api-extensions"]),
            namespaced: false,
            status: true,
            columns: vec![column(
                "Created At",
                "date",
                0,
                Source::Path(".metadata.creationTimestamp".into()),
            )],
            fields: Vec::new(),
            merge: PLAIN,
            admit: definition::admit,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
        },
        Resource {
            plural: "virtualmachineinstancetypes".into(),
            singular: "virtualmachineinstancetype".into(),
            kind: "VirtualMachineInstancetype".into(),
            short_names: texts(&["vminstancetype", "vminstancetypes", "vmf", "vmfs"]),
            categories: texts(&["all"]),
            namespaced: true,
            admit: instancetype::instancetype,
            ..chosen()
        },
        Resource {
            plural: "virtualmachineclusterinstancetypes".into(),
            singular: "virtualmachineclusterinstancetype".into(),
            kind: "VirtualMachineClusterInstancetype".into(),
            short_names: texts(&["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"]),
            categories: Vec::new(),
            namespaced: false,
            admit: instancetype::cluster_instancetype,
            ..chosen()
        },
        Resource {
            plural: "virtualmachinepreferences".into(),
            singular: "virtualmachinepreference".into(),
            kind: "VirtualMachinePreference".into(),
            short_names: texts(&["vmpref", "vmprefs", "vmp", "vmps"]),
            categories: texts(&["all"]),
            namespaced: true,
            admit: instancetype::preference,
            ..chosen()
        },
        Resource {
            plural: "virtualmachineclusterpreferences".into(),
            singular: "virtualmachineclusterpreference".into(),
            kind: "VirtualMachineClusterPreference".into(),
            short_names: texts(&["vmcp", "vmcps"]),
            categories: Vec::new(),
            namespaced: false,
            admit: instancetype::cluster_preference,
            ..chosen()
        },
        Resource {
            group: "apps".into(),
            version: "v1".into(),
            plural: "controllerrevisions".into(),
            singular: "controllerrevision".into(),
            kind: "ControllerRevision".into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            status: false,
            columns: vec![
                column("Controller", "string", 0, Source::Path(".metadata.ownerReferences[0].name".into())),
                column("Revision", "integer", 0, Source::Path(".revision".into())),
                age(),
            ],
            fields: Vec::new(),
            merge: PLAIN,
            admit: admit::nothing,
            name_fits: is_dns_name,
            scale: None,
            custom: None,
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
