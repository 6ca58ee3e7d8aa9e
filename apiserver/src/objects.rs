//! How stored objects change and go, and the namespaces that are always there.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::meta;
use crate::resource::{Grace, NAMESPACES, Resource};
use crate::store::{Change, DiskError, Object, Store, WriteError};

/// Namespaces that are made at the start and cannot be deleted.
const PERMANENT: [&str; 2] = ["default", "kube-system"];

/// Whether an object that was deleted is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// A finalizer or its grace period holds it.
    Held,
    /// It goes at once.
    Free,
}

/// One namespace.
pub fn namespace(store: &Store, name: &str) -> Option<Arc<Object>> {
    store.get(&NAMESPACES.key("", name))
}

/// Whether an object cannot be deleted.
pub fn is_permanent(resource: &Resource, name: &str) -> bool {
    resource.is(&NAMESPACES) && PERMANENT.contains(&name)
}

/// Whether an object stays although it is deleted: a finalizer holds it, or its grace period does.
pub fn is_held(value: &Value) -> bool {
    let inner = value.get("kind").is_some_and(|kind| kind == "Namespace")
        && value.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    inner || !meta::finalizers(value).is_empty() || grace_period(value) > 0
}

/// `metadata.deletionGracePeriodSeconds`; zero where it is absent.
fn grace_period(value: &Value) -> i64 {
    value.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or_default()
}

/// Marks an object for deletion, if it is held. `grace` is [that of its resource](Resource::grace), `requested` the
/// `gracePeriodSeconds` of the request. A second request can only shorten the grace period of the first.
pub fn mark_for_deletion(value: &mut Value, grace: Option<Grace>, requested: Option<i64>) -> Deletion {
    if meta::is_being_deleted(value) {
        if let Some(seconds) =
            requested.map(|seconds| seconds.max(0)).filter(|seconds| *seconds < grace_period(value))
        {
            shorten_grace(value, seconds);
        }
    } else {
        let seconds = grace.map_or(0, |grace| grace(value, requested));
        if seconds == 0 && !is_held(value) {
            return Deletion::Free;
        }
        let metadata = meta::of(value);
        metadata.insert("deletionTimestamp".to_owned(), json!(meta::after_now(seconds)));
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(seconds));
        if value.get("kind").is_some_and(|kind| kind == "Namespace") {
            value["status"] = json!({"phase": "Terminating"});
        }
    }
    if is_held(value) { Deletion::Held } else { Deletion::Free }
}

/// Shortens the grace period of an object that is being deleted.
fn shorten_grace(value: &mut Value, seconds: i64) {
    let earlier = grace_period(value) - seconds;
    let Ok(end) = meta::text(value, "deletionTimestamp").parse::<Timestamp>() else { return };
    let end = end.checked_sub(SignedDuration::from_secs(earlier)).unwrap_or(end);
    let metadata = meta::of(value);
    metadata.insert("deletionTimestamp".to_owned(), json!(end.to_string()));
    metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(seconds));
}

/// Deletes an object of a resource without graceful deletion, as a request without options would. An absent object is not an error. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn remove(store: &Store, object: &Object) -> Result<(), DiskError> {
    change(store, object, |value| mark_for_deletion(value, None, None) == Deletion::Held)
}

/// Changes an object unless it was replaced; `stays` is whether it is kept. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn change(
    store: &Store,
    object: &Object,
    stays: impl FnOnce(&mut Value) -> bool,
) -> Result<(), DiskError> {
    let known = object.value();
    let uid = meta::text(&known, "uid");
    let changed = store.write(&object.key, |now, _| {
        let Some(now) = now.filter(|now| meta::text(&now.value(), "uid") == uid) else {
            return Ok(Change::Nothing);
        };
        let mut value = now.to_value();
        Ok(if stays(&mut value) { Change::Put(value) } else { Change::Remove(value) })
    });
    done(changed)
}

/// For writers that refuse nothing.
///
/// # Errors
/// When the store cannot be written.
pub fn done<T>(result: Result<T, WriteError<std::convert::Infallible>>) -> Result<(), DiskError> {
    match result {
        Ok(_) => Ok(()),
        Err(WriteError::Refused(never)) => match never {},
        Err(WriteError::Disk(error)) => Err(error),
    }
}

/// Makes the namespaces that must be there. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn prepare(store: &Store) -> Result<(), DiskError> {
    for name in PERMANENT {
        make(store, &NAMESPACES, name, |value| {
            (NAMESPACES.admit)(value, None);
        })?;
    }
    Ok(())
}

/// Makes an object if it is not there, and brings it up to date. Blocks.
///
/// # Errors
/// When the store cannot be written.
pub fn make(
    store: &Store,
    resource: &'static Resource,
    name: &str,
    complete: impl FnOnce(&mut Value),
) -> Result<(), DiskError> {
    let written = store.write(&resource.key("", name), |before, _| {
        let mut value = match before {
            Some(before) => before.to_value(),
            None => {
                let mut fresh =
                    json!({"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {}});
                meta::create(&mut fresh, "", name);
                fresh
            }
        };
        complete(&mut value);
        Ok(Change::Put(value))
    });
    done(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::PODS;

    #[test]
    fn what_is_held_is_marked_once_and_what_is_not_goes() {
        let mut free = json!({"metadata": {"name": "x"}});
        assert_eq!(mark_for_deletion(&mut free, None, Some(30)), Deletion::Free);
        let mut held = json!({"metadata": {"name": "x", "finalizers": ["a"]}});
        assert_eq!(mark_for_deletion(&mut held, None, None), Deletion::Held);
        let marked = held.clone();
        assert!(meta::is_being_deleted(&marked));
        assert_eq!(mark_for_deletion(&mut held, None, Some(0)), Deletion::Held);
        assert_eq!(held, marked);
        let mut namespace =
            json!({"kind": "Namespace", "metadata": {}, "spec": {"finalizers": ["kubernetes"]}});
        assert_eq!(mark_for_deletion(&mut namespace, None, None), Deletion::Held);
        assert_eq!(namespace["status"]["phase"], "Terminating");
    }

    /// What becomes of a pod that is deleted by these requests, each with its `gracePeriodSeconds`.
    fn deleted(change: Value, requests: &[Option<i64>]) -> (Deletion, Value) {
        let mut pod = json!({
            "kind": "Pod", "metadata": {"name": "x"}, "status": {"phase": "Running"},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30},
        });
        json_patch::merge(&mut pod, &change);
        let mark = |seconds: &Option<i64>| mark_for_deletion(&mut pod, PODS.grace, *seconds);
        let deletion = requests.iter().map(mark).last().unwrap();
        (deletion, pod["metadata"]["deletionGracePeriodSeconds"].clone())
    }

    #[test]
    fn a_pod_that_runs_is_deleted_gracefully() {
        for (change, requests, expected) in [
            (json!({}), &[None][..], (Deletion::Held, json!(30))),
            (json!({}), &[Some(5)], (Deletion::Held, json!(5))),
            (json!({}), &[Some(0)], (Deletion::Free, Value::Null)),
            (json!({}), &[None, None], (Deletion::Held, json!(30))),
            (json!({}), &[Some(10), Some(5)], (Deletion::Held, json!(5))),
            (json!({}), &[Some(10), Some(20)], (Deletion::Held, json!(10))),
            (json!({}), &[None, Some(0)], (Deletion::Free, json!(0))),
            (json!({"metadata": {"finalizers": ["a/b"]}}), &[None, Some(0)], (Deletion::Held, json!(0))),
            (json!({"metadata": {"finalizers": ["a/b"]}}), &[Some(0)], (Deletion::Held, json!(0))),
            (json!({"spec": {"terminationGracePeriodSeconds": 0}}), &[None], (Deletion::Free, Value::Null)),
            (json!({"spec": {"terminationGracePeriodSeconds": -1}}), &[None], (Deletion::Held, json!(1))),
            (json!({"spec": {"nodeName": null}}), &[None], (Deletion::Free, Value::Null)),
            (json!({"status": {"phase": "Succeeded"}}), &[None], (Deletion::Free, Value::Null)),
            (json!({"status": {"phase": "Failed"}}), &[Some(9)], (Deletion::Free, Value::Null)),
        ] {
            assert_eq!(deleted(change.clone(), requests), expected, "{change} {requests:?}");
        }
    }

    #[test]
    fn a_shorter_grace_period_ends_earlier() {
        let mut pod = json!({"kind": "Pod", "metadata": {"deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30}});
        mark_for_deletion(&mut pod, PODS.grace, Some(10));
        assert_eq!(meta::text(&pod, "deletionTimestamp"), "2026-01-01T00:00:10Z");
    }
}
