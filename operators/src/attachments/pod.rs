//! The attachment Pod of a claim: a pure function of its instance, its launcher Pod and the claim.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, Container, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    PersistentVolumeClaimVolumeSource, Pod, PodSpec, Toleration, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::json;
use uuid::Uuid;
use vireo_api::names::{
    ATTACHMENT, ATTACHMENT_CLAIM_ANNOTATION, ATTACHMENT_SOCKET, ATTACHMENT_VMI_ANNOTATIONS,
    CLAIM_DISKS_ANNOTATION, COMPONENT_LABEL, SOCKETS_DIRECTORY, SOCKETS_VOLUME, hotplug_device, hotplug_disk,
};
use vireo_api::v1::{VirtualMachineInstance, Volume as VmiVolume};
use vireo_client::Kind;

use crate::config::ClusterConfig;
use crate::vmi::LauncherPod;
use crate::vmi::claims::{Claim, DiskPaths, attach};
use crate::vmi::images::small;
use crate::vmi::volumes::{empty_dir, mount};

/// The volume with the claim.
const CLAIM_VOLUME: &str = "claim";
/// Seconds that its process gets to end, which it does at once.
const GRACE: i64 = 5;
/// The longest beginning of its name that is the name of the claim.
const LONGEST_CLAIM: usize = 180;

/// The attachment Pod of a claim that an instance names, with the state of the claim. `image` is that of the launcher.
/// Its name is a function of the launcher Pod and the claim, so that there are never two of them.
pub fn attachment_pod(
    vmi: &VirtualMachineInstance,
    launcher: &LauncherPod,
    (name, claim): (&str, &Claim),
    image: &str,
    config: &ClusterConfig,
) -> Pod {
    let mut claims = vmi.spec.volumes.iter().filter_map(VmiVolume::claim);
    let read_only = claims.any(|claim| claim.name == name && claim.read_only).then_some(true);
    let socket = format!("{SOCKETS_DIRECTORY}/{ATTACHMENT_SOCKET}");
    let command = ["/usr/bin/virt-launcher", "hold-claim", "--socket", &socket];
    let mut container = Container {
        name: ATTACHMENT.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some(config.image_pull_policy.clone()),
        command: Some(command.map(str::to_owned).into()),
        volume_mounts: Some(vec![mount(SOCKETS_VOLUME, SOCKETS_DIRECTORY, false)]),
        ..small(&config.hotplug_disk)
    };
    let paths = DiskPaths { disk: hotplug_disk(name), device: hotplug_device(name) };
    let (path, bytes) = attach(&mut container, (CLAIM_VOLUME.to_owned(), paths), claim, read_only);
    let sockets = empty_dir(SOCKETS_VOLUME);
    let volume = Volume {
        name: CLAIM_VOLUME.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: name.to_owned(),
            read_only,
        }),
        ..Volume::default()
    };
    Pod {
        metadata: metadata(vmi, launcher, name, &json!({ path: bytes }).to_string()),
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: Some(vec![sockets, volume]),
            restart_policy: Some("OnFailure".to_owned()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            // Without a grace period it would be gone before its claim is unmounted.
            termination_grace_period_seconds: Some(GRACE),
            affinity: Some(on_node(launcher.node().unwrap_or_default())),
            // It has to be where the launcher is, as long as that is there.
            tolerations: Some(vec![Toleration {
                operator: Some("Exists".to_owned()),
                ..Toleration::default()
            }]),
            priority_class_name: Some(vmi.spec.priority_class_name.clone()).filter(|name| !name.is_empty()),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The launcher Pod owns it: it goes with it.
fn metadata(vmi: &VirtualMachineInstance, launcher: &LauncherPod, claim: &str, disks: &str) -> ObjectMeta {
    let (namespace, uid) = (&vmi.metadata.namespace, &launcher.metadata.uid);
    let beginning: String = claim.chars().take(LONGEST_CLAIM).collect();
    let identity =
        Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{uid}/{claim}").as_bytes()).simple().to_string();
    let (vmi_name, vmi_uid) = ATTACHMENT_VMI_ANNOTATIONS;
    let annotations = [
        (vmi_name, vmi.metadata.name.as_str()),
        (vmi_uid, &vmi.metadata.uid),
        (ATTACHMENT_CLAIM_ANNOTATION, claim),
        (CLAIM_DISKS_ANNOTATION, disks),
    ];
    ObjectMeta {
        name: Some(format!("hp-volume-{beginning}-{}", identity.get(..10).unwrap_or_default())),
        namespace: Some(namespace.clone()),
        labels: Some(BTreeMap::from([(COMPONENT_LABEL.to_owned(), ATTACHMENT.to_owned())])),
        annotations: Some(annotations.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
        owner_references: Some(vec![OwnerReference {
            api_version: Kind::POD.api_version(),
            kind: Kind::POD.kind.to_owned(),
            name: launcher.metadata.name.clone(),
            uid: uid.clone(),
            controller: Some(true),
            ..OwnerReference::default()
        }]),
        ..ObjectMeta::default()
    }
}

/// By the scheduler, which makes claims that wait for their first consumer bound.
fn on_node(node: &str) -> Affinity {
    let is_node = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![is_node]), ..NodeSelectorTerm::default() };
    Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                node_selector_terms: vec![term],
            }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    }
}
