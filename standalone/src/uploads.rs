//! Filling PersistentVolumeClaims with images that clients send, as CDI's upload proxy does: who may, by which token,
//! and its result in the claim.

pub mod token;

use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};
use vireo_apiserver::meta;
use vireo_client::write::{self, Version};
use vireo_client::{Kind, ObjectKey};
use vireo_handler::jobs::Jobs;
use vireo_handler::provisioner::upload::{PHASE, READY, RUNNING, TARGET};
use vireo_handler::provisioner::{CLAIM_PROTECTION, ClaimUsers};
use vireo_handler::reconcile::status::Phase;
use vireo_handler::storage::{Claims, Filled, UploadError};

pub use token::Subject;

/// What uploads need.
pub struct Uploads {
    /// Reads and writes claims.
    pub client: Client,
    /// Where the disks of claims are.
    pub files: Claims,
    /// Where clients send images to: `https://host:port`.
    pub url: String,
    /// Who writes and converts them.
    pub jobs: Jobs,
}

impl std::fmt::Debug for Uploads {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        form.debug_struct("Uploads").field("url", &self.url).finish_non_exhaustive()
    }
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
    /// The marker of the claim.
    #[error("the claim cannot be held for the image")]
    Hold(#[source] std::io::Error),
    /// The API server.
    #[error("a request to the API server failed")]
    Kube(#[from] kube::Error),
}

fn annotation<'a>(claim: &'a Value, name: &str) -> Option<&'a str> {
    claim.get("metadata")?.get("annotations")?.get(name)?.as_str()
}

/// Whether a claim may be filled now, by its own annotations.
fn fit(claim: &Value) -> Result<(), NotNow> {
    if meta::is_being_deleted(claim) || !meta::finalizers(claim).iter().any(|one| one == CLAIM_PROTECTION) {
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

impl Uploads {
    /// Does what blocks for a claim of a namespace, on one of the threads that the jobs of the node have.
    async fn aside<T: Send + 'static, E: Into<NotNow> + Send + 'static>(
        &self,
        namespace: &str,
        work: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, NotNow> {
        let done = self.jobs.quick.run(namespace, move |_| work()).await;
        done.map_err(|error| NotNow::Upload(error.into()))?.map_err(Into::into)
    }

    /// The claim that a token is for.
    ///
    /// # Errors
    /// When it is gone, or may not be filled now.
    pub async fn claim(&self, subject: &Subject) -> Result<ObjectKey, NotNow> {
        let key = self.fit(subject).await?;
        let (files, claim) = (self.files.clone(), key.clone());
        let is_held = move || Ok::<_, NotNow>(files.awaits_image(&claim.namespace, &claim.name));
        let is_held = self.aside(&subject.namespace, is_held).await?;
        self.is_unused(&key, is_held).await?;
        Ok(key)
    }

    async fn fit(&self, subject: &Subject) -> Result<ObjectKey, NotNow> {
        let claims = Kind::CLAIM.namespaced(&self.client, &subject.namespace);
        let claim = claims.get_opt(&subject.name).await?.map(|claim| json!(claim));
        fit(&claim.filter(|claim| meta::text(claim, "uid") == subject.uid).ok_or(NotNow::Gone)?)?;
        Ok(ObjectKey::new(&subject.namespace, &subject.name))
    }

    /// Fails when a VMI uses a claim. A VMI that has not started does not use a claim that waits for its image.
    async fn is_unused(&self, claim: &ObjectKey, is_held: bool) -> Result<(), NotNow> {
        let vmis = Kind::VMI.namespaced(&self.client, &claim.namespace).list(&ListParams::default()).await?;
        let mut users = vmis.items.iter().map(|vmi| ClaimUsers::of(&json!(vmi)));
        match users.any(|vmi| (vmi.phase != Phase::Pending || !is_held) && vmi.uses(&claim.name)) {
            true => Err(NotNow::Unfit("the claim is used by a virtual machine instance: stop it first")),
            false => Ok(()),
        }
    }

    /// Puts an image on the disk and records that in the claim.
    ///
    /// # Errors
    /// When the claim went, or a VMI began to use it, while the image came.
    pub async fn put(&self, subject: &Subject, image: Filled) -> Result<(), NotNow> {
        let key = self.fit(subject).await?;
        // The node agent starts nothing with a claim that is held. The provisioner holds it, too, once it has seen the claim,
        // until it sees that the image has come.
        let is_new = self.hold(&key, true).await?;
        let done = self.put_in_held(&key, subject, image, is_new).await;
        if is_new {
            self.hold(&key, false).await?;
        }
        done
    }

    async fn put_in_held(
        &self,
        key: &ObjectKey,
        subject: &Subject,
        image: Filled,
        is_new: bool,
    ) -> Result<(), NotNow> {
        // What was created before it was held may have begun.
        self.is_unused(key, !is_new).await?;
        self.aside(&key.namespace, move || image.put()).await?;
        let (message, reason) = (format!("{RUNNING}.message"), format!("{RUNNING}.reason"));
        let annotations = json!({
            PHASE: "Succeeded", READY: "false", RUNNING: "false", message: "Upload Complete", reason: "Completed",
        });
        let claims = Kind::CLAIM.namespaced(&self.client, &key.namespace);
        let version = Version { name: &key.name, uid: &subject.uid, resource_version: "" };
        match write::patch(&claims, version, json!({"metadata": {"annotations": annotations}})).await {
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Err(NotNow::Gone),
            written => Ok(written.map(drop)?),
        }
    }

    /// Holds a claim for its image, or no longer. Whether it was not before.
    async fn hold(&self, key: &ObjectKey, is_held: bool) -> Result<bool, NotNow> {
        let (files, claim) = (self.files.clone(), key.clone());
        let held = move || files.await_image(&claim.namespace, &claim.name, is_held).map_err(NotNow::Hold);
        self.aside(&key.namespace, held).await
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
