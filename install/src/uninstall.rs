//! Removes the installation of a cluster while virt-operator, which does it, is still there: `vireo uninstall`, for
//! `helm uninstall`. A KubeVirt object without virt-operator would keep its finalizer, and what is installed would stay.

use std::time::Duration;

use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client};
use thiserror::Error;
use tracing::info;
use vireo_api::v1::KubeVirtStatus;
use vireo_client::Kind;
use vireo_client::program::chain;

use crate::objects::NAMESPACE;

/// How often the API server is asked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why an installation is not removed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UninstallError {
    /// There is a KubeVirt object, which is not to be deleted.
    #[error("the KubeVirt object {NAMESPACE}/{0} exists: delete it first, while virt-operator runs")]
    Exists(String),
    /// The API server refuses the deletion.
    #[error("the KubeVirt object {NAMESPACE}/{0} is not deleted, and Vireo keeps running: {1}")]
    Refused(String, String),
    /// The API server refuses to list KubeVirt objects.
    #[error("cannot list KubeVirt objects: {0}")]
    List(String),
    /// It takes too long.
    #[error("the installation is not removed after {} s: {pending}", limit.as_secs())]
    Timeout {
        /// How long was waited.
        limit: Duration,
        /// What for.
        pending: String,
    },
}

/// A KubeVirt object.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Observed {
    name: String,
    is_deleting: bool,
    /// What virt-operator waits for.
    progress: Option<String>,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// These are to be deleted.
    Delete(Vec<String>),
    /// This is waited for.
    Wait(String),
    /// There is no KubeVirt object.
    Done,
}

/// What an error of the API server means.
#[derive(Debug, PartialEq, Eq)]
enum Failed {
    /// There is no such object, or no such resource.
    Missing,
    /// It is tried again.
    Transient(String),
    /// It will be the same again.
    Final(String),
}

fn observe(object: &DynamicObject) -> Observed {
    let status = object.data.get("status").cloned().unwrap_or_default();
    let status: KubeVirtStatus = serde_json::from_value(status).unwrap_or_default();
    // While it removes, the reason of each is what it waits for.
    let progress = status.conditions.into_iter().find(|one| one.r#type == "Degraded");
    Observed {
        name: object.metadata.name.clone().unwrap_or_default(),
        is_deleting: object.metadata.deletion_timestamp.is_some(),
        progress: progress.filter(|one| one.reason == "DeletionInProgress").map(|one| one.message),
    }
}

/// The next step, given the KubeVirt objects that there are, and whether they are to be kept.
fn next(objects: &[Observed], keep: bool) -> Result<Step, UninstallError> {
    let there: Vec<String> =
        objects.iter().filter(|one| !one.is_deleting).map(|one| one.name.clone()).collect();
    match (there.first(), objects.first()) {
        (Some(name), _) if keep => Err(UninstallError::Exists(name.clone())),
        (Some(_), _) => Ok(Step::Delete(there)),
        (None, Some(deleting)) => {
            let progress = deleting.progress.as_deref().unwrap_or("waiting for virt-operator");
            Ok(Step::Wait(format!(
                "the KubeVirt object {NAMESPACE}/{} is deleted: {progress}",
                deleting.name
            )))
        }
        (None, None) => Ok(Step::Done),
    }
}

/// Conflicts, too many requests and failures of the server pass; what else the API server answers stays.
fn classify(error: &kube::Error) -> Failed {
    match error {
        kube::Error::Api(status) => match status.code {
            404 => Failed::Missing,
            409 | 429 | 500.. => Failed::Transient(status.message.clone()),
            _ => Failed::Final(status.message.clone()),
        },
        error => Failed::Transient(chain(error)),
    }
}

/// Does the next step. What it waits for; nothing when the installation is removed.
async fn advance(api: &Api<DynamicObject>, keep: bool) -> Result<Option<String>, UninstallError> {
    let objects: Vec<Observed> = match api.list(&ListParams::default()).await {
        Ok(list) => list.items.iter().map(observe).collect(),
        Err(error) => match classify(&error) {
            Failed::Missing => Vec::new(),
            Failed::Transient(why) => return Ok(Some(format!("cannot list KubeVirt objects: {why}"))),
            Failed::Final(why) => return Err(UninstallError::List(why)),
        },
    };
    let names = match next(&objects, keep)? {
        Step::Done => return Ok(None),
        Step::Wait(why) => return Ok(Some(why)),
        Step::Delete(names) => names,
    };
    let mut pending = "the KubeVirt object is deleted".to_owned();
    for name in names {
        if let Err(error) = api.delete(&name, &DeleteParams::default()).await {
            match classify(&error) {
                Failed::Missing => {}
                Failed::Transient(why) => {
                    pending = format!("cannot delete the KubeVirt object {name}: {why}")
                }
                Failed::Final(why) => return Err(UninstallError::Refused(name, why)),
            }
        }
    }
    Ok(Some(pending))
}

/// Deletes the KubeVirt object and waits until virt-operator has removed what it installed. With `keep`, it is not deleted:
/// that there is one is an error.
///
/// # Errors
/// When the API server refuses the deletion, such as while there are VMs, or the time is over.
pub async fn uninstall(client: &Client, keep: bool, limit: Duration) -> Result<(), UninstallError> {
    let api = Kind::KUBEVIRT.namespaced(client, NAMESPACE);
    let mut pending = "the API server does not answer".to_owned();
    let removal = async {
        while let Some(why) = advance(&api, keep).await? {
            if why != pending {
                info!("{why}");
                pending = why;
            }
            tokio::time::sleep(INTERVAL).await;
        }
        Ok(())
    };
    let done = tokio::time::timeout(limit, removal).await;
    done.unwrap_or(Err(UninstallError::Timeout { limit, pending }))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;

    fn kubevirt(name: &str, deleted: Value, status: Value) -> Observed {
        let object = json!({"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
            "metadata": {"name": name, "deletionTimestamp": deleted}, "status": status});
        observe(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_kubevirt_object_is_deleted_and_waited_for() {
        let there = kubevirt("kubevirt", Value::Null, json!({"phase": "Deployed"}));
        assert_eq!(next(std::slice::from_ref(&there), false), Ok(Step::Delete(vec!["kubevirt".to_owned()])));
        let time = json!("2026-11-25T20:00:00Z");
        let deleted = kubevirt(
            "old",
            time.clone(),
            json!({"conditions": [
            {"type": "Degraded", "status": "False", "reason": "AllComponentsReady", "message": "all are ready"}]}),
        );
        let waits = "the KubeVirt object kubevirt/old is deleted: waiting for virt-operator";
        assert_eq!(next(std::slice::from_ref(&deleted), false), Ok(Step::Wait(waits.to_owned())));
        assert_eq!(next(&[deleted, there], false), Ok(Step::Delete(vec!["kubevirt".to_owned()])));
        let removing = kubevirt(
            "old",
            time,
            json!({"conditions": [
            {"type": "Degraded", "status": "True", "reason": "DeletionInProgress", "message": "deleting objects"}]}),
        );
        let waits = "the KubeVirt object kubevirt/old is deleted: deleting objects";
        assert_eq!(next(&[removing], false), Ok(Step::Wait(waits.to_owned())));
        assert_eq!(next(&[], false), Ok(Step::Done));
    }

    #[test]
    fn a_kubevirt_object_that_is_kept_is_an_error_until_it_is_deleted_by_others() {
        let there = kubevirt("kubevirt", Value::Null, Value::Null);
        assert_eq!(next(&[there], true), Err(UninstallError::Exists("kubevirt".to_owned())));
        let deleted = kubevirt("kubevirt", json!("2026-11-25T20:00:00Z"), Value::Null);
        assert!(matches!(next(&[deleted], true), Ok(Step::Wait(_))));
        assert_eq!(next(&[], true), Ok(Step::Done));
    }

    #[test]
    fn what_a_webhook_denies_is_final_and_what_a_server_cannot_do_now_is_not() {
        let failed =
            |code| classify(&kube::Error::Api(Status::failure("why", "Reason").with_code(code).boxed()));
        for code in [400, 401, 403, 422] {
            assert_eq!(failed(code), Failed::Final("why".to_owned()), "{code}");
        }
        for code in [409, 429, 500, 503] {
            assert_eq!(failed(code), Failed::Transient("why".to_owned()), "{code}");
        }
        assert_eq!(failed(404), Failed::Missing);
        assert!(matches!(classify(&kube::Error::LinesCodecMaxLineLengthExceeded), Failed::Transient(_)));
    }
}
