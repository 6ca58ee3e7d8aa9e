//! Filling PersistentVolumeClaims with images that clients send, as CDI's upload proxy does: who may, by which token,
//! and what is then said of the claim.

pub mod token;

use serde_json::{Value, json};
use vireo_apiserver::meta;
use vireo_apiserver::store::{Change, DiskError, Key, Store, WriteError};
use vireo_handler::jobs::Jobs;
use vireo_handler::provisioner::upload::{PHASE, READY, RUNNING, TARGET};
use vireo_handler::provisioner::{CLAIM_PROTECTION, ClaimUsers};
use vireo_handler::reconcile::status::Phase;
use vireo_handler::storage::{Claims, Filled, UploadError};

use crate::resource::kubevirt;

pub use token::Subject;

/// What uploads need.
#[derive(Debug)]
pub struct Uploads {
    /// Where the disks of claims are.
    pub files: Claims,
    /// Where clients send images to: `https://host:port`.
    pub url: String,
    /// Who writes and converts them.
    pub jobs: Jobs,
}

/// Why a claim is not filled.
#[derive(Debug, thiserror::Error)]
pub enum NotNow {
    /// There is none, or another of the same name.
    #[error("the claim is gone")]
    Gone,
    /// It is not in a state for it.
    #[error("{0}")]
    Unfit(&'static str),
    /// The image.
    #[error(transparent)]
    Upload(#[from] UploadError),
    /// The store.
    #[error("the claim cannot be written")]
    Disk(#[source] DiskError),
}

fn annotation<'a>(claim: &'a Value, name: &str) -> Option<&'a str> {
    claim.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

fn annotate(claim: &mut Value, all: &[(&str, &str)]) {
    let annotations = meta::of(claim).entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.extend(all.iter().map(|(name, value)| ((*name).to_owned(), json!(value))));
    }
}

/// Whether a claim may be filled now, as far as it says itself.
fn fit(claim: &Value) -> Result<(), NotNow> {
    if meta::is_leaving(claim) || !meta::finalizers(claim).iter().any(|one| one == CLAIM_PROTECTION) {
        return Err(NotNow::Unfit("the claim is being deleted"));
    }
    if annotation(claim, TARGET).is_none() {
        return Err(NotNow::Unfit(
            "the claim is not there for an upload: it lacks the annotation cdi.kubevirt.io/storage.upload.target",
        ));
    }
    if annotation(claim, PHASE) == Some("Succeeded") {
        return Err(NotNow::Unfit("the claim has its image already"));
    }
    if claim.pointer("/status/phase").is_none_or(|phase| phase != "Bound") {
        return Err(NotNow::Unfit("the claim has no disk yet"));
    }
    Ok(())
}

/// Whether a VMI in one of some phases uses a claim.
fn is_used(store: &Store, claim: &Key, counts: impl Fn(Phase) -> bool) -> bool {
    let vmis = store.list(&kubevirt::VMIS.name(), Some(&claim.namespace)).objects;
    let mut users = vmis.iter().map(|vmi| ClaimUsers::of(&vmi.value));
    users.any(|vmi| counts(vmi.phase) && vmi.uses(&claim.name))
}

/// The claim of `files` that a token is for.
///
/// # Errors
/// When it is gone, or may not be filled now.
pub fn claim(store: &Store, files: &Claims, subject: &Subject) -> Result<Key, NotNow> {
    let key = kubevirt::CLAIMS.key(&subject.namespace, &subject.name);
    let claim = store.get(&key).filter(|claim| meta::text(&claim.value, "uid") == subject.uid);
    fit(&claim.ok_or(NotNow::Gone)?.value)?;
    // What has not begun waits for the image, where it is told to.
    let waits = files.awaits_image(&key.namespace, &key.name);
    match is_used(store, &key, |phase| phase != Phase::Pending || !waits) {
        true => Err(NotNow::Unfit("the claim is used by a virtual machine instance: stop it first")),
        false => Ok(key),
    }
}

/// Puts an image in its place while nobody else can begin to use the claim, and says so. Blocks.
///
/// # Errors
/// When the claim went, or somebody began to use it, while the image came.
pub fn put(store: &Store, files: &Claims, subject: &Subject, image: Filled) -> Result<(), NotNow> {
    let key = claim(store, files, subject)?;
    let written = store.write(&key, |now, store| {
        // Again, now that nobody else writes.
        claim(store, files, subject)?;
        let mut value = now.ok_or(NotNow::Gone)?.value.clone();
        image.put()?;
        let (message, reason) = (format!("{RUNNING}.message"), format!("{RUNNING}.reason"));
        let done = [
            (PHASE, "Succeeded"),
            (READY, "false"),
            (RUNNING, "false"),
            (&message, "Upload Complete"),
            (&reason, "Completed"),
        ];
        annotate(&mut value, &done);
        Ok(Change::Put(value))
    });
    match written {
        Ok(_) => Ok(()),
        Err(WriteError::Refused(why)) => Err(why),
        Err(WriteError::Disk(error)) => Err(NotNow::Disk(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(annotations: Value, phase: &str) -> Value {
        json!({"metadata": {"annotations": annotations, "finalizers": [CLAIM_PROTECTION]}, "status": {"phase": phase}})
    }

    #[test]
    fn only_what_waits_for_an_image_gets_one() {
        for (annotations, phase, fits) in [
            (json!({TARGET: ""}), "Bound", true),
            (json!({TARGET: "", PHASE: "Running"}), "Bound", true),
            (json!({TARGET: ""}), "Pending", false),
            (json!({TARGET: ""}), "Lost", false),
            (json!({TARGET: "", PHASE: "Succeeded"}), "Bound", false),
            (json!({}), "Bound", false),
        ] {
            let claim = claim(annotations.clone(), phase);
            assert_eq!(fit(&claim).is_ok(), fits, "{annotations} {phase}");
        }
        let mut leaving = claim(json!({TARGET: ""}), "Bound");
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(fit(&leaving).is_err());
    }
}
