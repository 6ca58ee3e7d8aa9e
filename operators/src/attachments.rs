//! Attachment Pods: each holds a claim that is hotplugged into a guest or that its memory is dumped to, on the node of its launcher Pod, where the node agent
//! opens the claim's disk for the launcher. What is to be done is a pure function of what is observed.
//!
//! There is one for each claim, so that none has to wait for another: KubeVirt has one for all claims of a guest.

pub mod controller;
mod pod;

use std::collections::BTreeSet;

use serde::Deserialize;
use vireo_api::names::{ATTACHMENT_CLAIM_ANNOTATION, ATTACHMENT_VMI_ANNOTATIONS, NODE_LABEL};
use vireo_api::v1::{ObjectMeta, VirtualMachineInstance, Volume};
use vireo_client::ObjectKey;

use crate::vmi::{LauncherPod, is_final};

pub use pod::attachment_pod;

/// What matters of an attachment Pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Attachment {
    metadata: ObjectMeta,
    status: Status,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Status {
    phase: String,
}

impl Attachment {
    /// The claim that it holds.
    fn claim(&self) -> &str {
        self.metadata.annotations.get(ATTACHMENT_CLAIM_ANNOTATION).map_or("", String::as_str)
    }

    /// The instance that it is for.
    fn vmi(&self) -> Option<ObjectKey> {
        let name = self.metadata.annotations.get(ATTACHMENT_VMI_ANNOTATIONS.0)?;
        Some(ObjectKey::new(&self.metadata.namespace, name))
    }
}

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<'a> {
    /// Create the attachment Pod of this claim.
    Create(&'a str),
    /// Delete this attachment Pod.
    Delete(&'a Attachment),
}

/// The claim that a volume hotplugs into the guest, or that the memory is dumped to.
fn held(volume: &Volume) -> Option<&str> {
    let hotplugged = volume.claim().filter(|claim| claim.hotpluggable).map(|claim| claim.name);
    hotplugged.or_else(|| volume.memory_dump.as_ref().map(|dump| dump.claim_name.as_str()))
}

/// The claims that are to be held for an instance. Of its specification only the volumes are read.
fn wanted(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    vmi.spec.volumes.iter().filter_map(held)
}

/// The claims that the node agent still reports: they may not have been released.
fn in_use(vmi: &VirtualMachineInstance) -> impl Iterator<Item = &str> {
    let hotplugged = vmi.status.volume_status.iter().filter(|volume| volume.hotplug_volume.is_some());
    hotplugged.filter_map(|volume| volume.persistent_volume_claim_info.as_ref()?["claimName"].as_str())
}

/// The launcher Pod whose node has an instance, while it may run the guest.
fn current<'a>(vmi: &VirtualMachineInstance, pods: &[&'a LauncherPod]) -> Option<&'a LauncherPod> {
    let node = vmi.metadata.labels.get(NODE_LABEL)?;
    let mut here = pods.iter().filter(|pod| pod.node() == Some(node) && pod.may_run());
    here.next().copied().filter(|_| !is_final(&vmi.status.phase))
}

/// What to do about the attachment Pods of an instance. `pods` are its launcher Pods.
fn decide<'a>(
    vmi: &'a VirtualMachineInstance,
    pods: &[&LauncherPod],
    attachments: &[&'a Attachment],
) -> Vec<Step<'a>> {
    let launcher = current(vmi, pods);
    let is_of = |attachment: &Attachment, launcher: &LauncherPod| {
        let owners = &attachment.metadata.owner_references;
        owners.iter().any(|owner| owner.uid == launcher.metadata.uid)
    };
    let needed: BTreeSet<&str> = launcher.iter().flat_map(|_| wanted(vmi)).collect();
    let kept: BTreeSet<&str> = launcher.iter().flat_map(|_| in_use(vmi)).chain(needed.clone()).collect();
    let is_kept = |attachment: &Attachment| {
        let is_current = launcher.is_some_and(|launcher| is_of(attachment, launcher));
        is_current && kept.contains(attachment.claim()) && !is_final(&attachment.status.phase)
    };
    let mut living = attachments.iter().filter(|one| one.metadata.deletion_timestamp.is_none());
    let deletions = living.by_ref().filter(|one| !is_kept(one)).map(|one| Step::Delete(one));
    let mut steps: Vec<Step<'_>> = deletions.collect();
    // One that ends is replaced when it is gone: it may hold what the next one needs.
    let has = |claim: &str| attachments.iter().any(|one| one.claim() == claim);
    let ends = vmi.metadata.deletion_timestamp.is_some() || launcher.is_some_and(LauncherPod::is_deleted);
    if !ends {
        steps.extend(needed.into_iter().filter(|claim| !has(claim)).map(Step::Create));
    }
    steps
}

#[cfg(test)]
mod tests;
